//! What a case works with: one fresh store, and keepers, processes and faults on it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{
    AcquireOptions, Capability, Grant, LeasePolicy, LockGuard, LockKeeper, LockKeeperBuilder,
    LockProvider, Wait,
};

use crate::child::Remoted;
use crate::ear::Ear;
use crate::fixture::{Fixture, Restore};
use crate::remote::Remote;
use crate::run::Suite;
use crate::tap::{Tap, Thief};

/// The namespace of all cases that need no second one.
pub(crate) const NAMESPACE: &str = "conformance";
/// The ttl of cases that are not about leases: longer than any of them takes.
const LONG: Duration = Duration::from_secs(60);

/// Why a case cannot be tried on this store.
#[derive(Debug)]
pub(crate) struct Skip(pub(crate) String);

/// What a case returns; it fails by a panic.
pub(crate) type Outcome = Result<(), Skip>;

pub(crate) struct Rig<'a> {
    suite: &'a Suite,
    fixture: Box<dyn Fixture>,
}

impl<'a> Rig<'a> {
    pub(crate) fn new(suite: &'a Suite) -> Self {
        Self {
            suite,
            fixture: (suite.make)(),
        }
    }

    pub(crate) fn patience(&self) -> Duration {
        self.suite.patience
    }

    /// A provider of its own.
    pub(crate) fn provider(&self) -> Arc<dyn LockProvider> {
        self.provider_in(NAMESPACE)
    }

    pub(crate) fn provider_in(&self, namespace: &str) -> Arc<dyn LockProvider> {
        let opened = self.fixture.open(namespace);
        opened.unwrap_or_else(|error| panic!("the store cannot be opened: {error:?}"))
    }

    /// A keeper of its own to be, with a long ttl and all the patience.
    pub(crate) fn builder(&self) -> LockKeeperBuilder {
        self.builder_on(self.provider())
    }

    pub(crate) fn builder_on(&self, provider: Arc<dyn LockProvider>) -> LockKeeperBuilder {
        LockKeeper::builder(provider)
            .lease(LeasePolicy::Renewed { ttl: LONG })
            .wait(Wait::AtMost(self.patience()))
    }

    pub(crate) fn keeper(&self) -> LockKeeper {
        build(self.builder())
    }

    /// A keeper whose leases live for `ttl`.
    pub(crate) fn keeper_with(&self, lease: LeasePolicy) -> LockKeeper {
        build(self.builder().lease(lease))
    }

    /// A keeper, and an ear on it.
    pub(crate) fn heard_keeper(&self) -> (LockKeeper, Arc<Ear>) {
        let ear = self.ear();
        (build(self.builder().observer(Arc::clone(&ear) as _)), ear)
    }

    pub(crate) fn ear(&self) -> Arc<Ear> {
        Ear::new(self.patience())
    }

    /// A keeper to be over a tapped provider.
    pub(crate) fn tapped(&self) -> (LockKeeperBuilder, Arc<Tap>) {
        let (provider, tap) = Tap::on(self.provider());
        (self.builder_on(provider), tap)
    }

    /// A ttl of `millis`, or the least that this store can keep.
    pub(crate) fn ttl(&self, millis: u64) -> Duration {
        let least = self.provider().capabilities().min_ttl();
        Duration::from_millis(millis).max(least)
    }

    pub(crate) fn renewed(&self, millis: u64) -> LeasePolicy {
        LeasePolicy::Renewed {
            ttl: self.ttl(millis),
        }
    }

    pub(crate) fn fixed(&self, millis: u64) -> LeasePolicy {
        LeasePolicy::Fixed {
            ttl: self.ttl(millis),
        }
    }

    /// A lease straight from the provider, which nobody renews.
    pub(crate) fn raw_lease(&self, name: &str, ttl: Duration) -> Grant {
        let (provider, taken) = Thief::on(self.provider());
        let keeper = build(self.builder_on(provider).lease(LeasePolicy::Fixed { ttl }));
        let answer = keeper.try_lock(name).expect("the store answers");
        assert!(answer.is_none(), "the thief has it");
        let grant = taken.lock().expect("nobody panicked").take();
        grant.expect("a free name is granted")
    }

    /// Another process on this store.
    pub(crate) fn process(&self, lease: LeasePolicy) -> Result<Remote, Skip> {
        let capability = Capability::CrossProcess;
        if !self.provider().capabilities().has(capability) {
            return Err(Skip(format!("the store does not declare {capability}")));
        }
        let Some(address) = self.fixture.address().filter(|_| self.suite.open.is_some()) else {
            return Err(Skip(
                "the fixture does not say how another process reaches the store".to_owned(),
            ));
        };
        Ok(Remote::start(
            &Remoted {
                suite: self.suite.name.to_owned(),
                address: Some(address),
                lease,
            },
            self.patience(),
        ))
    }

    /// Another process with a fresh store of its own, so that nothing but the case goes on there.
    pub(crate) fn process_apart(&self) -> Remote {
        Remote::start(
            &Remoted {
                suite: self.suite.name.to_owned(),
                address: None,
                lease: LeasePolicy::Renewed { ttl: LONG },
            },
            self.patience(),
        )
    }

    pub(crate) fn cut_off(&self) -> Result<Restore, Skip> {
        self.fixture.cut_off().ok_or_else(|| missing("cut_off"))
    }

    pub(crate) fn slow_down(&self, by: Duration) -> Result<Restore, Skip> {
        self.fixture
            .slow_down(by)
            .ok_or_else(|| missing("slow_down"))
    }

    pub(crate) fn wipe(&self) -> Outcome {
        done(self.fixture.wipe(), "wipe")
    }

    pub(crate) fn end_lease(&self, name: &str) -> Outcome {
        done(self.fixture.end_lease(NAMESPACE, name), "end_lease")
    }

    /// That the store can be asked what stands in it.
    pub(crate) fn needs_leftovers(&self) -> Outcome {
        // A store may come into being with its first provider.
        drop(self.provider());
        done(self.fixture.leftovers().is_some(), "leftovers")
    }

    /// That nothing stands in the store, or soon will not. Where it cannot be asked, the case
    /// `rule_10_resources::nothing_stays_in_the_store` shows as ignored and says so.
    pub(crate) fn nothing_left(&self) {
        let left = || self.fixture.leftovers().unwrap_or_default();
        let deadline = Instant::now() + self.patience();
        while !left().is_empty() {
            assert!(
                Instant::now() < deadline,
                "nothing is held or waited for, and this stays in the store: {:?}",
                left()
            );
            thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Waits until `happened`, and fails when it does not.
    pub(crate) fn until(&self, what: &str, mut happened: impl FnMut() -> bool) {
        let deadline = Instant::now() + self.patience();
        while !happened() {
            assert!(Instant::now() < deadline, "never came to be: {what}");
            thread::park_timeout(Duration::from_millis(2));
        }
    }
}

pub(crate) fn build(builder: LockKeeperBuilder) -> LockKeeper {
    let built = builder.build();
    built.unwrap_or_else(|error| panic!("a keeper with usual settings is refused: {error:?}"))
}

/// Takes a name that is free or will be.
pub(crate) fn take(keeper: &LockKeeper, name: &str) -> LockGuard {
    let taken = keeper.lock(name);
    taken.unwrap_or_else(|error| panic!("{name:?} was to be granted: {error:?}"))
}

/// Takes a name with a lease of its own.
pub(crate) fn take_with(keeper: &LockKeeper, name: &str, lease: LeasePolicy) -> LockGuard {
    let taken = keeper.acquire(name, &AcquireOptions::new().lease(lease));
    let taken = taken.unwrap_or_else(|error| panic!("{name:?} was to be granted: {error:?}"));
    taken.unwrap_or_else(|| panic!("{name:?} was to be granted and is busy"))
}

/// Whether a name is busy for this keeper now; it must be one or the other.
pub(crate) fn is_busy(keeper: &LockKeeper, name: &str) -> bool {
    let answer = keeper.try_lock(name);
    let answer = answer.unwrap_or_else(|error| panic!("neither busy nor granted: {error:?}"));
    answer.is_none()
}

fn missing(hook: &str) -> Skip {
    Skip(format!("the fixture has no hook `{hook}`"))
}

fn done(done: bool, hook: &str) -> Outcome {
    if done { Ok(()) } else { Err(missing(hook)) }
}
