//! Runs the decisions in a world of members and proposers, over many thousand schedules, each from its seed.
//!
//! In a world of faults, messages are late or lost, members restart empty, proposers pause, and all clocks run apart.
//! Never are two proposers sure of the lock at the same time, and the tokens of all grants grow. In a world in which
//! one member is slow and nothing else is wrong, the grants never stop.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastrand::Rng;

use super::*;
use crate::epochs::Epochs;

/// Times are in milliseconds.
const MARGIN: u64 = 50;
/// How long a message to or from the slow member takes.
const SLOW: u64 = 150;
/// How long a proposer keeps its turn: see `TURN` in `vote.rs`.
const TURN: u64 = 750;

/// What is wrong in a world.
#[derive(Clone, Copy)]
enum Wrong {
    /// All that can be, also restarts of members if this is true.
    All(bool),
    /// This member is slow.
    Slow(usize),
}

/// A clock that runs too fast or too slow by up to 1/2000, with an offset.
struct Clock {
    offset: u64,
    parts: u64,
}

impl Clock {
    fn new(rng: &mut Rng, wrong: Wrong) -> Self {
        let (offset, parts) = match wrong {
            Wrong::Slow(_) => (0, 200_000),
            // Where members forget their epochs, the tokens grow by the clocks alone.
            Wrong::All(true) => (rng.u64(0..250), rng.u64(199_950..=200_050)),
            Wrong::All(false) => (rng.u64(0..4_000), rng.u64(199_950..=200_050)),
        };
        Self { offset, parts }
    }

    fn at(&self, now: u64) -> u64 {
        self.offset + now * self.parts / 200_000
    }

    fn wall(&self, now: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(1_000_000 + self.at(now))
    }
}

struct Member {
    clock: Clock,
    /// The ttl that it is asked for: see `Quorum::member_ttl`.
    ttl: u64,
    last: u64,
    /// The lease and when it ends by the member's clock.
    lease: Option<(u64, u64)>,
    /// The proposers that wait, each with the lease that it asks for.
    queue: Vec<(usize, u64)>,
    grants_from: u64,
}

impl Member {
    fn holder(&self, now: u64) -> Option<u64> {
        let is_live = |(_, ends): &(u64, u64)| self.clock.at(now) < *ends;
        self.lease.filter(is_live).map(|(lease, _)| lease)
    }

    /// Answers a proposal of an epoch, or grants with one of its own.
    fn propose(&mut self, now: u64, lease: u64, epoch: Option<u64>) -> Vote {
        let own = || lockkeeper_core::epoch_at(self.clock.wall(now)).max(self.last + 1);
        let epoch = epoch.unwrap_or_else(own);
        if self.clock.at(now) < self.grants_from {
            Vote::Failed
        } else if self.holder(now).is_some() {
            Vote::Busy
        } else if epoch <= self.last {
            Vote::TooSmall(self.last)
        } else {
            self.last = epoch;
            self.lease = Some((lease, self.clock.at(now) + self.ttl));
            Vote::Granted(epoch)
        }
    }

    fn renew(&mut self, now: u64, lease: u64) -> Answer {
        if self.holder(now) != Some(lease) {
            return Answer::Lost;
        }
        self.lease = Some((lease, self.clock.at(now) + self.ttl));
        Answer::Live
    }

    fn release(&mut self, lease: u64) {
        self.lease.take_if(|(held, _)| *held == lease);
        self.queue.retain(|(_, waiting)| *waiting != lease);
    }

    fn restart(&mut self, now: u64) {
        (self.last, self.lease) = (0, None);
        self.queue.clear();
        self.grants_from = self.clock.at(now) + self.ttl;
    }
}

#[derive(Clone, Copy)]
enum Message {
    Propose(Option<u64>),
    Queue,
    Renew(u64),
    Release,
    Vote(Vote),
    Answer(u64, Answer),
}

impl Message {
    fn is_to_member(self) -> bool {
        !matches!(self, Message::Vote(_) | Message::Answer(..))
    }
}

#[derive(Clone, Copy)]
struct Envelope {
    at: u64,
    member: usize,
    proposer: usize,
    lease: u64,
    message: Message,
}

enum State {
    Idle,
    /// Asks one member, or waits in its queue.
    Waits,
    Votes(Ballot),
    /// Asks those again that were busy, after this time.
    Pauses(u64),
    Holds {
        until: u64,
        renewal: Option<(u64, u64, Vec<Answer>)>,
    },
}

struct Proposer {
    clock: Clock,
    epochs: Epochs,
    state: State,
    /// The lease that it asks for, and when it began to.
    lease: u64,
    asked_at: u64,
    epoch: u64,
    /// When the last vote or wait began, and when the turn ends.
    began: u64,
    turn_ends: u64,
    /// The epochs with which members have granted the lease.
    granted: Vec<Option<u64>>,
    rounds: u64,
    paused_until: u64,
}

struct World {
    seed: u64,
    wrong: Wrong,
    ttl: u64,
    /// How long a majority that has answered is waited for, and how long a proposer keeps its turn.
    patience: u64,
    turn: u64,
    rng: Rng,
    now: u64,
    members: Vec<Member>,
    proposers: Vec<Proposer>,
    network: Vec<Envelope>,
    leases: u64,
    tokens: Vec<u64>,
}

impl World {
    fn with_faults(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (members, restarts) = (if rng.bool() { 3 } else { 5 }, rng.bool());
        let mut world = Self::new(seed, rng, Wrong::All(restarts), members, 3);
        (world.patience, world.turn) = (50, 100);
        world
    }

    fn with_slow_member(seed: u64, turn: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let members = if rng.bool() { 3 } else { 5 };
        let (slow, proposers) = (rng.usize(0..members), rng.usize(2..5));
        let mut world = Self::new(seed, rng, Wrong::Slow(slow), members, proposers);
        // No lease ends by itself. The patience is that of `hold.rs`.
        (world.ttl, world.patience, world.turn) = (u64::MAX / 2, 250, turn);
        world
            .members
            .iter_mut()
            .for_each(|it| it.ttl = u64::MAX / 2);
        world
    }

    fn new(seed: u64, mut rng: Rng, wrong: Wrong, members: usize, proposers: usize) -> Self {
        let ttl = 1_000;
        let member = |rng: &mut Rng| Member {
            clock: Clock::new(rng, wrong),
            ttl: ttl + ttl / 1_000 + 2,
            last: 0,
            lease: None,
            queue: Vec::new(),
            grants_from: 0,
        };
        let proposer = |rng: &mut Rng| Proposer {
            clock: Clock::new(rng, wrong),
            epochs: Epochs::default(),
            state: State::Idle,
            lease: 0,
            asked_at: 0,
            epoch: 0,
            began: 0,
            turn_ends: 0,
            granted: vec![None; members],
            rounds: 0,
            paused_until: 0,
        };
        Self {
            seed,
            wrong,
            ttl,
            patience: 0,
            turn: 0,
            members: (0..members).map(|_| member(&mut rng)).collect(),
            proposers: (0..proposers).map(|_| proposer(&mut rng)).collect(),
            rng,
            now: 0,
            network: Vec::new(),
            leases: 0,
            tokens: Vec::new(),
        }
    }

    fn send(&mut self, member: usize, proposer: usize, lease: u64, message: Message) {
        let delay = match (self.wrong, self.rng.u8(0..100)) {
            (Wrong::Slow(slow), _) if member == slow => SLOW + self.rng.u64(0..5),
            (Wrong::Slow(_), _) => self.rng.u64(1..4),
            (Wrong::All(_), 0..6) => return,
            (Wrong::All(_), 6..9) => self.rng.u64(0..3 * self.ttl),
            (Wrong::All(_), _) => self.rng.u64(0..20),
        };
        let mut at = self.now + delay;
        if let Wrong::Slow(_) = self.wrong {
            // The messages between a proposer and a member stay in order.
            let is_same_way = |it: &&Envelope| {
                it.member == member && it.message.is_to_member() == message.is_to_member()
            };
            let before = self.network.iter().filter(is_same_way).map(|it| it.at);
            at = before.fold(at, u64::max);
        }
        self.network.push(Envelope {
            at,
            member,
            proposer,
            lease,
            message,
        });
    }

    /// Sends to the members that have granted, or to the others. The first member comes last: it says whose turn is next.
    fn send_to(&mut self, at: usize, message: Message, have_granted: bool) {
        let (lease, granted) = (self.proposers[at].lease, self.proposers[at].granted.clone());
        for (member, granted) in granted.into_iter().enumerate().rev() {
            if granted.is_some() == have_granted {
                self.send(member, at, lease, message);
            }
        }
    }

    fn step(&mut self) {
        if let Wrong::All(restarts) = self.wrong {
            return self.step_with_faults(restarts);
        }
        self.now += 1;
        while let Some(at) = self.network.iter().position(|it| it.at <= self.now) {
            let envelope = self.network.remove(at);
            self.deliver(envelope);
        }
        (0..self.proposers.len()).for_each(|at| self.act(at));
    }

    fn step_with_faults(&mut self, restarts: bool) {
        let next = self.network.iter().map(|it| it.at).min();
        self.now += self.rng.u64(0..15);
        let proposer = self.rng.usize(0..self.proposers.len());
        match self.rng.u16(0..1_000) {
            0..4 if restarts => {
                let member = self.rng.usize(0..self.members.len());
                self.members[member].restart(self.now);
            }
            4..10 => {
                let pause = self.rng.u64(0..2 * self.ttl);
                self.proposers[proposer].paused_until = self.now + pause;
            }
            10..15 => self.now += self.rng.u64(0..self.ttl),
            _ => {}
        }
        if next.is_some_and(|next| next <= self.now) && self.rng.u8(0..4) > 0 {
            let is_due = |at: &usize| self.network[*at].at <= self.now;
            let due: Vec<_> = (0..self.network.len()).filter(is_due).collect();
            let at = due[self.rng.usize(0..due.len())];
            let envelope = self.network.swap_remove(at);
            self.deliver(envelope);
        } else if self.proposers[proposer].paused_until <= self.now {
            self.act(proposer);
        }
    }

    fn deliver(&mut self, envelope: Envelope) {
        let Envelope {
            member,
            proposer,
            lease,
            message,
            ..
        } = envelope;
        let now = self.now;
        if !message.is_to_member() && self.proposers[proposer].paused_until > now {
            // The process reads it when it resumes.
            let at = self.proposers[proposer].paused_until;
            return self.network.push(Envelope { at, ..envelope });
        }
        let store = &mut self.members[member];
        match message {
            Message::Propose(epoch) => {
                let vote = store.propose(now, lease, epoch);
                self.send(member, proposer, lease, Message::Vote(vote));
            }
            Message::Renew(round) => {
                let answer = store.renew(now, lease);
                self.send(member, proposer, lease, Message::Answer(round, answer));
            }
            Message::Queue => store.queue.push((proposer, lease)),
            Message::Release => store.release(lease),
            Message::Vote(vote) => self.voted(proposer, member, lease, vote),
            Message::Answer(round, answer) => self.answered(proposer, member, lease, round, answer),
        }
        // It may be the turn of the first in the queue.
        let store = &mut self.members[member];
        if let Some((first, lease)) = store.queue.first().copied()
            && let vote @ Vote::Granted(_) = store.propose(now, lease, None)
        {
            store.queue.remove(0);
            self.send(member, first, lease, Message::Vote(vote));
        }
    }

    fn voted(&mut self, at: usize, member: usize, lease: u64, vote: Vote) {
        let (now, turn) = (self.now, self.turn);
        let proposer = &mut self.proposers[at];
        // A lease that a member without one grants anew counts only if the last renewal is valid.
        let is_late = match proposer.state {
            State::Holds { until, .. } => proposer.clock.at(now) >= until,
            _ => matches!(proposer.state, State::Idle),
        };
        if lease != proposer.lease || is_late {
            if matches!(vote, Vote::Granted(_)) {
                self.send(member, at, lease, Message::Release);
            }
            return;
        }
        if let Vote::Granted(epoch) = vote {
            proposer.granted[member] = Some(epoch);
        }
        match (&mut proposer.state, vote) {
            (State::Votes(ballot), _) => ballot.record(member, vote),
            (State::Waits, Vote::Granted(epoch)) => {
                proposer.turn_ends = proposer.clock.at(now) + turn;
                self.vote(at, epoch);
            }
            (State::Waits, Vote::Busy) => self.give_way(at, member),
            (State::Waits, _) => self.give_up(at),
            _ => {}
        }
    }

    /// Begins a vote. Members that have granted are not asked again.
    fn vote(&mut self, at: usize, epoch: u64) {
        let proposer = &mut self.proposers[at];
        let granted = proposer.granted.iter();
        let votes = granted.map(|granted| granted.map_or(Vote::Pending, Vote::Granted));
        proposer.state = State::Votes(Ballot::new(epoch, votes.collect()));
        proposer.epoch = epoch;
        proposer.began = proposer.clock.at(self.now);
        self.send_to(at, Message::Propose(Some(epoch)), false);
    }

    fn answered(&mut self, at: usize, member: usize, lease: u64, round: u64, answer: Answer) {
        let proposer = &mut self.proposers[at];
        if lease == proposer.lease
            && let State::Holds { renewal, .. } = &mut proposer.state
            && let Some((current, _, answers)) = renewal
            && *current == round
        {
            answers[member] = answer;
            proposer.granted[member].take_if(|_| answer == Answer::Lost);
        }
    }

    fn give_up(&mut self, at: usize) {
        self.send_to(at, Message::Release, true);
        let proposer = &mut self.proposers[at];
        proposer.state = State::Idle;
        proposer.granted.fill(None);
    }

    /// Begins anew, under a lease of its own.
    fn begin(&mut self, at: usize) {
        self.leases += 1;
        let proposer = &mut self.proposers[at];
        let local = proposer.clock.at(self.now);
        (proposer.lease, proposer.asked_at, proposer.began) = (self.leases, local, local);
        proposer.turn_ends = local + self.turn;
        proposer.state = State::Waits;
    }

    /// Gives back all that was granted, also later. Goes on in the queue of a member, if it waits.
    fn give_way(&mut self, at: usize, member: usize) {
        self.give_up(at);
        if matches!(self.wrong, Wrong::Slow(_)) || self.rng.u8(0..4) == 0 {
            self.begin(at);
            self.send(member, at, self.leases, Message::Queue);
        }
    }

    fn act(&mut self, at: usize) {
        let now = self.now;
        let proposer = &mut self.proposers[at];
        let local = proposer.clock.at(now);
        let waited = local - proposer.began;
        let is_patient = matches!(self.wrong, Wrong::Slow(_));
        match &proposer.state {
            State::Idle => {
                let epoch = proposer.epochs.next(proposer.clock.wall(now), 0);
                self.begin(at);
                if is_patient || self.rng.bool() {
                    return self.vote(at, epoch);
                }
                // Not all proposers reach the same member first. After a refusal, that gets a proposal, too.
                let first = self.rng.usize(0..self.members.len());
                let epoch = (self.rng.u8(0..3) == 0).then_some(epoch);
                self.send(first, at, self.leases, Message::Propose(epoch));
            }
            State::Waits if waited > 2 * self.patience && !is_patient => self.give_up(at),
            State::Waits => {}
            State::Votes(ballot) => {
                let limit = match ballot.has_answers() {
                    true => self.patience,
                    false => 2 * self.patience,
                };
                if let Some(decision) = ballot.decide(waited >= limit) {
                    let votes = ballot.votes().to_vec();
                    self.decided(at, decision, &votes);
                }
            }
            State::Pauses(until) if local >= *until => self.vote(at, self.proposers[at].epoch),
            State::Pauses(_) => {}
            State::Holds { .. } => self.hold(at, local),
        }
    }

    fn decided(&mut self, at: usize, decision: Decision, votes: &[Vote]) {
        let (now, is_slow) = (self.now, matches!(self.wrong, Wrong::Slow(_)));
        let pause = self.rng.u64(1..16);
        let proposer = &mut self.proposers[at];
        let local = proposer.clock.at(now);
        let position = |wanted| votes.iter().position(|vote| *vote == wanted);
        let has_turn = local < proposer.turn_ends && proposer.granted.iter().any(Option::is_some);
        // See `Acquisition::keep`.
        let is_winnable = |epoch| {
            let of_epoch = proposer.granted.iter().filter(|it| **it == epoch).count();
            let counted = epoch.map_or(0, |_| of_epoch);
            let granted = proposer.granted.iter().flatten().count();
            let failed = votes.iter().filter(|vote| **vote == Vote::Failed).count();
            counted + votes.len() >= majority(votes.len()) + granted + failed
        };
        match decision {
            Decision::Won => self.win(at),
            Decision::Outdated(last) if is_winnable(None) && (is_slow || self.rng.bool()) => {
                let wall = proposer.clock.wall(now);
                proposer.epochs.learn(last, wall);
                // What was granted is kept; the epochs of the others are counted alone.
                let epoch = proposer.epochs.next(wall, 0);
                proposer.asked_at = local;
                self.vote(at, epoch);
            }
            Decision::Outdated(last) => {
                proposer.epochs.learn(last, proposer.clock.wall(now));
                self.give_up(at);
            }
            Decision::Outage => {
                assert!(!is_slow, "a rival is no outage");
                self.give_up(at);
            }
            Decision::Behind(first) => self.give_way(at, first),
            Decision::Held | Decision::Contested => {
                match has_turn && is_winnable(Some(proposer.epoch)) {
                    true => proposer.state = State::Pauses(local + pause),
                    false => self.give_way(at, position(Vote::Busy).unwrap_or(0)),
                }
            }
        }
    }

    fn win(&mut self, at: usize) {
        let (now, seed) = (self.now, self.seed);
        let proposer = &mut self.proposers[at];
        let until = proposer.asked_at + self.ttl - MARGIN;
        if proposer.clock.at(now) >= until {
            return self.give_up(at);
        }
        let renewal = None;
        proposer.state = State::Holds { until, renewal };
        let (epoch, last) = (proposer.epoch, self.tokens.last().copied().unwrap_or(0));
        assert!(
            epoch > last,
            "seed {seed}: the token {epoch} is after {last}"
        );
        self.tokens.push(epoch);
        let is_sure = |proposer: &Proposer| match proposer.state {
            State::Holds { until, .. } => proposer.clock.at(now) < until,
            _ => false,
        };
        let sure = self.proposers.iter().filter(|it| is_sure(it)).count();
        assert!(sure == 1, "seed {seed}: {sure} holders at {now}");
    }

    fn hold(&mut self, at: usize, local: u64) {
        let proposer = &mut self.proposers[at];
        let State::Holds { until, renewal } = &mut proposer.state else {
            return;
        };
        if local >= *until || self.rng.u8(0..8) == 0 {
            return self.give_up(at);
        }
        match renewal {
            _ if matches!(self.wrong, Wrong::Slow(_)) => {}
            Some((_, began, answers)) => match tally(answers) {
                Tally::Live => {
                    *until = (*until).max(*began + self.ttl - MARGIN);
                    *renewal = None;
                    self.send_to(at, Message::Propose(None), false);
                }
                Tally::Lost => self.give_up(at),
                Tally::Open | Tally::Unknown => {
                    let began = *began;
                    renewal.take_if(|_| local > began + 200);
                }
            },
            None => {
                proposer.rounds += 1;
                let granted = proposer.granted.iter();
                let answers = granted.map(|it| it.map_or(Answer::Lost, |_| Answer::Pending));
                *renewal = Some((proposer.rounds, local, answers.collect()));
                let round = proposer.rounds;
                self.send_to(at, Message::Renew(round), true);
            }
        }
    }
}

#[test]
fn holders_exclude_each_other_and_tokens_grow_in_all_schedules() {
    const SCHEDULES: u64 = 8_000;
    let grants = |seed| {
        let mut world = World::with_faults(seed);
        (0..400).for_each(|_| world.step());
        world.tokens.len() as u64
    };
    let grants: u64 = (0..SCHEDULES).map(grants).sum();
    assert!(grants > SCHEDULES, "only {grants} in {SCHEDULES} schedules");
}

/// Returns in how many schedules the grants stop.
fn stalls(turn: u64) -> usize {
    let is_stalled = |seed| {
        let mut world = World::with_slow_member(seed, turn);
        (0..5_000).for_each(|_| world.step());
        let before = world.tokens.len();
        (0..10_000).for_each(|_| world.step());
        world.tokens.len() < before + 5
    };
    (0..60).filter(|seed| is_stalled(*seed)).count()
}

#[test]
fn grants_go_on_while_a_member_is_slow() {
    assert_eq!(stalls(TURN), 0);
}
