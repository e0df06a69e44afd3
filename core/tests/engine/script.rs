//! A provider that does what a test says, on a clock that a test moves.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Backend, Capabilities, Clock as _, Error, ErrorKind, Grant, HostInstant,
    LockKeeper, LockProvider, ManualClock, Owner, Proof, ProofValue, Released, Renewal,
};

/// How long a test waits for what must happen before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How the store answers the next renewals of a name.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) enum Renewals {
    #[default]
    Work,
    Lost,
    /// No answer.
    Fail,
    /// No answer, and the call does not return.
    Hang,
    Panic,
    /// Renewed, but the reply takes this long by the test's clock.
    Late(Duration),
}

/// How the store answers the next acquisition.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) enum Grants {
    #[default]
    Work,
    Unreachable,
    Panic,
    /// Granted, but the reply takes this long by the test's clock.
    Late(Duration),
    /// Granted, and the reply is lost. From then on the store works, or is gone.
    ReplyLost {
        then_works: bool,
    },
    /// As unreachable, and an attempt takes a second by the test's clock.
    Gone,
    /// Busy, and then the wait fails behind its deadline. From then on the store works.
    FailedWait(Duration),
    /// No answer until the test wants another, and none to who was cancelled meanwhile.
    Silent,
}

/// How the store answers the next release.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) enum Releases {
    #[default]
    Work,
    /// Released, and the reply is lost.
    ReplyLost,
    /// Not released, and there is no reply.
    RequestLost,
}

#[derive(Default)]
pub(crate) struct State {
    held: HashMap<String, u64>,
    owners: HashMap<String, Owner>,
    pub(crate) releases: Releases,
    epoch: u64,
    pub(crate) renewals: HashMap<String, Renewals>,
    pub(crate) grants: Grants,
    /// For how long the last renewal may wait for its answer.
    pub(crate) patience: Duration,
    /// Calls so far, by name and verb, in order.
    pub(crate) calls: Vec<(String, &'static str)>,
}

#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) clock: ManualClock,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn call(&self, name: &str, verb: &'static str) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.calls.push((name.to_owned(), verb));
        self.changed.notify_all();
        state
    }
}

impl Script {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            clock: ManualClock::new(),
            shared: Arc::default(),
        })
    }

    /// A keeper over it with a ttl of 12 s: renewed every 4 s, tried again after 1 s.
    pub(crate) fn keeper(self: &Arc<Self>) -> LockKeeper {
        self.builder().build().unwrap()
    }

    pub(crate) fn builder(self: &Arc<Self>) -> lockkeeper_core::LockKeeperBuilder {
        let ttl = Duration::from_secs(12);
        LockKeeper::builder(Arc::clone(self) as Arc<dyn LockProvider>)
            .lease(lockkeeper_core::LeasePolicy::Renewed { ttl })
            .clock(Arc::new(self.clock.clone()))
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state());
        self.shared.changed.notify_all();
    }

    pub(crate) fn renewals(&self, name: &str, how: Renewals) {
        self.set(|state| {
            state.renewals.insert(name.to_owned(), how);
        });
    }

    pub(crate) fn count(&self, name: &str, verb: &str) -> usize {
        let state = self.shared.state();
        let of = |call: &&(String, &str)| call.0 == name && call.1 == verb;
        state.calls.iter().filter(of).count()
    }

    /// Blocks until the store has had `count` calls of `verb` for `name`.
    pub(crate) fn until(&self, name: &str, verb: &str, count: usize) {
        let state = self.shared.state();
        let missing = |state: &mut State| {
            let of = |call: &&(String, &str)| call.0 == name && call.1 == verb;
            state.calls.iter().filter(of).count() < count
        };
        let (_state, late) = self
            .shared
            .changed
            .wait_timeout_while(state, PATIENCE, missing)
            .unwrap();
        assert!(!late.timed_out(), "no {count}. {verb} of {name}");
    }
}

impl Backend for Script {
    type Lease = ScriptLease;

    fn backend(&self) -> &'static str {
        "script"
    }

    fn location(&self) -> String {
        "script:".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<ScriptLease>>, Error> {
        let name = request.name().as_str().to_owned();
        // A call takes time: what is asked now is later than what the engine read before.
        self.clock.advance(Duration::from_nanos(1));
        let asked_at = request.now();
        let mut state = self.shared.call(&name, "acquire");
        while state.grants == Grants::Silent {
            state = self.shared.changed.wait(state).unwrap();
            if request.is_cancelled() {
                return Ok(None);
            }
        }
        match state.grants {
            Grants::Work | Grants::Silent => {}
            Grants::Unreachable => {
                return Err(Error::new(ErrorKind::Unavailable, "out of reach"));
            }
            Grants::Gone => {
                self.clock.advance(Duration::from_secs(1));
                return Err(Error::new(ErrorKind::Unavailable, "out of reach"));
            }
            Grants::FailedWait(span) => {
                state.grants = Grants::Work;
                drop(state);
                request.contended();
                self.clock.advance(span);
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "no connection to wait on",
                ));
            }
            Grants::ReplyLost { .. } => {}
            Grants::Panic => panic!("as the test wants"),
            Grants::Late(span) => {
                state.grants = Grants::Work;
                self.clock.advance(span);
            }
        }
        if let Some(&epoch) = state.held.get(&name) {
            if request.is_retry() && state.owners.get(&name) == Some(&request.owner()) {
                return Ok(Some(Grant {
                    lease: ScriptLease { name, epoch },
                    epoch,
                    asked_at,
                }));
            }
            drop(state);
            request.contended();
            return Ok(None);
        }
        state.epoch += 1;
        let epoch = state.epoch;
        state.held.insert(name.clone(), epoch);
        state.owners.insert(name.clone(), request.owner());
        if let Grants::ReplyLost { then_works } = state.grants {
            state.grants = if then_works {
                Grants::Work
            } else {
                Grants::Gone
            };
            return Err(Error::new(ErrorKind::Unknown, "no reply"));
        }
        Ok(Some(Grant {
            lease: ScriptLease { name, epoch },
            epoch,
            asked_at,
        }))
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        let name = request.name().as_str();
        let mut state = self.shared.call(name, "abandon");
        if state.owners.get(name) == Some(&request.owner()) {
            state.held.remove(name);
        }
    }

    fn renew(
        &self,
        lease: &mut ScriptLease,
        _: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        let mut state = self.shared.call(&lease.name, "renew");
        state.patience = deadline.saturating_since(self.clock.now());
        let how = |state: &State| state.renewals.get(&lease.name).copied().unwrap_or_default();
        while how(&state) == Renewals::Hang {
            state = self.shared.changed.wait(state).unwrap();
        }
        match how(&state) {
            Renewals::Work => Ok(Renewal::Renewed),
            Renewals::Late(span) => {
                self.clock.advance(span);
                Ok(Renewal::Renewed)
            }
            Renewals::Lost => {
                state.held.remove(&lease.name);
                Ok(Renewal::Lost)
            }
            Renewals::Panic => {
                drop(state);
                panic!("as the test wants")
            }
            Renewals::Fail | Renewals::Hang => Err(Error::new(ErrorKind::Unknown, "no answer")),
        }
    }

    fn release(&self, lease: &mut ScriptLease, _: HostInstant) -> Result<Released, Error> {
        let mut state = self.shared.call(&lease.name, "release");
        if state.held.get(&lease.name) != Some(&lease.epoch) {
            return Ok(Released::AlreadyLost);
        }
        let releases = std::mem::take(&mut state.releases);
        if releases != Releases::RequestLost {
            state.held.remove(&lease.name);
        }
        match releases {
            Releases::Work => Ok(Released::Done),
            Releases::ReplyLost | Releases::RequestLost => {
                Err(Error::new(ErrorKind::Unknown, "no reply"))
            }
        }
    }

    fn proof(&self, lease: &ScriptLease) -> Option<Proof> {
        (lease.name != "unproven").then(|| Proof {
            sql: format!("{} {}", lease.name, lease.epoch),
            statement: "? ?",
            params: vec![
                ProofValue::Text(lease.name.clone()),
                ProofValue::Integer(lease.epoch.cast_signed()),
            ],
        })
    }
}

#[derive(Debug)]
pub(crate) struct ScriptLease {
    name: String,
    epoch: u64,
}

/// Waits until `done`, which other threads bring about.
pub(crate) fn eventually(what: &str, done: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !done() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// A clock that jumps without a word, as the host's does when it was suspended.
#[derive(Clone, Debug)]
pub(crate) struct Silent(pub(crate) ManualClock);

impl lockkeeper_core::Clock for Silent {
    fn now(&self) -> HostInstant {
        self.0.now()
    }
}
