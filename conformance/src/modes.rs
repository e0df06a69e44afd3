//! What the cases of several modes have in common.

use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{
    AcquireOptions, Capability, Error, ErrorKind, LockGuard, LockKeeper, Mode, Permit, Semaphore,
};

use crate::mode_text;
use crate::rig::{Outcome, Rig, Skip};

/// A mode, and another one that waits while a name is held in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) held: Mode,
    pub(crate) rival: Mode,
}

impl Pair {
    const ALL: [Pair; 4] = [
        Pair::new(Mode::Exclusive, Mode::Exclusive),
        Pair::new(Mode::Shared, Mode::Exclusive),
        Pair::new(Mode::Exclusive, Mode::Shared),
        Pair::new(Mode::Permit { limit: 1 }, Mode::Permit { limit: 1 }),
    ];

    const fn new(held: Mode, rival: Mode) -> Self {
        Self { held, rival }
    }

    /// Returns a name that no other pair has.
    pub(crate) fn name(self) -> String {
        let [held, rival] = [self.held, self.rival].map(mode_text::text);
        format!("{rival}-after-{held}")
    }
}

fn capability(mode: Mode) -> Option<Capability> {
    match mode {
        Mode::Exclusive => None,
        Mode::Shared => Some(Capability::Shared),
        Mode::Permit { .. } => Some(Capability::Permits),
    }
}

impl Rig<'_> {
    pub(crate) fn has_mode(&self, mode: Mode) -> bool {
        let capabilities = self.provider().capabilities();
        capability(mode).is_none_or(|capability| capabilities.has(capability))
    }

    /// Skips the case if the store does not have a mode, after checking that it is refused.
    pub(crate) fn needs_mode(&self, mode: Mode) -> Outcome {
        let Some(capability) = capability(mode).filter(|_| !self.has_mode(mode)) else {
            return Ok(());
        };
        let refused = self.keeper().acquire("a", &in_mode(mode));
        let error = refused.expect_err("the store does not declare the capability");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        let is_named = error.to_string().contains(capability.as_str());
        assert!(is_named, "{error} does not name {capability}");
        let advises = error.to_string().contains("SQLite");
        assert!(advises, "{error} does not name a store that has it");
        Err(Skip(format!("the store does not declare {capability}")))
    }

    /// Returns every [`Pair`] of modes that the store has.
    pub(crate) fn pairs(&self) -> Vec<Pair> {
        let has_pair = |pair: &Pair| self.has_mode(pair.held) && self.has_mode(pair.rival);
        Pair::ALL.into_iter().filter(has_pair).collect()
    }

    /// Runs `check` with every pair of modes that the store has, all at the same time. Then nothing may be left.
    pub(crate) fn each_pair(&self, check: impl Fn(Pair) -> Outcome + Sync) -> Outcome {
        self.all_at_once(self.pairs(), check)?;
        self.nothing_left();
        Ok(())
    }

    /// Runs `check` with each item, all at the same time.
    pub(crate) fn all_at_once<T: Send>(
        &self,
        items: Vec<T>,
        check: impl Fn(T) -> Outcome + Sync,
    ) -> Outcome {
        thread::scope(|scope| {
            let check = &check;
            let items = items.into_iter();
            let checks: Vec<_> = items.map(|item| scope.spawn(move || check(item))).collect();
            checks.into_iter().try_for_each(|check| {
                // The text of the first panic is the case's.
                check.join().unwrap_or_else(|panic| resume_unwind(panic))
            })
        })
    }
}

pub(crate) fn in_mode(mode: Mode) -> AcquireOptions {
    AcquireOptions::new().mode(mode)
}

/// Acquires a name in a mode, waiting if necessary.
pub(crate) fn take_in(keeper: &LockKeeper, name: &str, mode: Mode) -> LockGuard {
    granted(keeper, name, &in_mode(mode))
}

/// Acquires a name with options, waiting as they say.
pub(crate) fn granted(keeper: &LockKeeper, name: &str, options: &AcquireOptions) -> LockGuard {
    let taken = keeper.acquire(name, options);
    let taken = taken.unwrap_or_else(|error| panic!("{name:?} was not granted: {error:?}"));
    taken.unwrap_or_else(|| panic!("{name:?} was not granted: busy"))
}

/// Acquires a name beside its readers, waiting if necessary.
pub(crate) fn take_shared(keeper: &LockKeeper, name: &str) -> LockGuard {
    let taken = keeper.lock_shared(name);
    taken.unwrap_or_else(|error| panic!("{name:?} was not granted: {error:?}"))
}

/// Makes one attempt. It is repeated where its reply comes too late, on a busy machine. Another error fails the case.
pub(crate) fn attempt_in(keeper: &LockKeeper, name: &str, mode: Mode) -> Option<LockGuard> {
    const LATE: Duration = Duration::from_secs(10);
    let ends = Instant::now() + LATE;
    loop {
        match keeper.acquire(name, &in_mode(mode).wait(Duration::ZERO)) {
            Ok(answer) => return answer,
            Err(error) if error.is_retryable() && Instant::now() < ends => {}
            Err(error) => panic!("the attempt was neither busy nor granted: {error:?}"),
        }
    }
}

/// Returns whether one attempt of this keeper is not granted. An error fails the case.
pub(crate) fn is_busy_in(keeper: &LockKeeper, name: &str, mode: Mode) -> bool {
    attempt_in(keeper, name, mode).is_none()
}

/// Checks that a name is not granted for longer than `ttl`. A busy server may reply after the end of the wait, and that is
/// an error. After a long wait that is no answer, so this waits twice.
pub(crate) fn stays_busy(keeper: &LockKeeper, name: &str, mode: Mode, ttl: Duration) {
    let wait = in_mode(mode).wait(ttl * 3 / 5);
    for _ in 0..2 {
        assert_not_granted(keeper.acquire(name, &wait));
    }
}

/// Checks that a wait for a held name has ended, as busy or with an error that a busy machine explains.
pub(crate) fn assert_not_granted(answer: Result<Option<LockGuard>, Error>) {
    match answer {
        Ok(None) => {}
        Ok(Some(granted)) => panic!("the name is held, and {granted:?} was granted"),
        Err(error) => assert!(error.is_retryable(), "{error:?}"),
    }
}

pub(crate) fn semaphore(keeper: &LockKeeper, name: &str, limit: u32) -> Semaphore {
    let semaphore = keeper.semaphore(name, limit);
    semaphore.unwrap_or_else(|error| panic!("the store refuses {limit} permits: {error:?}"))
}

/// Acquires a permit, waiting if necessary.
pub(crate) fn take_permit(keeper: &LockKeeper, name: &str, limit: u32) -> Permit {
    let taken = semaphore(keeper, name, limit).acquire();
    taken.unwrap_or_else(|error| panic!("no permit of {name:?} was granted: {error:?}"))
}
