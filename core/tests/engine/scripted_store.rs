//! A store that does what a test says, on a clock that the test moves. It never grants names that end with `broken`.
//! If it takes batches, it keeps names that begin with `far` in a part of its own. It may have more parts: a name that
//! begins with a number is in that part.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Backend, Capabilities, Capability, Clock, Error, ErrorKind, Grant, HostInstant,
    LeaseId, LeasePolicy, LeaseVerifier, LockKeeper, LockKeeperBuilder, ManualClock, Mode,
    Operation, Owner, Proof, ProofValue, ReleaseDispatch, Released, Renewal, SentRelease,
    StoreInfo,
};

use crate::answers::{Grants, Releases, Renewals, Sends};
use crate::steps::{LIMIT, SECOND};

#[derive(Default, Debug)]
pub(crate) struct State {
    /// The holders of each name.
    held: HashMap<String, Vec<Holder>>,
    epoch: u64,
    pub(crate) grants: Grants,
    pub(crate) renewals: HashMap<String, Renewals>,
    pub(crate) releases: Releases,
    pub(crate) sends: Sends,
    /// The number of operations of each batch, and whether a keeper's own thread sent it.
    pub(crate) batches: Vec<usize>,
    pub(crate) batches_by_keepers: Vec<bool>,
    /// The end of each request, in order, and its owner.
    pub(crate) ends: Vec<HostInstant>,
    pub(crate) owners: Vec<Owner>,
    /// Whether no call to abandon a request returns.
    pub(crate) abandons_hang: bool,
    /// For how long the last renewal may wait for its answer.
    pub(crate) renewal_limit: Duration,
    /// For how long the last renewal asked.
    pub(crate) renewal_ttl: Duration,
    pub(crate) verifiers: Vec<LeaseVerifier>,
    /// The name of each release, in order, and whether a keeper's own thread asked for it.
    releases_by_keepers: Vec<(String, bool)>,
    /// The number of calls so far, by name and verb.
    calls: HashMap<(String, &'static str), usize>,
}

/// A holder of a name.
#[derive(Debug)]
struct Holder {
    mode: Mode,
    slot: u32,
    epoch: u64,
    owner: Owner,
}

impl State {
    /// Returns the slot of a new holder of a name; `None` if the present ones exclude it.
    fn free_slot(&self, name: &str, mode: Mode) -> Option<u32> {
        let all = self.held.get(name).map_or(&[][..], Vec::as_slice);
        let is_other = |holder: &&Holder| holder.mode.is_permit() == mode.is_permit();
        let others: Vec<_> = all.iter().filter(is_other).collect();
        match mode {
            Mode::Exclusive => others.is_empty().then_some(0),
            Mode::Shared => others.iter().all(|it| it.mode == Mode::Shared).then_some(0),
            Mode::Permit { limit } => {
                (0..limit).find(|slot| others.iter().all(|it| it.slot != *slot))
            }
        }
    }

    fn holds(&self, lease: &ScriptedLease) -> bool {
        let held = self.held.get(&lease.name);
        held.is_some_and(|held| held.iter().any(|it| it.epoch == lease.epoch))
    }

    fn forget(&mut self, lease: &ScriptedLease) {
        if let Some(held) = self.held.get_mut(&lease.name) {
            held.retain(|it| it.epoch != lease.epoch);
        }
    }

    pub(crate) fn requests(&self) -> usize {
        let requests = self
            .calls
            .iter()
            .filter(|((_, verb), _)| *verb == "acquire");
        requests.map(|(_, count)| count).sum()
    }

    pub(crate) fn count(&self, name: &str, verb: &'static str) -> usize {
        let count = self.calls.get(&(name.to_owned(), verb));
        count.copied().unwrap_or_default()
    }
}

#[derive(Debug, Default)]
pub(crate) struct ScriptedStore {
    pub(crate) clock: ManualClock,
    /// How many operations it takes in one call; 0 is one.
    batch: usize,
    /// How many parts it has; 0 is one, or two with batches.
    parts: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl ScriptedStore {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A store that takes several operations in one call.
    pub(crate) fn with_batches() -> Arc<Self> {
        Arc::new(Self {
            batch: 8,
            ..Self::default()
        })
    }

    pub(crate) fn with_parts(parts: usize) -> Arc<Self> {
        Arc::new(Self {
            parts,
            ..Self::default()
        })
    }

    /// A keeper with a ttl of 12 s: renewed every 4 s, and after 1 s where that failed.
    pub(crate) fn keeper(self: &Arc<Self>) -> LockKeeper {
        self.builder().build().unwrap()
    }

    pub(crate) fn builder(self: &Arc<Self>) -> LockKeeperBuilder {
        let ttl = 12 * SECOND;
        LockKeeper::builder(Arc::clone(self) as _)
            .lease(LeasePolicy::Renewed { ttl })
            .clock(Arc::new(self.clock.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap()
    }

    fn record(&self, name: &str, verb: &'static str) -> MutexGuard<'_, State> {
        let mut state = self.state();
        *state.calls.entry((name.to_owned(), verb)).or_default() += 1;
        self.changed.notify_all();
        state
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    pub(crate) fn grants(&self, how: Grants) {
        self.set(|state| state.grants = how);
    }

    pub(crate) fn releases(&self, how: Releases) {
        self.set(|state| state.releases = how);
    }

    pub(crate) fn sends(&self, how: Sends) {
        self.set(|state| state.sends = how);
    }

    /// Asks all keepers to verify their leases. Returns whether any keeper still lives.
    pub(crate) fn verify(&self) -> bool {
        let verifiers = self.state().verifiers.clone();
        verifiers.iter().filter(|keeper| keeper.verify()).count() > 0
    }

    /// Returns for each request to release `name` whether a keeper's own thread made it.
    pub(crate) fn releases_by_keepers(&self, name: &str) -> Vec<bool> {
        let state = self.state();
        let releases = state.releases_by_keepers.iter();
        let releases = releases.filter(|(of, _)| of == name);
        releases.map(|(_, by_keeper)| *by_keeper).collect()
    }

    pub(crate) fn renewals(&self, name: &str, how: Renewals) {
        self.set(|state| {
            state.renewals.insert(name.to_owned(), how);
        });
    }

    /// Returns how often `verb` was called for `name`.
    pub(crate) fn count(&self, name: &str, verb: &'static str) -> usize {
        self.state().count(name, verb)
    }

    /// Returns how often any name was requested.
    pub(crate) fn requests(&self) -> usize {
        self.state().requests()
    }

    /// Blocks until `verb` was called `count` times for `name`.
    pub(crate) fn wait_for(&self, name: &str, verb: &'static str, count: usize) {
        let is_missing = |state: &mut State| state.count(name, verb) < count;
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, LIMIT, is_missing);
        let is_late = waited.unwrap().1.timed_out();
        assert!(!is_late, "{verb} of {name} was not called {count} times");
    }

    fn renew(
        &self,
        lease: &ScriptedLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        let mut state = self.record(&lease.name, "renew");
        state.renewal_ttl = ttl;
        state.renewal_limit = deadline.saturating_since(self.clock.now());
        loop {
            let how = state.renewals.get(&lease.name).copied();
            match how.unwrap_or_default() {
                Renewals::Hang => state = self.wait(state),
                Renewals::Work => return Ok(Renewal::Renewed),
                Renewals::Late(span) => {
                    self.clock.advance(span);
                    return Ok(Renewal::Renewed);
                }
                Renewals::Lost => {
                    state.forget(lease);
                    return Ok(Renewal::Lost);
                }
                Renewals::Panic => {
                    drop(state);
                    panic!("as the test wants")
                }
                Renewals::Fail => return Err(no_reply()),
                Renewals::Unreachable => return Err(unavailable()),
            }
        }
    }

    fn release_by(
        &self,
        verb: &'static str,
        lease: &mut ScriptedLease,
        deadline: HostInstant,
    ) -> Result<Released, Error> {
        let mut state = self.record(&lease.name, verb);
        let by_keeper = is_keepers_thread();
        state
            .releases_by_keepers
            .push((lease.name.clone(), by_keeper));
        loop {
            match state.releases {
                Releases::Unreachable => return Err(unavailable()),
                Releases::PoolExhausted => {
                    return Err(pool_exhausted());
                }
                Releases::Panic => {
                    drop(state);
                    panic!("as the test wants")
                }
                Releases::HangFor(name) if name != lease.name => break,
                Releases::Hang | Releases::HangFor(_) if deadline <= self.clock.now() + SECOND => {
                    return Err(no_reply());
                }
                Releases::Hang | Releases::HangFor(_) => state = self.wait(state),
                Releases::ReplyLostLate if state.holds(lease) => state.forget(lease),
                Releases::ReplyLostLate => {
                    while state.releases == Releases::ReplyLostLate {
                        state = self.wait(state);
                    }
                    return Err(no_reply());
                }
                Releases::Work | Releases::ReplyLost | Releases::RequestLost => break,
            }
        }
        if !state.holds(lease) {
            return Ok(Released::AlreadyLost);
        }
        let how = state.releases;
        if how != Releases::RequestLost {
            state.forget(lease);
        }
        match how {
            Releases::ReplyLost | Releases::RequestLost => {
                state.releases = Releases::Work;
                Err(no_reply())
            }
            _ => Ok(Released::Done),
        }
    }

    /// Moves the clock on by the time between two renewals, and waits until there is one more.
    pub(crate) fn next_renewal(&self, name: &str) {
        let before = self.count(name, "renew");
        self.clock.advance(4 * SECOND);
        self.wait_for(name, "renew", before + 1);
    }
}

impl StoreInfo for ScriptedStore {
    fn backend(&self) -> &'static str {
        "scripted"
    }

    fn location(&self) -> String {
        "scripted:".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
            .with_batch(self.batch)
            .with_parts(self.parts.max(if self.batch == 0 { 1 } else { 2 }))
            .with(Capability::Shared)
            .with(Capability::Tickets)
            .with(Capability::Permits)
    }
}

impl Backend for ScriptedStore {
    type Lease = ScriptedLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<ScriptedLease>>, Error> {
        let name = request.name().as_str().to_owned();
        // A call takes time: its start is later than what the engine read before.
        self.clock.advance(Duration::from_nanos(1));
        let asked_at = request.now();
        let mut state = self.record(&name, "acquire");
        state.ends.push(request.end());
        state.owners.push(request.owner());
        let is_silent = |grants| {
            grants == Grants::Silent || matches!(grants, Grants::SilentFor(it) if it == name)
        };
        while is_silent(state.grants) {
            if request.is_cancelled() {
                return Ok(None);
            }
            state = self.wait(state);
        }
        if name.ends_with("broken") {
            return Err(unavailable());
        }
        match state.grants {
            Grants::Work
            | Grants::Silent
            | Grants::SilentFor(_)
            | Grants::BatchExhausted
            | Grants::ReplyLost { .. } => {}
            Grants::NoReply => return Err(no_reply()),
            Grants::Queued => {
                drop(state);
                request.contended();
                state = self.state();
                while state.grants == Grants::Queued {
                    drop(state);
                    self.clock.advance(SECOND);
                    if !request.retry(&unavailable()) {
                        return Err(unavailable());
                    }
                    state = self.record(&name, "repeat");
                }
            }
            Grants::Unreachable(span) => {
                self.clock.advance(span);
                return Err(unavailable());
            }
            Grants::FailedWait { span, then_works } => {
                state.grants = Grants::after_failure(then_works);
                drop(state);
                request.contended();
                self.clock.advance(span);
                return Err(unavailable());
            }
            Grants::LateReply { span, asks } => {
                drop(state);
                request.contended();
                self.clock.advance(span);
                assert!(!asks || !request.retry(&no_reply()), "the wait is over");
                return Err(no_reply());
            }
            Grants::NotSent { sees_holder } => {
                drop(state);
                if sees_holder {
                    request.contended();
                }
                self.clock.advance(request.end().saturating_since(asked_at));
                return Err(Error::not_sent("no time"));
            }
            Grants::Panic => panic!("as the test wants"),
            how @ (Grants::Waits | Grants::Polls) => {
                drop(state);
                request.contended();
                state = self.state();
                while state.grants == how {
                    state = self.wait(state);
                    if state.grants == Grants::Polls {
                        drop(state);
                        request.contended();
                        state = self.record(&name, "repeat");
                    }
                }
            }
            Grants::GrantedWait(span) => {
                state.grants = Grants::Work;
                drop(state);
                request.contended();
                self.clock.advance(span);
                state = self.state();
            }
            Grants::Late(span) => {
                state.grants = Grants::Work;
                self.clock.advance(span);
            }
        }
        let (mode, owner) = (request.mode(), request.owner());
        let (is_resume, is_again) = (request.is_resume(), request.is_retry());
        let is_own =
            |it: &&Holder| (is_resume || is_again) && it.owner.lease_id() == owner.lease_id();
        let held = state.held.entry(name.clone()).or_default();
        let own = held.iter().find(is_own);
        let (epoch, slot) = match own.map(|own| (own.epoch, own.slot)) {
            Some(own) => own,
            None if is_resume => return Ok(None),
            None => {
                let Some(slot) = state.free_slot(&name, mode) else {
                    drop(state);
                    request.contended();
                    return Ok(None);
                };
                state.epoch += 1;
                let epoch = state.epoch;
                state.held.entry(name.clone()).or_default().push(Holder {
                    mode,
                    slot,
                    epoch,
                    owner,
                });
                if let Grants::ReplyLost { then_works } = state.grants {
                    state.grants = Grants::after_failure(then_works);
                    return Err(no_reply());
                }
                (epoch, slot)
            }
        };
        Ok(Some(Grant {
            lease: ScriptedLease { name, epoch },
            epoch,
            asked_at,
            slot,
        }))
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        let name = request.name().as_str();
        assert!(request.end() > request.now(), "it has no time");
        let mut state = self.record(name, "abandon");
        while state.abandons_hang {
            state = self.wait(state);
        }
        let owner = request.owner();
        if let Some(held) = state.held.get_mut(name) {
            held.retain(|it| it.owner != owner);
        }
    }

    fn part(&self, request: &AcquireRequest<'_>) -> usize {
        let name = request.name().as_str();
        let number = name.split(' ').next().and_then(|word| word.parse().ok());
        number.unwrap_or(usize::from(name.starts_with("far")))
    }

    fn batch(&self, batch: &mut [Operation<'_, ScriptedLease>]) {
        self.set(|state| {
            state.batches.push(batch.len());
            state.batches_by_keepers.push(is_keepers_thread());
        });
        let is_exhausted = self.state().grants == Grants::BatchExhausted;
        // Behind a reply that is lost nothing gets through.
        let mut is_cut = false;
        for (at, operation) in batch.iter_mut().enumerate() {
            if let Some(sent) = operation.take_sent() {
                assert_eq!(at, 0, "what was sent comes first");
                let Operation::Release(it) = operation else {
                    panic!("only releases are sent");
                };
                let epoch = sent.into_inner::<u64>();
                assert_eq!(epoch, Some(it.lease.epoch));
                let answer = self.release_by("collect", it.lease, it.deadline);
                is_cut = answer.is_err();
                it.answer = Some(answer);
                continue;
            }
            match operation {
                _ if is_cut => operation.fail(no_reply()),
                Operation::Acquire(_) if is_exhausted => operation.fail(pool_exhausted()),
                Operation::Acquire(it) => it.answer = Some(Backend::acquire(self, it.request)),
                Operation::Renew(it) => {
                    it.answer = Some(self.renew(it.lease, it.ttl, it.deadline));
                }
                Operation::Release(it) => {
                    it.answer = Some(self.release_by("release", it.lease, it.deadline));
                }
            }
        }
    }

    fn send_release(&self, lease: &mut ScriptedLease) -> ReleaseDispatch {
        let how = self.state().sends;
        match how {
            Sends::Answered => {
                let until = self.clock.now() + Duration::from_millis(80);
                ReleaseDispatch::Answered(self.release_by("release", lease, until))
            }
            Sends::Owed => {
                drop(self.record(&lease.name, "send"));
                ReleaseDispatch::Sent(SentRelease::new(lease.epoch))
            }
            Sends::Nothing => ReleaseDispatch::NotSent,
        }
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.state().verifiers.push(verifier);
    }

    fn detach(
        &self,
        lease: &mut ScriptedLease,
        _: Duration,
        _: HostInstant,
    ) -> Result<Option<LeaseId>, Error> {
        let state = self.record(&lease.name, "detach");
        let mut held = state.held.get(&lease.name).into_iter().flatten();
        let holder = held.find(|it| it.epoch == lease.epoch);
        Ok(holder.map(|it| it.owner.lease_id()))
    }

    fn proof(&self, lease: &ScriptedLease) -> Option<Proof> {
        (lease.name != "unproven").then(|| Proof {
            dialect: "scripted",
            sql: format!("{} {}", lease.name, lease.epoch),
            statement: "? ?".into(),
            params: vec![
                ProofValue::Text(lease.name.clone()),
                ProofValue::Integer(lease.epoch.cast_signed()),
            ],
            fits: None,
        })
    }
}

fn is_keepers_thread() -> bool {
    let thread = std::thread::current();
    matches!(thread.name(), Some("lockkeeper-work" | "lockkeeper-return"))
}

fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "no connection")
}

fn pool_exhausted() -> Error {
    Error::new(ErrorKind::PoolExhausted, "no connection is free")
}

fn no_reply() -> Error {
    Error::new(ErrorKind::Unknown, "no reply")
}

#[derive(Debug)]
pub(crate) struct ScriptedLease {
    name: String,
    epoch: u64,
}
