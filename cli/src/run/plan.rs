//! The times of `run`: they must leave enough time to end the command before another process can be
//! granted the lock.

use std::time::Duration;

use humantime::format_duration;
use lockkeeper::clock::HostInstant;
use lockkeeper::{LeasePolicy, LockKeeper};

use crate::args::{OnLost, Run};
use crate::failure::{CONFIG, Failure, USAGE};

/// The default of --kill-after; its help says so.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// How the lock is held, and how its command is ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) policy: LeasePolicy,
    on_lost: OnLost,
    kill_after: Duration,
}

/// When the command has to end, unless the lock is renewed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadlines {
    pub(super) term: HostInstant,
    pub(super) kill: HostInstant,
    /// Until then no other command of this host may start under the name.
    pub(super) claim: HostInstant,
}

impl Deadlines {
    pub(super) const NEVER: Self = Self {
        term: HostInstant::NEVER,
        kill: HostInstant::NEVER,
        claim: HostInstant::NEVER,
    };
    /// For a command that goes on without its lock: the next holder need not wait for it.
    pub(super) const WITHOUT_LOCK: Self = Self {
        claim: HostInstant::from_nanos(0),
        ..Self::NEVER
    };
}

impl Plan {
    pub(super) fn new(args: &Run, keeper: &LockKeeper) -> Result<Self, Failure> {
        let policy = match (args.lease, args.ttl) {
            (Some(ttl), _) => LeasePolicy::Fixed { ttl },
            (None, Some(ttl)) => LeasePolicy::Renewed { ttl },
            (None, None) => keeper.lease(),
        };
        let plan = Self {
            policy,
            on_lost: args.on_lost,
            kill_after: args.kill_after.unwrap_or(KILL_AFTER),
        };
        if !args.hold_at_least.is_zero() {
            plan.check_hold(args.hold_at_least, keeper.margin(policy.ttl()))
                .map_err(|text| Failure::new(USAGE, text))?;
        }
        if args.on_lost == OnLost::Term {
            plan.check(&|ttl| keeper.margin(ttl)).map_err(|text| {
                let is_option = args.lease.or(args.ttl).or(args.kill_after).is_some();
                Failure::new(if is_option { USAGE } else { CONFIG }, text)
            })?;
        }
        Ok(plan)
    }

    fn check(&self, margin_of: &dyn Fn(Duration) -> Duration) -> Result<(), String> {
        let (ttl, kill_after) = (self.policy.ttl(), self.kill_after);
        let margin = margin_of(ttl);
        let needed = margin.saturating_add(kill_after);
        let (option, room, part) = match self.policy {
            LeasePolicy::Renewed { .. } => ("--ttl", ttl / 2, "more than half of"),
            LeasePolicy::Fixed { .. } => ("--lease", ttl, "all of"),
        };
        let fits = match self.policy {
            LeasePolicy::Renewed { .. } => needed <= room,
            LeasePolicy::Fixed { .. } => needed < room,
        };
        if fits {
            return Ok(());
        }
        let share = if self.policy.is_renewed() { 2 } else { 1 };
        // The margin grows with the ttl, up to a limit of its own, so the least ttl is approached.
        let mut least = ttl;
        for _ in 0..64 {
            least = margin_of(least)
                .saturating_add(kill_after)
                .saturating_mul(share);
        }
        if !self.policy.is_renewed() {
            least = least.saturating_add(Duration::from_millis(1));
        }
        let least = Duration::from_secs(
            least
                .as_millis()
                .div_ceil(1_000)
                .try_into()
                .unwrap_or(u64::MAX),
        );
        let most = room.saturating_sub(margin);
        let instead = if most.as_millis() == 0 {
            String::new()
        } else if self.policy.is_renewed() {
            format!(", or --kill-after {} or less", format_millis(most))
        } else {
            format!(", or a --kill-after below {}", format_millis(most))
        };
        Err(format!(
            "the command could not be ended before the lock can be granted to another process: the margin of {} \
             and --kill-after {} are {}, which is {part} {option} {}; use {option} {} or \
             more{instead}",
            format_millis(margin),
            format_millis(kill_after),
            format_millis(needed),
            format_millis(ttl),
            format_millis(least),
        ))
    }

    /// Refuses a `hold` that is longer than a lock without renewal can be kept.
    fn check_hold(&self, hold: Duration, margin: Duration) -> Result<(), String> {
        let ttl = self.policy.ttl();
        let held = ttl.saturating_sub(margin);
        if self.policy.is_renewed() || hold < held {
            return Ok(());
        }
        Err(format!(
            "the lock could not be kept that long: --lease {} less the margin of {} is {}, and \
             --hold-at-least {} is not below that; use a longer --lease, or --ttl",
            format_millis(ttl),
            format_millis(margin),
            format_millis(held),
            format_millis(hold),
        ))
    }

    /// Returns the deadlines of a lock that is held until `until`.
    pub(super) fn deadlines(&self, until: HostInstant) -> Deadlines {
        match self.on_lost {
            OnLost::Term => Deadlines {
                term: until - self.kill_after,
                kill: until,
                claim: until,
            },
            OnLost::Warn => Deadlines {
                claim: until,
                ..Deadlines::NEVER
            },
        }
    }

    /// Returns the deadlines of a lock that turned out to be lost `now`, and was known to be held until
    /// `until` at most. If that is over, another process may hold the lock already.
    pub(super) fn at_once(&self, now: HostInstant, until: HostInstant) -> Deadlines {
        let kill = until.min(now + self.kill_after);
        Deadlines {
            term: now,
            kill,
            claim: kill,
        }
    }

    /// Returns whether the command is ended when the lock is lost.
    pub(super) fn ends_on_loss(&self) -> bool {
        self.on_lost == OnLost::Term
    }
}

/// Formats a duration to the millisecond, as a user would type it.
fn format_millis(span: Duration) -> String {
    let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    format_duration(Duration::from_millis(millis)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(policy: LeasePolicy, kill_after: u64) -> Plan {
        Plan {
            policy,
            on_lost: OnLost::Term,
            kill_after: Duration::from_secs(kill_after),
        }
    }

    fn plan(policy: LeasePolicy, kill_after: u64) -> Result<(), String> {
        // The margin of the engine.
        ending(policy, kill_after).check(&|ttl| (ttl / 10).min(Duration::from_secs(1)).min(ttl / 2))
    }

    #[test]
    fn too_short_ttl_is_refused_with_the_arithmetic() {
        let renewed = |ttl| LeasePolicy::Renewed {
            ttl: Duration::from_secs(ttl),
        };
        let fixed = |ttl| LeasePolicy::Fixed {
            ttl: Duration::from_secs(ttl),
        };
        assert_eq!(plan(renewed(30), 5), Ok(()));
        assert_eq!(plan(renewed(12), 5), Ok(()));
        assert_eq!(plan(fixed(7), 5), Ok(()));
        let text = plan(renewed(10), 5).unwrap_err();
        for part in [
            "1s",
            "5s are 6s",
            "--ttl 10s",
            "--ttl 12s or more",
            "--kill-after 4s or less",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let text = plan(fixed(5), 5).unwrap_err();
        assert!(
            text.contains("5s 500ms") && text.contains("--lease 6s"),
            "{text}"
        );
        // The advice works.
        assert_eq!(plan(renewed(13), 5), Ok(()));
        assert_eq!(plan(renewed(10), 4), Ok(()));
        let text = plan(renewed(1), 60).unwrap_err();
        assert_eq!(plan(renewed(123), 60), Ok(()), "{text}");
        // A --kill-after below a millisecond is not advised.
        let ttl = Duration::from_millis(1);
        let text = plan(LeasePolicy::Renewed { ttl }, 5).unwrap_err();
        assert!(text.ends_with("use --ttl 12s or more"), "{text}");
    }

    #[test]
    fn hold_at_least_beyond_a_fixed_lease_is_refused() {
        let ttl = Duration::from_secs(10);
        let second = Duration::from_secs;
        let check = |policy, hold| ending(policy, 5).check_hold(second(hold), second(1));
        assert_eq!(check(LeasePolicy::Fixed { ttl }, 8), Ok(()));
        assert_eq!(check(LeasePolicy::Renewed { ttl }, 60), Ok(()));
        let text = check(LeasePolicy::Fixed { ttl }, 9).unwrap_err();
        for part in ["--lease 10s", "margin of 1s is 9s", "--hold-at-least 9s"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn loss_found_late_kills_at_the_old_deadline() {
        let ttl = Duration::from_secs(30);
        let plan = ending(LeasePolicy::Renewed { ttl }, 5);
        let second = |count| HostInstant::default() + Duration::from_secs(count);
        // Lost long before its deadline, and found after the host was suspended.
        for (until, kill) in [(29, 15), (12, 12), (7, 7)] {
            let deadlines = plan.at_once(second(10), second(until));
            assert_eq!((deadlines.term, deadlines.kill), (second(10), second(kill)));
        }
    }
}
