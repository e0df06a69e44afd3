//! Runs the decisions in a world where messages are late or lost, members restart empty, proposers pause, and all
//! clocks run apart; over many thousand schedules, each from its seed.
//!
//! Never are two proposers sure of the lock at the same time, and the tokens of all grants grow.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastrand::Rng;

use super::*;
use crate::epochs::Epochs;

const SCHEDULES: u64 = 8_000;
const STEPS: usize = 300;
/// Times are in milliseconds.
const TTL: u64 = 1_000;
/// What members add to the ttl: see `Quorum::member_ttl`.
const DRIFT: u64 = TTL / 1_000 + 2;
const MARGIN: u64 = 50;
const PROPOSERS: usize = 3;

/// A clock that runs too fast or too slow by up to 1/2000, with an offset.
struct Clock {
    offset: u64,
    parts: u64,
}

impl Clock {
    fn new(rng: &mut Rng, spread: u64) -> Self {
        let (offset, parts) = (rng.u64(0..spread), rng.u64(199_950..=200_050));
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
    last: u64,
    /// The lease and when it ends by the member's clock.
    lease: Option<(u64, u64)>,
    grants_from: u64,
}

impl Member {
    fn holder(&self, now: u64) -> Option<u64> {
        let is_live = |(_, ends): &(u64, u64)| self.clock.at(now) < *ends;
        self.lease.filter(is_live).map(|(lease, _)| lease)
    }

    fn grant(&mut self, now: u64, lease: u64, epoch: u64) -> Vote {
        self.last = epoch;
        self.lease = Some((lease, self.clock.at(now) + TTL + DRIFT));
        Vote::Granted(epoch)
    }

    fn propose(&mut self, now: u64, lease: u64, epoch: Option<u64>) -> Vote {
        if self.clock.at(now) < self.grants_from {
            return Vote::Failed;
        }
        match (self.holder(now), epoch) {
            (Some(_), _) => Vote::Busy,
            (None, Some(epoch)) if epoch <= self.last => Vote::TooSmall(self.last),
            (None, Some(epoch)) => self.grant(now, lease, epoch),
            (None, None) => {
                let clock = lockkeeper_core::epoch_at(self.clock.wall(now));
                self.grant(now, lease, clock.max(self.last + 1))
            }
        }
    }

    fn renew(&mut self, now: u64, lease: u64) -> Answer {
        if self.holder(now) != Some(lease) {
            return Answer::Lost;
        }
        self.lease = Some((lease, self.clock.at(now) + TTL + DRIFT));
        Answer::Live
    }

    fn release(&mut self, lease: u64) {
        if self.lease.is_some_and(|(held, _)| held == lease) {
            self.lease = None;
        }
    }

    fn restart(&mut self, now: u64) {
        self.last = 0;
        self.lease = None;
        self.grants_from = self.clock.at(now) + TTL + DRIFT;
    }
}

#[derive(Clone, Copy)]
enum Message {
    Propose(Option<u64>),
    Renew(u64),
    Release,
    Vote(Vote),
    Answer(u64, Answer),
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
    began: u64,
    epoch: u64,
    /// Which members have granted the lease.
    granted: Vec<bool>,
    rounds: u64,
    paused_until: u64,
}

struct World {
    seed: u64,
    /// Whether members restart empty.
    restarts: bool,
    rng: Rng,
    now: u64,
    members: Vec<Member>,
    proposers: Vec<Proposer>,
    network: Vec<Envelope>,
    leases: u64,
    tokens: Vec<u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let members = if rng.bool() { 3 } else { 5 };
        // Where members forget their epochs, the tokens grow by the clocks alone.
        let restarts = rng.bool();
        let spread = if restarts { TTL / 4 } else { 4 * TTL };
        let member = |rng: &mut Rng| Member {
            clock: Clock::new(rng, spread),
            last: 0,
            lease: None,
            grants_from: 0,
        };
        let proposer = |rng: &mut Rng| Proposer {
            clock: Clock::new(rng, spread),
            epochs: Epochs::default(),
            state: State::Idle,
            lease: 0,
            began: 0,
            epoch: 0,
            granted: vec![false; members],
            rounds: 0,
            paused_until: 0,
        };
        Self {
            seed,
            restarts,
            members: (0..members).map(|_| member(&mut rng)).collect(),
            proposers: (0..PROPOSERS).map(|_| proposer(&mut rng)).collect(),
            rng,
            now: 0,
            network: Vec::new(),
            leases: 0,
            tokens: Vec::new(),
        }
    }

    fn send(&mut self, member: usize, proposer: usize, lease: u64, message: Message) {
        if self.rng.u8(0..100) < 6 {
            return;
        }
        let delay = match self.rng.u8(0..100) {
            0..3 => self.rng.u64(0..3 * TTL),
            _ => self.rng.u64(0..20),
        };
        let at = self.now + delay;
        let envelope = Envelope {
            at,
            member,
            proposer,
            lease,
            message,
        };
        self.network.push(envelope);
    }

    fn ask_all(&mut self, at: usize, message: Message, is_asked: impl Fn(bool) -> bool) {
        let (lease, granted) = (self.proposers[at].lease, self.proposers[at].granted.clone());
        for (member, granted) in granted.into_iter().enumerate() {
            if is_asked(granted) {
                self.send(member, at, lease, message);
            }
        }
    }

    fn step(&mut self) {
        let next = self.network.iter().map(|it| it.at).min();
        self.now += self.rng.u64(0..15);
        match self.rng.u16(0..1_000) {
            0..4 if self.restarts => {
                let member = self.rng.usize(0..self.members.len());
                self.members[member].restart(self.now);
            }
            4..10 => {
                let pause = self.now + self.rng.u64(0..2 * TTL);
                let at = self.rng.usize(0..PROPOSERS);
                self.proposers[at].paused_until = pause;
            }
            10..15 => self.now += self.rng.u64(0..TTL),
            _ => {}
        }
        if next.is_some_and(|next| next <= self.now) && self.rng.u8(0..4) > 0 {
            let due: Vec<_> = (0..self.network.len())
                .filter(|at| self.network[*at].at <= self.now)
                .collect();
            let at = due[self.rng.usize(0..due.len())];
            let envelope = self.network.swap_remove(at);
            self.deliver(envelope);
        } else {
            let at = self.rng.usize(0..PROPOSERS);
            if self.proposers[at].paused_until <= self.now {
                self.act(at);
            }
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
            Message::Release => store.release(lease),
            _ if self.proposers[proposer].paused_until > now => {
                // The process reads it when it resumes.
                let at = self.proposers[proposer].paused_until;
                self.network.push(Envelope { at, ..envelope });
            }
            Message::Vote(vote) => self.voted(proposer, member, lease, vote),
            Message::Answer(round, answer) => self.answered(proposer, member, lease, round, answer),
        }
    }

    fn voted(&mut self, at: usize, member: usize, lease: u64, vote: Vote) {
        let proposer = &mut self.proposers[at];
        let is_grant = matches!(vote, Vote::Granted(_));
        // A lease that a member without one grants anew counts only if the last renewal is valid.
        let is_late = match proposer.state {
            State::Holds { until, .. } => proposer.clock.at(self.now) >= until,
            _ => matches!(proposer.state, State::Idle),
        };
        if lease != proposer.lease || is_late {
            if is_grant {
                self.send(member, at, lease, Message::Release);
            }
            return;
        }
        proposer.granted[member] |= is_grant;
        match (&mut proposer.state, vote) {
            (State::Votes(ballot), _) => ballot.record(member, vote),
            (State::Waits, Vote::Granted(epoch)) => self.vote(at, epoch),
            (State::Waits, _) => self.give_up(at),
            _ => {}
        }
    }

    /// Begins a vote. Members that have granted are not asked again.
    fn vote(&mut self, at: usize, epoch: u64) {
        let proposer = &mut self.proposers[at];
        let own = proposer.epoch;
        let votes = proposer.granted.iter().map(|granted| match granted {
            true => Vote::Granted(if own == 0 { epoch } else { own }),
            false => Vote::Pending,
        });
        proposer.state = State::Votes(Ballot::new(epoch, votes.collect()));
        proposer.epoch = epoch;
        self.ask_all(at, Message::Propose(Some(epoch)), |granted| !granted);
    }

    fn answered(&mut self, at: usize, member: usize, lease: u64, round: u64, answer: Answer) {
        let proposer = &mut self.proposers[at];
        if lease != proposer.lease {
            return;
        }
        if let State::Holds {
            renewal: Some((current, _, answers)),
            ..
        } = &mut proposer.state
            && *current == round
        {
            answers[member] = answer;
            proposer.granted[member] &= answer != Answer::Lost;
        }
    }

    fn give_up(&mut self, at: usize) {
        self.ask_all(at, Message::Release, |granted| granted);
        let proposer = &mut self.proposers[at];
        proposer.state = State::Idle;
        proposer.granted.fill(false);
        proposer.epoch = 0;
    }

    fn act(&mut self, at: usize) {
        let now = self.now;
        let local = self.proposers[at].clock.at(now);
        match &self.proposers[at].state {
            State::Idle => {
                self.leases += 1;
                let proposer = &mut self.proposers[at];
                (proposer.lease, proposer.began) = (self.leases, local);
                proposer.state = State::Waits;
                // After a refusal, the first member gets a proposal, too.
                let proposed = match self.rng.u8(0..3) {
                    0 => Some(proposer.epochs.next(proposer.clock.wall(now), 0)),
                    _ => None,
                };
                // Not all proposers reach the same member first.
                let first = self.rng.usize(0..self.members.len());
                self.send(first, at, self.leases, Message::Propose(proposed));
            }
            State::Waits => {
                if local > self.proposers[at].began + 100 {
                    self.give_up(at);
                }
            }
            State::Votes(ballot) => {
                let waited = local - self.proposers[at].began;
                let decision = ballot.decide(waited >= 100);
                self.decided(at, decision);
            }
            State::Holds { .. } => self.hold(at, local),
        }
    }

    fn decided(&mut self, at: usize, decision: Option<Decision>) {
        match decision {
            None => {}
            Some(Decision::Won) => self.win(at),
            Some(Decision::Outdated(last)) if self.rng.bool() => {
                let now = self.now;
                let proposer = &mut self.proposers[at];
                let wall = proposer.clock.wall(now);
                proposer.epochs.learn(last, wall);
                // What was granted is kept; the epochs of the others are counted alone.
                let epoch = proposer.epochs.next(wall, 0);
                proposer.began = proposer.clock.at(now);
                self.vote(at, epoch);
            }
            Some(_) => self.give_up(at),
        }
    }

    fn win(&mut self, at: usize) {
        let now = self.now;
        let proposer = &mut self.proposers[at];
        let until = proposer.began + TTL - MARGIN;
        if proposer.clock.at(now) >= until {
            self.give_up(at);
            return;
        }
        proposer.state = State::Holds {
            until,
            renewal: None,
        };
        let epoch = proposer.epoch;
        if let Some(last) = self.tokens.last() {
            let seed = self.seed;
            assert!(
                epoch > *last,
                "seed {seed}: the token {epoch} comes after {last}"
            );
        }
        self.tokens.push(epoch);
        for (other, proposer) in self.proposers.iter().enumerate() {
            if let State::Holds { until, .. } = proposer.state {
                let is_sure = proposer.clock.at(now) < until;
                assert!(
                    other == at || !is_sure,
                    "seed {}: two holders at {now}",
                    self.seed
                );
            }
        }
    }

    fn hold(&mut self, at: usize, local: u64) {
        let proposer = &mut self.proposers[at];
        let State::Holds { until, renewal } = &mut proposer.state else {
            return;
        };
        if local >= *until || self.rng.u8(0..8) == 0 {
            self.give_up(at);
            return;
        }
        match renewal {
            Some((_, began, answers)) => match tally(answers) {
                Tally::Live => {
                    *until = (*until).max(*began + TTL - MARGIN);
                    *renewal = None;
                    self.ask_all(at, Message::Propose(None), |granted| !granted);
                }
                Tally::Lost => self.give_up(at),
                Tally::Open | Tally::Unknown => {
                    if local > *began + 200 {
                        *renewal = None;
                    }
                }
            },
            None => {
                proposer.rounds += 1;
                let round = proposer.rounds;
                let answer = |granted: &bool| match granted {
                    true => Answer::Pending,
                    false => Answer::Lost,
                };
                let answers = proposer.granted.iter().map(answer).collect();
                *renewal = Some((round, local, answers));
                self.ask_all(at, Message::Renew(round), |granted| granted);
            }
        }
    }
}

#[test]
fn holders_exclude_each_other_and_tokens_grow_in_all_schedules() {
    let mut grants = 0;
    for seed in 0..SCHEDULES {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        grants += world.tokens.len();
    }
    assert!(
        grants as u64 > SCHEDULES,
        "only {grants} grants in {SCHEDULES} schedules"
    );
}

/// How long a majority that has answered waits for the others, and how long a proposer keeps its turn: see `PATIENCE` and
/// `TURN`.
const PATIENCE: u64 = 250;
const TURN: u64 = 750;
/// How long a message to or from the slow member takes.
const SLOW: u64 = 150;

/// Proposers that want one name again and again, members of which one is slow, and no other fault.
struct Contention {
    rng: Rng,
    now: u64,
    slow: usize,
    turn: u64,
    /// The lease that each member has granted, and those that wait there.
    members: Vec<(Option<u64>, Vec<u64>)>,
    proposers: Vec<Contender>,
    network: Vec<Note>,
    leases: u64,
    grants: usize,
}

struct Contender {
    lease: u64,
    doing: Doing,
}

enum Doing {
    /// Waits at a member for its grant.
    Waits,
    Votes {
        ballot: Ballot,
        began: u64,
        turn_ends: u64,
    },
    /// Asks those again that were busy.
    Pauses {
        ballot: Ballot,
        until: u64,
        turn_ends: u64,
    },
    Holds(u64),
}

/// A message about a lease, which is its proposer's while that goes on with it.
struct Note {
    at: u64,
    member: usize,
    lease: u64,
    says: Says,
}

#[derive(Clone, Copy)]
enum Says {
    Propose,
    Queue,
    Release,
    Granted,
    Busy,
}

impl Contention {
    fn new(seed: u64, turn: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let members = if rng.bool() { 3 } else { 5 };
        let mut world = Self {
            now: 0,
            slow: rng.usize(0..members),
            turn,
            members: (0..members).map(|_| (None, Vec::new())).collect(),
            proposers: Vec::new(),
            network: Vec::new(),
            leases: 0,
            grants: 0,
            rng,
        };
        for at in 0..world.rng.usize(2..5) {
            let (lease, doing) = (0, Doing::Waits);
            world.proposers.push(Contender { lease, doing });
            world.vote(at, vec![Vote::Pending; members], turn);
        }
        world
    }

    fn send(&mut self, member: usize, lease: u64, says: Says) {
        let delay = match member == self.slow {
            true => SLOW + self.rng.u64(0..5),
            false => self.rng.u64(1..4),
        };
        // The messages between a proposer and a member stay in order.
        let last = self.network.iter().filter(|it| it.member == member);
        let is_to_member = |says| matches!(says, Says::Propose | Says::Queue | Says::Release);
        let last = last.filter(|it| is_to_member(it.says) == is_to_member(says));
        let last = last.map(|it| it.at).max().unwrap_or(0);
        let at = last.max(self.now + delay);
        let note = Note {
            at,
            member,
            lease,
            says,
        };
        self.network.push(note);
    }

    /// Begins a vote under a lease of its own, unless some members have granted already.
    fn vote(&mut self, at: usize, votes: Vec<Vote>, turn_ends: u64) {
        if !votes.contains(&Vote::Granted(1)) {
            self.leases += 1;
            self.proposers[at].lease = self.leases;
        }
        let lease = self.proposers[at].lease;
        for (member, vote) in votes.iter().enumerate() {
            if *vote == Vote::Pending {
                self.send(member, lease, Says::Propose);
            }
        }
        self.proposers[at].doing = Doing::Votes {
            ballot: Ballot::new(1, votes),
            began: self.now,
            turn_ends,
        };
    }

    /// Gives back all that was granted, also later, and waits at a member.
    fn give_way(&mut self, at: usize, votes: &[Vote], member: usize) {
        let lease = self.proposers[at].lease;
        for (member, vote) in votes.iter().enumerate().rev() {
            if matches!(vote, Vote::Granted(_)) {
                self.send(member, lease, Says::Release);
            }
        }
        self.leases += 1;
        self.proposers[at] = Contender {
            lease: self.leases,
            doing: Doing::Waits,
        };
        self.send(member, self.leases, Says::Queue);
    }

    fn step(&mut self) {
        self.now += 1;
        while let Some(at) = self.network.iter().position(|it| it.at <= self.now) {
            let note = self.network.remove(at);
            self.deliver(&note);
        }
        for at in 0..self.proposers.len() {
            self.act(at);
        }
    }

    fn deliver(&mut self, note: &Note) {
        let Note { member, lease, .. } = *note;
        let (holder, queue) = &mut self.members[member];
        match note.says {
            Says::Propose | Says::Queue if holder.is_none() => {
                *holder = Some(lease);
                self.send(member, lease, Says::Granted);
            }
            Says::Propose => self.send(member, lease, Says::Busy),
            Says::Queue => queue.push(lease),
            Says::Release if *holder == Some(lease) => {
                *holder = (!queue.is_empty()).then(|| queue.remove(0));
                if let Some(next) = *holder {
                    self.send(member, next, Says::Granted);
                }
            }
            Says::Release => {}
            says => self.answered(member, lease, matches!(says, Says::Granted)),
        }
    }

    fn answered(&mut self, member: usize, lease: u64, is_granted: bool) {
        let vote = match is_granted {
            true => Vote::Granted(1),
            false => Vote::Busy,
        };
        let owner = self.proposers.iter().position(|it| it.lease == lease);
        match owner.map(|at| (at, &mut self.proposers[at].doing)) {
            Some((_, Doing::Votes { ballot, .. })) => ballot.record(member, vote),
            Some((at, Doing::Waits)) if is_granted => {
                let mut votes = vec![Vote::Pending; self.members.len()];
                votes[member] = vote;
                self.vote(at, votes, self.now + self.turn);
            }
            // A majority was there without it.
            Some((_, Doing::Holds(_))) => {}
            _ if is_granted => self.send(member, lease, Says::Release),
            _ => {}
        }
    }

    fn act(&mut self, at: usize) {
        let now = self.now;
        match &self.proposers[at].doing {
            Doing::Votes {
                ballot,
                began,
                turn_ends,
            } => {
                let is_over = ballot.has_answers() && now >= began + PATIENCE;
                let (decision, turn_ends) = (ballot.decide(is_over), *turn_ends);
                let votes = ballot.votes().to_vec();
                let busy = votes.iter().position(|vote| *vote == Vote::Busy);
                match decision {
                    None => {}
                    Some(Decision::Won) => {
                        self.grants += 1;
                        self.proposers[at].doing = Doing::Holds(now + 5);
                    }
                    Some(Decision::Behind(first)) => self.give_way(at, &votes, first),
                    // All members answer.
                    Some(Decision::Outage) => panic!("a rival is no outage: {votes:?}"),
                    Some(_) if now < turn_ends && votes.contains(&Vote::Granted(1)) => {
                        let ballot = Ballot::new(1, votes);
                        let until = now + self.rng.u64(1..16);
                        self.proposers[at].doing = Doing::Pauses {
                            ballot,
                            until,
                            turn_ends,
                        };
                    }
                    Some(_) => self.give_way(at, &votes, busy.unwrap_or(0)),
                }
            }
            Doing::Pauses {
                ballot,
                until,
                turn_ends,
            } if now >= *until => {
                let turn_ends = *turn_ends;
                let again = ballot.votes().iter().map(|vote| match vote {
                    Vote::Granted(epoch) => Vote::Granted(*epoch),
                    _ => Vote::Pending,
                });
                let again = again.collect();
                self.vote(at, again, turn_ends);
            }
            Doing::Holds(until) if now >= *until => {
                let lease = self.proposers[at].lease;
                for member in (0..self.members.len()).rev() {
                    self.send(member, lease, Says::Release);
                }
                let votes = vec![Vote::Pending; self.members.len()];
                self.vote(at, votes, now + self.turn);
            }
            _ => {}
        }
    }
}

/// Returns in how many schedules the grants stop.
fn stalls(turn: u64) -> usize {
    let is_stalled = |seed| {
        let mut world = Contention::new(seed, turn);
        (0..5_000).for_each(|_| world.step());
        let before = world.grants;
        (0..10_000).for_each(|_| world.step());
        world.grants < before + 5
    };
    (0..60).filter(|seed| is_stalled(*seed)).count()
}

#[test]
fn grants_go_on_while_a_member_is_slow() {
    assert_eq!(stalls(TURN), 0);
}
