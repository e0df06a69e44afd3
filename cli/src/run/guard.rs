//! What the command runs under: one or more locks, or a permit of a semaphore, as they are requested and as
//! they are held.

use std::fmt;
use std::time::{Duration, SystemTime};

use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{AcquireOptions, Error, LockGuards, LockKeeper, LockName, Mode, Permit, Released};

use super::claim;
use crate::args;
use crate::failure::Failure;
use crate::settings::{SLOT, TOKENS};
use crate::who;

/// How long the question for the holders may take.
const HOLDERS_TIMEOUT: Duration = Duration::from_secs(1);

/// What the command line asks for. Its text is `the lock "a"`, for messages.
pub(super) struct Request {
    /// In the order of the command line; one for a permit.
    names: Vec<LockName>,
    mode: Mode,
}

/// What is held.
pub(super) enum Guard {
    Locks(LockGuards),
    Permit(Permit),
}

impl Request {
    pub(super) fn new(args: &args::Run) -> Result<Self, Failure> {
        let names = args.names().map(LockName::new);
        let names = names.collect::<Result<_, _>>().map_err(Failure::usage)?;
        let mode = args.mode();
        Ok(Self { names, mode })
    }

    /// Acquires it. `None` if other holders had it until the wait was over.
    pub(super) fn acquire(
        &self,
        keeper: &LockKeeper,
        options: &AcquireOptions,
    ) -> Result<Option<Guard>, Error> {
        if let (Mode::Permit { limit }, [name]) = (self.mode, self.names.as_slice()) {
            let permit = keeper.semaphore(name, limit)?.acquire_with(options)?;
            return Ok(permit.map(Guard::Permit));
        }
        let options = options.clone().mode(self.mode);
        let guards = keeper.acquire_all(&self.names, &options)?;
        Ok(guards.map(Guard::Locks))
    }

    /// Returns the names, for messages.
    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| format!("{name:?}")).collect();
        names.join(", ")
    }

    /// Describes the grant, for messages.
    pub(super) fn granted(&self, guard: &Guard) -> String {
        let slot = guard.slot().map(|slot| format!("slot {slot} of "));
        let (slot, names) = (slot.unwrap_or_default(), self.names());
        let tokens = self.tokens(guard);
        match tokens.as_slice() {
            [token] => format!("{slot}{names} with the token {token}"),
            tokens => format!("{names} with the tokens {}", tokens.join(", ")),
        }
    }

    /// Describes present holders, as far as the store knows them.
    pub(super) fn holders(&self, keeper: &LockKeeper) -> String {
        let deadline = SystemClock.now() + HOLDERS_TIMEOUT;
        let mut all = Vec::new();
        for name in &self.names {
            let held = keeper
                .admin()
                .and_then(|admin| admin.held(Some(name), deadline).ok());
            let mut held = held.unwrap_or_default();
            held.retain(|held| held.mode.is_permit() == self.mode.is_permit());
            all.extend(held.into_iter().map(|held| (name, held)));
        }
        // A reader is in the way of a reader only if a writer waits for it.
        all.sort_by_key(|(_, held)| self.mode == Mode::Shared && held.mode == Mode::Shared);
        let Some((name, first)) = all.first() else {
            let one_of = if self.names.len() > 1 { "one of " } else { "" };
            return format!("{one_of}{} is held by another process", self.names());
        };
        let holder = who::holder(first, SystemTime::now());
        let others = all.iter().skip(1).filter(|(other, _)| other == name);
        match others.count() {
            0 => format!("{name:?} is held by {holder}"),
            more => format!("{name:?} is held by {holder} and {more} more"),
        }
    }

    /// Returns the names of the claims that its command needs.
    pub(super) fn claims(&self, keeper: &LockKeeper, guard: &Guard) -> Vec<String> {
        let claim = |name| claim::name(keeper, name, self.mode, guard.slot());
        self.names.iter().map(claim).collect()
    }

    /// Returns what the command sees of the grant.
    pub(super) fn variables(&self, guard: &Guard) -> Vec<(&'static str, String)> {
        let tokens = self.tokens(guard);
        let mut variables = Vec::new();
        if let (Some(name), Some(token)) = (self.names.first(), tokens.first()) {
            variables.push(("LOCKKEEPER_NAME", name.to_string()));
            variables.push(("LOCKKEEPER_TOKEN", token.clone()));
        }
        if tokens.len() > 1 {
            variables.push((TOKENS, tokens.join(" ")));
        }
        variables.extend(guard.slot().map(|slot| (SLOT, slot.to_string())));
        variables
    }

    /// Returns the token of each name.
    fn tokens(&self, guard: &Guard) -> Vec<String> {
        let token = |name| match guard {
            Guard::Locks(guards) => guards.token(name),
            Guard::Permit(permit) => Some(permit.token()),
        };
        let tokens = self.names.iter().filter_map(token);
        tokens.map(|token| token.to_string()).collect()
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.mode {
            Mode::Exclusive => "lock",
            Mode::Shared => "shared lock",
            Mode::Permit { .. } => "permit of",
        };
        match self.names.len() {
            1 => write!(f, "the {kind} {}", self.names()),
            _ => write!(f, "the set of {kind}s {}", self.names()),
        }
    }
}

impl Guard {
    pub(super) fn is_held(&self) -> bool {
        match self {
            Self::Locks(guards) => guards.is_held(),
            Self::Permit(permit) => permit.is_held(),
        }
    }

    /// Returns how long it stays held without another renewal; zero if it is lost.
    pub(super) fn remaining(&self) -> Duration {
        match self {
            Self::Locks(guards) => guards.remaining(),
            Self::Permit(permit) => permit.remaining(),
        }
    }

    pub(super) fn slot(&self) -> Option<u32> {
        match self {
            Self::Locks(_) => None,
            Self::Permit(permit) => Some(permit.slot()),
        }
    }

    pub(super) fn release(self) -> Result<Released, Error> {
        match self {
            Self::Locks(guards) => guards.release(),
            Self::Permit(permit) => permit.release(),
        }
    }
}
