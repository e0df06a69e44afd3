//! What the command runs under: a lock or a permit of a semaphore, as it is requested and as it is held.

use std::fmt;
use std::time::{Duration, SystemTime};

use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{
    AcquireOptions, Error, FencingToken, LockGuard, LockKeeper, LockName, Mode, Permit, Released,
};

use super::claim;
use crate::args;
use crate::failure::Failure;
use crate::settings;
use crate::who;

/// How long the question for the holders may take.
const HOLDERS_TIMEOUT: Duration = Duration::from_secs(1);

/// What the command line asks for. Its text is `the lock "a"`, for messages.
pub(super) struct Request {
    name: LockName,
    mode: Mode,
}

/// What is held.
pub(super) enum Guard {
    Lock(LockGuard),
    Permit(Permit),
}

impl Request {
    pub(super) fn new(args: &args::Run) -> Result<Self, Failure> {
        let name = LockName::new(args.name.as_str()).map_err(Failure::usage)?;
        let mode = args.mode();
        Ok(Self { name, mode })
    }

    /// Acquires it. `None` if other holders had it until the wait was over.
    pub(super) fn acquire(
        &self,
        keeper: &LockKeeper,
        options: &AcquireOptions,
    ) -> Result<Option<Guard>, Error> {
        if let Mode::Permit { limit } = self.mode {
            let permit = keeper.semaphore(&self.name, limit)?.acquire_with(options)?;
            return Ok(permit.map(Guard::Permit));
        }
        let options = options.clone().mode(self.mode);
        let guard = keeper.acquire(&self.name, &options)?;
        Ok(guard.map(Guard::Lock))
    }

    /// Describes the grant, for messages.
    pub(super) fn granted(&self, guard: &Guard) -> String {
        let token = guard.token();
        match guard.slot() {
            None => format!("{:?} with the token {token}", self.name),
            Some(slot) => format!("slot {slot} of {:?} with the token {token}", self.name),
        }
    }

    /// Returns the name in quotes.
    pub(super) fn name(&self) -> String {
        format!("{:?}", self.name)
    }

    /// Describes the present holders, as far as the store knows them.
    pub(super) fn holders(&self, keeper: &LockKeeper) -> String {
        let deadline = SystemClock.now() + HOLDERS_TIMEOUT;
        let held = keeper
            .admin()
            .and_then(|admin| admin.held(Some(&self.name), deadline).ok());
        let mut held = held.unwrap_or_default();
        held.retain(|held| held.mode.is_permit() == self.mode.is_permit());
        let Some((first, others)) = held.split_first() else {
            return format!("{:?} is held by another process", self.name);
        };
        let first = who::holder(first, SystemTime::now());
        match others.len() {
            0 => format!("{:?} is held by {first}", self.name),
            more => format!("{:?} is held by {first} and {more} more", self.name),
        }
    }

    /// Returns the names of the claims that its command needs.
    pub(super) fn claims(&self, keeper: &LockKeeper, guard: &Guard) -> Vec<String> {
        vec![claim::name(keeper, &self.name, self.mode, guard.slot())]
    }

    /// Returns what the command sees of the grant.
    pub(super) fn variables(&self, guard: &Guard) -> Vec<(&'static str, String)> {
        let slot = guard.slot().map(|slot| (settings::SLOT, slot.to_string()));
        let always = [
            ("LOCKKEEPER_NAME", self.name.to_string()),
            ("LOCKKEEPER_TOKEN", guard.token().to_string()),
        ];
        always.into_iter().chain(slot).collect()
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mode {
            Mode::Exclusive => write!(f, "the lock {:?}", self.name),
            Mode::Shared => write!(f, "the shared lock {:?}", self.name),
            Mode::Permit { .. } => write!(f, "the permit of {:?}", self.name),
        }
    }
}

impl Guard {
    fn guard(&self) -> &LockGuard {
        match self {
            Self::Lock(guard) => guard,
            Self::Permit(permit) => permit,
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.guard().is_held()
    }

    pub(super) fn remaining(&self) -> Duration {
        self.guard().remaining()
    }

    pub(super) fn token(&self) -> FencingToken {
        self.guard().token()
    }

    pub(super) fn slot(&self) -> Option<u32> {
        match self {
            Self::Lock(_) => None,
            Self::Permit(permit) => Some(permit.slot()),
        }
    }

    pub(super) fn release(self) -> Result<Released, Error> {
        match self {
            Self::Lock(guard) => guard.release(),
            Self::Permit(permit) => permit.release(),
        }
    }
}
