//! The error of a wait at whose end another holder had the name. It says who, where that is known.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::clock::HostInstant;
use crate::contract::admin::HeldName;
use crate::engine::key::Key;
use crate::error::{Error, ErrorKind};
use crate::keeper::LockKeeper;
use crate::mode::Mode;
use crate::name::LockName;
use crate::options::{AcquireOptions, Wait};

/// How long after the deadline a store is asked for the holder: less than the 80 ms in which an acquisition ends.
const LIMIT: Duration = Duration::from_millis(50);
/// With less time than this, the store is not asked.
const LEAST: Duration = Duration::from_millis(10);

impl LockKeeper {
    /// Returns the error of a wait for a name, which began at `began`.
    #[cold]
    pub(super) fn timed_out(
        &self,
        name: &LockName,
        mode: Mode,
        options: &AcquireOptions,
        began: HostInstant,
    ) -> Error {
        let wait = options.wait.unwrap_or(self.engine.settings.wait);
        let (span, deadline) = match wait {
            Wait::AtMost(wait) => (format!("{wait:?}"), began + wait),
            Wait::Forever => ("the wait".to_owned(), HostInstant::NEVER),
        };
        let is_own = !mode.is_permit() && self.engine.is_held_here(Key::new(name, mode));
        let text = if is_own {
            format!(
                "a guard of this process had the lock at the end of {span}; if this thread has it, it waits for itself: drop the guard first, or use `ReentrantKeeper`; otherwise wait longer"
            )
        } else {
            let what = match mode {
                Mode::Permit { .. } => "all permits were held",
                Mode::Exclusive | Mode::Shared => "another holder had the lock",
            };
            let holder = self.holder(name, mode, deadline + LIMIT);
            let holder = holder.unwrap_or_default();
            format!("{what} for all of {span}{holder}; wait longer, or try later")
        };
        self.engine
            .located(name, Error::new(ErrorKind::TimedOut, text))
    }

    /// Returns who has a name, if the store can say so by `until`. One thread asks at a time: many waits may end
    /// together.
    fn holder(&self, name: &LockName, mode: Mode, until: HostInstant) -> Option<String> {
        let admin = self.engine.provider.admin()?;
        let left = until.saturating_since(self.engine.clock.now());
        if left < LEAST || self.engine.is_naming_holder.swap(true, Ordering::AcqRel) {
            return None;
        }
        let held = admin.held(Some(name), until);
        self.engine.is_naming_holder.store(false, Ordering::Release);
        let mut held = held.ok()?;
        held.retain(|held| held.mode.is_permit() == mode.is_permit());
        let more = held.len().checked_sub(1)?;
        let first = describe(held.first()?)?;
        Some(match more {
            0 => format!(": {first}"),
            more => format!(": {first}, and {more} more"),
        })
    }
}

/// Describes a holder, as far as the store knows it.
fn describe(held: &HeldName) -> Option<String> {
    let holder = &held.holder;
    let mut text = match (holder.pid, &holder.session) {
        (Some(pid), _) => format!("pid {pid}"),
        (None, Some(session)) => format!("session {session}"),
        (None, None) => return None,
    };
    if let Some(host) = &holder.host {
        text += &format!(" on {host}");
    }
    if let Some(label) = &holder.label {
        text += &format!(" [{label}]");
    }
    let since = holder
        .since
        .and_then(|it| SystemTime::now().duration_since(it).ok());
    if let Some(span) = since {
        let span = Duration::from_secs(span.as_secs());
        text += &format!(", for {}", humantime::format_duration(span));
    }
    Some(text)
}
