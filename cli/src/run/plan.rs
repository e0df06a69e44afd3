//! The times of a run: whether a command can be ended before anyone else is granted the name.

use std::time::Duration;

use humantime::format_duration;
use lockkeeper::{Clock, LeasePolicy, LockGuard, LockKeeper, Moment, SystemClock};

use crate::args::{OnLost, Run};
use crate::trouble::{CONFIG, Trouble, USAGE};

/// Without --kill-after; its help says so.
const KILL_AFTER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) policy: LeasePolicy,
    on_lost: OnLost,
    kill_after: Duration,
}

/// When the command has to end, if nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadline {
    pub(super) term: Moment,
    pub(super) kill: Moment,
    /// Until when no other command of this host is to start under the name.
    pub(super) claim: Moment,
}

impl Deadline {
    pub(super) const NEVER: Self = Self {
        term: Moment::NEVER,
        kill: Moment::NEVER,
        claim: Moment::NEVER,
    };
    /// The lock is lost and the command goes on: whoever has it next need not wait for that.
    pub(super) const WITHOUT_LOCK: Self = Self {
        claim: Moment::from_nanos(0),
        ..Self::NEVER
    };
}

impl Plan {
    pub(super) fn new(args: &Run, keeper: &LockKeeper) -> Result<Self, Trouble> {
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
                .map_err(|text| Trouble::new(USAGE, text))?;
        }
        if args.on_lost == OnLost::Term {
            plan.check(&|ttl| keeper.margin(ttl)).map_err(|text| {
                let said_here = args.lease.or(args.ttl).or(args.kill_after).is_some();
                Trouble::new(if said_here { USAGE } else { CONFIG }, text)
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
        // The margin grows with the ttl, up to its own limit.
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
            format!(", or --kill-after {} or less", short(most))
        } else {
            format!(", or a --kill-after below {}", short(most))
        };
        Err(format!(
            "the command could not be ended before the lock is somebody else's: the margin of {} \
             and --kill-after {} are {}, which is {part} {option} {}; use {option} {} or \
             more{instead}",
            short(margin),
            short(kill_after),
            short(needed),
            short(ttl),
            short(least),
        ))
    }

    /// Whether a lock that nobody renews can be kept for `hold`.
    fn check_hold(&self, hold: Duration, margin: Duration) -> Result<(), String> {
        let ttl = self.policy.ttl();
        let held = ttl.saturating_sub(margin);
        if self.policy.is_renewed() || hold < held {
            return Ok(());
        }
        Err(format!(
            "the lock could not be kept that long: --lease {} less the margin of {} is {}, and \
             --hold-at-least {} is not below that; use a longer --lease, or --ttl",
            short(ttl),
            short(margin),
            short(held),
            short(hold),
        ))
    }

    /// For a lock as it is now. `None`: it is lost, or there is no time left for a command.
    pub(super) fn deadline_of(&self, guard: &LockGuard) -> Option<Deadline> {
        let now = SystemClock.now();
        let remaining = guard.remaining();
        let deadline = self.deadline(now + remaining);
        (!remaining.is_zero() && now < deadline.term).then_some(deadline)
    }

    /// For a lock that is held until `until`.
    pub(super) fn deadline(&self, until: Moment) -> Deadline {
        match self.on_lost {
            OnLost::Term => Deadline {
                term: until - self.kill_after,
                kill: until,
                claim: until,
            },
            OnLost::Warn => Deadline {
                claim: until,
                ..Deadline::NEVER
            },
        }
    }

    /// For a lock that turned out to be lost `now`. It was never believed in beyond `until`: where
    /// that is over, somebody else may hold it already.
    pub(super) fn at_once(&self, now: Moment, until: Moment) -> Deadline {
        let kill = until.min(now + self.kill_after);
        Deadline {
            term: now,
            kill,
            claim: kill,
        }
    }

    pub(super) fn ends_the_lost(&self) -> bool {
        self.on_lost == OnLost::Term
    }
}

/// To the millisecond, as it would be typed.
fn short(span: Duration) -> String {
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
        // As the engine does it.
        ending(policy, kill_after).check(&|ttl| (ttl / 10).min(Duration::from_secs(1)).min(ttl / 2))
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_arithmetic() {
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
        // Following the advice helps.
        assert_eq!(plan(renewed(13), 5), Ok(()));
        assert_eq!(plan(renewed(10), 4), Ok(()));
        let text = plan(renewed(1), 60).unwrap_err();
        assert_eq!(plan(renewed(123), 60), Ok(()), "{text}");
        // Less than a millisecond is no advice.
        let ttl = Duration::from_millis(1);
        let text = plan(LeasePolicy::Renewed { ttl }, 5).unwrap_err();
        assert!(text.ends_with("use --ttl 12s or more"), "{text}");
    }

    #[test]
    fn a_fixed_lease_is_kept_no_longer_than_it_is_believed_in() {
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
    fn a_loss_found_late_leaves_no_time() {
        let ttl = Duration::from_secs(30);
        let plan = ending(LeasePolicy::Renewed { ttl }, 5);
        let second = |count| Moment::default() + Duration::from_secs(count);
        // Taken away long before its time, and found after everything had stood still.
        for (until, kill) in [(29, 15), (12, 12), (7, 7)] {
            let deadline = plan.at_once(second(10), second(until));
            assert_eq!((deadline.term, deadline.kill), (second(10), second(kill)));
        }
    }
}
