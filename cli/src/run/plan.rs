//! The times of `run`: they must leave enough time to end the command before another process can be
//! granted the lock.

use std::time::Duration;

use humantime::format_duration;
use lockkeeper::clock::HostInstant;
use lockkeeper::{LeasePolicy, LockKeeper};

use super::stderr;
use crate::args::{OnLost, Run};
use crate::failure::{Failure, USAGE};

/// The longest default of --kill-after; its help says so.
const MAX_DEFAULT: Duration = Duration::from_secs(5);

/// How the lock is held, and how its command is ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) policy: LeasePolicy,
    on_lost: OnLost,
    pub(super) kill_after: Duration,
    /// How long after the grant the lock is renewed, if that is limited.
    pub(super) max_hold: Option<Duration>,
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
        let margin = keeper.margin(policy.ttl());
        let plan = Self {
            policy,
            on_lost: args.on_lost,
            kill_after: args
                .kill_after
                .unwrap_or_else(|| default_kill_after(policy, margin)),
            max_hold: keeper.max_hold().filter(|_| policy.is_renewed()),
        };
        let refused = |text| Failure::new(USAGE, text);
        plan.check_hold(args.hold_at_least, margin)
            .map_err(refused)?;
        if args.on_lost == OnLost::Term && args.kill_after.is_some() {
            plan.check(&|ttl| keeper.margin(ttl)).map_err(refused)?;
            if let Some(text) = plan.short_lease(margin) {
                stderr::warn(&text);
            }
        }
        Ok(plan)
    }

    /// Refuses times that do not let the command be ended before another process can be granted the
    /// lock.
    fn check(&self, margin_of: &dyn Fn(Duration) -> Duration) -> Result<(), String> {
        let (ttl, kill_after) = (self.policy.ttl(), self.kill_after);
        let is_renewed = self.policy.is_renewed();
        let margin = margin_of(ttl);
        let needed = margin.saturating_add(kill_after);
        let (option, most, part) = match is_renewed {
            true => ("--ttl", renewed_most(ttl, margin), "more than half of"),
            false => ("--lease", ttl.saturating_sub(margin), "all of"),
        };
        if kill_after < most || is_renewed && kill_after == most {
            return Ok(());
        }
        // The margin grows with the ttl, up to a limit of its own, so the least ttl is approached.
        let approached = |next: fn(Duration, Duration) -> Duration| {
            (0..64).fold(ttl, |least, _| next(margin_of(least), kill_after))
        };
        let least = match is_renewed {
            true => approached(|margin, end| margin.saturating_add(end).saturating_mul(2)).min(
                approached(|margin, end| margin.saturating_add(end.saturating_mul(4))),
            ),
            false => approached(Duration::saturating_add),
        };
        // In whole seconds; a lease must be longer than that.
        let least = match is_renewed {
            true => least.as_millis().div_ceil(1_000),
            false => least.as_millis() / 1_000 + 1,
        };
        let least = Duration::from_secs(least.try_into().unwrap_or(u64::MAX));
        let shown = format_millis(most);
        let instead = match is_renewed {
            _ if most.as_millis() == 0 => String::new(),
            true => format!(", or --kill-after {shown} or less"),
            false => format!(", or a --kill-after below {shown}"),
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

    /// Returns a warning if the end of the command takes more than half of a lease.
    fn short_lease(&self, margin: Duration) -> Option<String> {
        let ttl = self.policy.ttl();
        let left = ttl.saturating_sub(margin).saturating_sub(self.kill_after);
        (!self.policy.is_renewed() && left < ttl / 2).then(|| {
            format!(
                "--lease {} leaves the command {}: the margin of {} and --kill-after {} are for its \
                 end; use a longer --lease, or a shorter --kill-after",
                format_millis(ttl),
                format_millis(left),
                format_millis(margin),
                format_millis(self.kill_after),
            )
        })
    }

    /// Refuses a `hold` that is longer than the lock can be kept.
    fn check_hold(&self, hold: Duration, margin: Duration) -> Result<(), String> {
        if let Some(max_hold) = self.max_hold.filter(|max_hold| *max_hold < hold) {
            let (max_hold, hold) = (format_millis(max_hold), format_millis(hold));
            return Err(format!(
                "--hold-at-least {hold} is longer than the `max_hold` of {max_hold}, after which the lock is not \
                 renewed any more; use a longer `max_hold`, or a shorter --hold-at-least"
            ));
        }
        let ttl = self.policy.ttl();
        let held = ttl.saturating_sub(margin);
        if hold.is_zero() || self.policy.is_renewed() || hold < held {
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

/// Returns the default of --kill-after. With the margin it takes at most half of the ttl. The other half is left for
/// renewals, or for the command of a lease that is not renewed.
fn default_kill_after(policy: LeasePolicy, margin: Duration) -> Duration {
    renewed_most(policy.ttl(), margin).min(MAX_DEFAULT)
}

/// Returns the largest --kill-after beside renewals. With the margin it takes at most half of the ttl. On a store whose
/// margin takes that half alone, it is a quarter of the time for which the lock is held without a renewal.
fn renewed_most(ttl: Duration, margin: Duration) -> Duration {
    let beside = (ttl / 2).saturating_sub(margin);
    beside.max(ttl.saturating_sub(margin) / 4)
}

/// Formats a duration to the millisecond, as a user would type it.
pub(super) fn format_millis(span: Duration) -> String {
    let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    format_duration(Duration::from_millis(millis)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn renewed(seconds: u32) -> LeasePolicy {
        let ttl = SECOND * seconds;
        LeasePolicy::Renewed { ttl }
    }

    fn fixed(seconds: u32) -> LeasePolicy {
        let ttl = SECOND * seconds;
        LeasePolicy::Fixed { ttl }
    }

    fn plan(policy: LeasePolicy, kill_after: Duration) -> Plan {
        Plan {
            policy,
            on_lost: OnLost::Term,
            kill_after,
            max_hold: None,
        }
    }

    #[test]
    fn margin_of_half_the_ttl_leaves_time_for_the_end_of_the_command() {
        let half = |ttl: Duration| ttl / 2;
        let policy = LeasePolicy::Renewed { ttl: 20 * SECOND };
        let end = default_kill_after(policy, half(policy.ttl()));
        assert_eq!(end, SECOND * 5 / 2);
        assert_eq!(plan(policy, end).check(&half), Ok(()));
        let error = plan(policy, 5 * SECOND).check(&half).unwrap_err();
        for part in ["use --ttl 40s or more", "--kill-after 2s 500ms or less"] {
            assert!(error.contains(part), "{error}");
        }
        let policy = LeasePolicy::Renewed { ttl: 40 * SECOND };
        assert_eq!(plan(policy, 5 * SECOND).check(&half), Ok(()));
    }

    /// Returns the margin of the engine.
    fn margin_of(ttl: Duration) -> Duration {
        (ttl / 10).min(SECOND).min(ttl / 2)
    }

    fn check(policy: LeasePolicy, kill_after: u32) -> Result<(), String> {
        plan(policy, SECOND * kill_after).check(&margin_of)
    }

    #[test]
    fn too_short_ttl_is_refused_with_the_arithmetic() {
        for (policy, kill_after) in [
            (renewed(30), 5),
            (renewed(12), 5),
            (fixed(7), 5),
            // The advice of the errors below.
            (renewed(13), 5),
            (renewed(10), 4),
            (renewed(123), 60),
        ] {
            assert_eq!(check(policy, kill_after), Ok(()));
        }
        let ttl = Duration::from_millis(1);
        for (policy, kill_after, parts) in [
            (
                renewed(10),
                5,
                &[
                    "1s",
                    "5s are 6s",
                    "--ttl 10s",
                    "--ttl 12s or more, or --kill-after 4s or less",
                ][..],
            ),
            (fixed(5), 5, &["5s 500ms", "--lease 6s"]),
            (renewed(1), 60, &["--ttl 2m 2s or more"]),
            // A --kill-after below a millisecond is not advised.
            (LeasePolicy::Renewed { ttl }, 5, &["use --ttl 12s or more"]),
        ] {
            let text = check(policy, kill_after).unwrap_err();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }

    #[test]
    fn default_kill_after_fits() {
        for (policy, millis) in [
            (renewed(30), 5_000),
            (renewed(12), 5_000),
            (renewed(10), 4_000),
            (renewed(1), 400),
            (fixed(60), 5_000),
            (fixed(4), 1_600),
        ] {
            let kill_after = default_kill_after(policy, margin_of(policy.ttl()));
            assert_eq!(kill_after, Duration::from_millis(millis));
            assert_eq!(plan(policy, kill_after).check(&margin_of), Ok(()));
        }
    }

    #[test]
    fn lease_that_leaves_less_than_half_is_warned_of() {
        let warning = |policy, kill_after| plan(policy, SECOND * kill_after).short_lease(SECOND);
        assert_eq!(warning(fixed(12), 5), None);
        assert_eq!(warning(renewed(12), 9), None);
        let text = warning(fixed(12), 6).unwrap();
        assert!(
            text.starts_with("--lease 12s leaves the command 5s: "),
            "{text}"
        );
    }

    #[test]
    fn hold_at_least_beyond_a_fixed_lease_is_refused() {
        let check = |policy, hold| plan(policy, SECOND * 5).check_hold(SECOND * hold, SECOND);
        assert_eq!(check(fixed(10), 8), Ok(()));
        assert_eq!(check(renewed(10), 60), Ok(()));
        let text = check(fixed(10), 9).unwrap_err();
        for part in ["--lease 10s", "margin of 1s is 9s", "--hold-at-least 9s"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn loss_found_late_kills_at_the_old_deadline() {
        let plan = plan(renewed(30), SECOND * 5);
        let second = |count| HostInstant::default() + SECOND * count;
        // Lost long before its deadline, and found after the host was suspended.
        for (until, kill) in [(29, 15), (12, 12), (7, 7)] {
            let deadlines = plan.at_once(second(10), second(until));
            assert_eq!((deadlines.term, deadlines.kill), (second(10), second(kill)));
        }
    }
}
