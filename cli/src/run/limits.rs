//! How long the command may run, and how long it may take to end.

use std::time::Duration;

use lockkeeper::clock::HostInstant;
use rustix::process::Signal;

use super::command::CommandProcess;
use super::plan::format_millis;
use super::poll::POLL_INTERVAL;
use super::stderr;
use crate::args;

/// The limits of --timeout and --stop-after, beside those of the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    timeout: Option<Duration>,
    stop_after: Option<Duration>,
}

/// The limits of a command that runs.
#[derive(Debug)]
pub(super) struct RunningLimits {
    of: Limits,
    started: HostInstant,
    /// When the command gets KILL. [`HostInstant::NEVER`] until it is being ended.
    pub(super) kill: HostInstant,
    /// When a signal first asked for the end of the command.
    pub(super) asked: Option<HostInstant>,
    /// Whether the time of --timeout was over before the command's group had ended.
    pub(super) timed_out: bool,
}

impl Limits {
    pub(super) fn new(args: &args::Run) -> Self {
        Self {
            timeout: args.timeout,
            stop_after: args.stop_after,
        }
    }

    pub(super) fn start(self, now: HostInstant) -> RunningLimits {
        RunningLimits {
            of: self,
            started: now,
            kill: HostInstant::NEVER,
            asked: None,
            timed_out: false,
        }
    }
}

impl RunningLimits {
    /// Returns when a command gets KILL that is being ended from `now` on; never, if --stop-after is not given.
    pub(super) fn kill_from(&self, now: HostInstant) -> HostInstant {
        match self.of.stop_after {
            Some(stop_after) => now + stop_after,
            None => HostInstant::NEVER,
        }
    }

    /// Notes that a signal has asked for the end of the command.
    pub(super) fn ask_for_end(&mut self, now: HostInstant) {
        self.asked.get_or_insert(now);
        self.kill = self.kill.min(self.kill_from(now));
    }

    /// Ends the command if its time is over. Returns how long to wait until the next check.
    pub(super) fn check(
        &mut self,
        command: &CommandProcess,
        kill_after: Duration,
        now: HostInstant,
    ) -> Duration {
        let timeout = self.of.timeout.filter(|_| !self.timed_out);
        let end = timeout.map_or(HostInstant::NEVER, |timeout| self.started + timeout);
        if let Some(timeout) = timeout.filter(|_| now >= end && command.ended().is_none()) {
            self.timed_out = true;
            let stop_after = self.of.stop_after.unwrap_or(kill_after);
            self.kill = self.kill.min(now + stop_after);
            let timeout = format_millis(timeout);
            stderr::warn(&format!(
                "the command has run for its --timeout of {timeout}; it is ended"
            ));
            command.signal(Signal::TERM);
            command.signal(Signal::CONT);
        }
        if now >= self.kill {
            command.signal(Signal::KILL);
            return POLL_INTERVAL;
        }
        let next = if self.timed_out {
            self.kill
        } else {
            end.min(self.kill)
        };
        next.saturating_since(now).max(Duration::from_millis(1))
    }
}
