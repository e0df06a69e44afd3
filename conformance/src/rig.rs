//! What a case works with: one fresh store, and keepers, child processes and faults on it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{
    AcquireOptions, Capability, Clock as _, ErasedLease, Error, ErrorKind, HostInstant,
    LeasePolicy, LockGuard, LockKeeper, LockKeeperBuilder, LockProvider, Mode, Released, Renewal,
    SystemClock, Wait,
};

use crate::child::ChildSpec;
use crate::child_process::ChildProcess;
use crate::fixture::{Fixture, Loss, Restore};
use crate::modes::{granted, is_busy_in};
use crate::recorder::EventRecorder;
use crate::run::Suite;
use crate::tap::{Fault, Tap};

/// The namespace of every case that needs only one.
pub(crate) const NAMESPACE: &str = "conformance";
/// The ttl in cases that are not about leases: longer than any case takes.
const LONG: Duration = Duration::from_secs(60);

/// The number of names for which forked siblings compete. A store may keep the millisecond of a
/// request as its owner. With so many names, some requests of both siblings are made in the same
/// millisecond.
pub(crate) const SIBLING_ROUNDS: usize = 40;

/// The reason why a case cannot run on this store.
#[derive(Debug)]
pub(crate) struct Skip(pub(crate) String);

/// The result of a case. A case fails by a panic.
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

    pub(crate) fn timeout(&self) -> Duration {
        self.suite.timeout
    }

    /// Opens another provider.
    pub(crate) fn provider(&self) -> Arc<dyn LockProvider> {
        self.provider_in(NAMESPACE)
    }

    pub(crate) fn provider_in(&self, namespace: &str) -> Arc<dyn LockProvider> {
        let opened = self.fixture.open(namespace);
        opened.unwrap_or_else(|error| panic!("the store cannot be opened: {error:?}"))
    }

    /// Returns a builder with a new provider, a long ttl, and the suite's time-out as the wait.
    pub(crate) fn builder(&self) -> LockKeeperBuilder {
        self.builder_on(self.provider())
    }

    pub(crate) fn builder_on(&self, provider: Arc<dyn LockProvider>) -> LockKeeperBuilder {
        LockKeeper::builder(provider)
            .lease(LeasePolicy::Renewed { ttl: LONG })
            .wait(Wait::AtMost(self.timeout()))
    }

    pub(crate) fn keeper(&self) -> LockKeeper {
        build(self.builder())
    }

    /// Builds a keeper with this lease policy.
    pub(crate) fn keeper_with(&self, lease: LeasePolicy) -> LockKeeper {
        build(self.builder().lease(lease))
    }

    /// Builds a keeper whose events are recorded.
    pub(crate) fn recorded_keeper(&self) -> (LockKeeper, Arc<EventRecorder>) {
        let recorder = self.recorder();
        let builder = self.builder().observer(Arc::clone(&recorder) as _);
        (build(builder), recorder)
    }

    pub(crate) fn recorder(&self) -> Arc<EventRecorder> {
        EventRecorder::new(self.timeout())
    }

    /// Returns a builder whose provider has a [`Tap`], and that tap.
    pub(crate) fn tapped(&self) -> (LockKeeperBuilder, Arc<Tap>) {
        let tap = Tap::on(self.provider());
        (self.builder_on(Arc::clone(&tap) as _), tap)
    }

    /// Returns a ttl of `millis`, or the next longer one that this store supports.
    pub(crate) fn ttl(&self, millis: u64) -> Duration {
        let capabilities = self.provider().capabilities();
        let ttl = Duration::from_millis(millis).max(capabilities.min_ttl());
        let step = capabilities.ttl_step().as_nanos().max(1);
        let nanos = ttl.as_nanos().next_multiple_of(step);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
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

    /// Acquires a lease from the provider itself, without a keeper that renews it.
    pub(crate) fn raw_lease(&self, name: &str, ttl: Duration) -> RawLease<'_> {
        let provider = self.provider();
        let tap = Tap::on(Arc::clone(&provider));
        tap.set(Fault::KeepsGrant);
        let keeper = self.builder_on(Arc::clone(&tap) as _);
        let keeper = build(keeper.lease(LeasePolicy::Fixed { ttl }));
        // On a busy machine, a session as short as the ttl may end before the lease is in it.
        self.until("the lease is granted", || match keeper.try_lock(name) {
            Err(error) if error.kind() == ErrorKind::Unavailable => false,
            reply => {
                assert!(
                    reply.expect("the store replies").is_none(),
                    "the tap keeps the grant"
                );
                true
            }
        });
        let lease = tap.take_grant().expect("a free name is granted").lease;
        RawLease {
            rig: self,
            provider,
            lease,
        }
    }

    /// Starts another process that uses this store.
    pub(crate) fn process(&self, lease: LeasePolicy) -> Result<ChildProcess, Skip> {
        self.start_process(lease, false)
    }

    /// Starts a process that forks two siblings. Both make one attempt at each of
    /// [`SIBLING_ROUNDS`] names, and report the attempts that were granted.
    pub(crate) fn forking_process(&self) -> Result<ChildProcess, Skip> {
        if !cfg!(target_os = "linux") {
            return Err(Skip("a safe fork needs Linux's /proc/self/task".to_owned()));
        }
        self.start_process(LeasePolicy::Renewed { ttl: LONG }, true)
    }

    fn start_process(&self, lease: LeasePolicy, forks: bool) -> Result<ChildProcess, Skip> {
        let capability = Capability::CrossProcess;
        if !self.provider().capabilities().has(capability) {
            return Err(Skip(format!("the store does not declare {capability}")));
        }
        let Some(address) = self.address() else {
            return Err(Skip(
                "the fixture does not say how another process reaches the store".to_owned(),
            ));
        };
        Ok(self.start_child(Some(address), lease, forks))
    }

    /// Starts another process, to which no other case adds threads or files. If no other process can reach this store, that
    /// process makes a store of its own.
    pub(crate) fn process_of_its_own(&self) -> ChildProcess {
        self.start_child(self.address(), LeasePolicy::Renewed { ttl: LONG }, false)
    }

    /// Returns how another process reaches this store, if it can.
    fn address(&self) -> Option<String> {
        let address = self.fixture.address();
        address.filter(|_| self.suite.open.is_some())
    }

    fn start_child(
        &self,
        address: Option<String>,
        lease: LeasePolicy,
        forks: bool,
    ) -> ChildProcess {
        let spec = ChildSpec {
            suite: self.suite.name.to_owned(),
            address,
            lease,
            forks,
        };
        ChildProcess::start(&spec, self.timeout())
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

    /// Skips the case if the store does not notify holders of this loss.
    pub(crate) fn needs_notice_of(&self, loss: Loss) -> Outcome {
        match self.fixture.tells().contains(&loss) {
            true => Ok(()),
            false => Err(Skip(format!(
                "holders are not told of a lease that was {loss:?}"
            ))),
        }
    }

    /// Skips the case if the fixture cannot list the store's content.
    pub(crate) fn needs_leftovers(&self) -> Outcome {
        // Some stores exist only once a provider has opened them.
        drop(self.provider());
        done(self.fixture.leftovers().is_some(), "leftovers")
    }

    /// Waits until the store is empty. If the fixture cannot list the store's content, this checks
    /// nothing. Then `rule_10_resources::released_locks_leave_nothing_in_the_store` is reported as
    /// ignored.
    pub(crate) fn nothing_left(&self) {
        let left = || self.fixture.leftovers().unwrap_or_default();
        let deadline = Instant::now() + self.timeout();
        while !left().is_empty() {
            assert!(
                Instant::now() < deadline,
                "no lock is held or waited for, and the store still contains {:?}",
                left()
            );
            thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Waits until `condition` holds, and fails the case at the time-out.
    /// Stops a process that waits for a name. A process that is stopped in the middle of a write to a file keeps all
    /// others from it: then it is resumed, and stopped again.
    pub(crate) fn stop(&self, process: &ChildProcess) {
        let keeper = self.keeper();
        self.until("the process is stopped between its requests", || {
            process.stop();
            let is_free = keeper.try_lock_for("beside", Duration::from_secs(1));
            if is_free.is_err() {
                process.resume();
            }
            is_free.is_ok()
        });
    }

    pub(crate) fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + self.timeout();
        while !condition() {
            assert!(Instant::now() < deadline, "timed out waiting until {what}");
            thread::park_timeout(Duration::from_millis(2));
        }
    }
}

pub(crate) fn build(builder: LockKeeperBuilder) -> LockKeeper {
    let built = builder.build();
    built.unwrap_or_else(|error| panic!("the keeper cannot be built: {error:?}"))
}

/// Acquires a name, waiting if necessary.
pub(crate) fn take(keeper: &LockKeeper, name: &str) -> LockGuard {
    let taken = keeper.lock(name);
    taken.unwrap_or_else(|error| panic!("{name:?} was not granted: {error:?}"))
}

/// Acquires a name with this lease policy.
pub(crate) fn take_with(keeper: &LockKeeper, name: &str, lease: LeasePolicy) -> LockGuard {
    granted(keeper, name, &AcquireOptions::new().lease(lease))
}

/// Returns whether one attempt of this keeper finds the name busy. An error fails the case.
pub(crate) fn is_busy(keeper: &LockKeeper, name: &str) -> bool {
    is_busy_in(keeper, name, Mode::Exclusive)
}

fn missing(hook: &str) -> Skip {
    Skip(format!("the fixture has no hook `{hook}`"))
}

fn done(done: bool, hook: &str) -> Outcome {
    if done { Ok(()) } else { Err(missing(hook)) }
}

/// A lease and its provider, without an engine around them.
pub(crate) struct RawLease<'r> {
    rig: &'r Rig<'r>,
    provider: Arc<dyn LockProvider>,
    lease: ErasedLease,
}

impl RawLease<'_> {
    pub(crate) fn renew(&mut self, ttl: Duration) -> Renewal {
        self.ask(|provider, lease, deadline| provider.renew(lease, ttl, deadline))
    }

    pub(crate) fn release(&mut self) -> Released {
        self.ask(|provider, lease, deadline| provider.release(lease, deadline))
    }

    fn ask<T>(
        &mut self,
        ask: impl Fn(&dyn LockProvider, &mut ErasedLease, HostInstant) -> Result<T, Error>,
    ) -> T {
        let (rig, mut answer) = (self.rig, None);
        rig.until("the store replies", || {
            let deadline = SystemClock.now() + rig.timeout();
            let found = ask(&*self.provider, &mut self.lease, deadline);
            // Nothing was done. On a busy machine, a connection may take too long.
            let is_open = matches!(&found, Err(error) if error.kind() == ErrorKind::Unavailable);
            answer = Some(found);
            !is_open
        });
        answer.expect("it was asked").expect("the store replies")
    }
}
