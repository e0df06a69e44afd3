//! What is known of one run of the server, and the sessions in it.

/// What is known of one run of the server, from its start to its end.
///
/// The second in `UUID_SHORT()` is that of the server's start, and one more after each 2^24 calls. It stays behind the
/// server's clock, and the next run starts with a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    /// The second that was in `UUID_SHORT()` first.
    pub(crate) first: u64,
    /// The second that was in it last.
    pub(crate) last: u64,
    /// The second of the server's clock when a connection was opened, or what [`renewed`](Self::renewed) makes of it.
    pub(crate) until: u64,
}

impl Run {
    /// Returns the first second in which another run can start.
    pub(crate) fn end(self) -> u64 {
        self.until.max(self.last + 1)
    }

    /// Returns whether both are of the same run.
    pub(crate) fn is(self, other: Self) -> bool {
        self.first.max(other.first) < self.end().min(other.end())
    }

    /// Returns what a renewal on a connection of this run saw: the second in `UUID_SHORT()`, and that of the server's clock.
    ///
    /// Before the next renewal, a connection may be opened after another step of the counter, and is of this run. If the
    /// clock has not passed that second, another run can still start in it.
    pub(crate) fn renewed(self, last: u64, clock: u64) -> Self {
        let until = self.until.max(clock.min(last + 2));
        Self {
            last,
            until,
            ..self
        }
    }

    /// Adds what was seen after it. Another run takes its place.
    pub(crate) fn add(&mut self, seen: Self) {
        *self = match self.is(seen) {
            true => Self {
                first: self.first.min(seen.first),
                last: self.last.max(seen.last),
                until: self.until.max(seen.until),
            },
            false => seen,
        };
    }
}

/// The identity of a session. A server that is started again counts its sessions from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    /// The number that `CONNECTION_ID()`, `IS_USED_LOCK()` and `KILL` use.
    pub(crate) id: u64,
    pub(crate) run: Run,
}

impl SessionId {
    /// Compares the number that a connection knows with the number that the server reports. The
    /// connection knows only the 32 bits of the greeting.
    pub(crate) fn is(self, seen: Self) -> bool {
        self.run.is(seen.run) && self.id == seen.id & u64::from(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(second: u64, until: u64) -> Run {
        let (first, last) = (second, second);
        Run { first, last, until }
    }

    #[test]
    fn session_is_known_after_steps_of_the_counter() {
        let session = |run| SessionId { id: 7, run };
        // A connection that is opened 3 s after the start, and one that is opened after three steps.
        let (early, late) = (opened(1_000, 1_003), opened(1_003, 2_000));
        let mut known = Run::default();
        known.add(early);
        known.add(early.renewed(1_003, 1_003));
        known.add(late);
        for run in [early, late] {
            assert!(session(run).is(session(known)), "{run:?}");
        }
        known.add(opened(2_000, 2_001));
        assert_eq!(known, opened(2_000, 2_001));
        for run in [early, late] {
            assert!(!session(run).is(session(known)), "{run:?}");
        }
    }

    #[test]
    fn connection_after_a_step_is_of_the_same_run_if_the_clock_is_ahead() {
        let early = opened(1_000, 1_003);
        for (clock, step, is_same) in [
            (9_000, 1_004, true),
            (1_005, 1_004, true),
            // Another run may have started in that second, or in one of the later ones.
            (1_004, 1_004, false),
            (9_000, 1_005, false),
        ] {
            let mut known = early;
            known.add(early.renewed(1_003, clock));
            assert_eq!(known.is(opened(step, 9_000)), is_same, "{clock} {step}");
        }
    }
}
