//! Checks exclusion and the order of tokens.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{LockGuard, LostSignal, WaitOutcome};

/// How long a witness waits for the loss of a guard whose session was cut. It is less than the rest of a guard's
/// ttl of 6 s. So a guard that notices the loss only by its own deadline is still held then, and the test fails.
const NOTICE: Duration = Duration::from_secs(2);

/// Checks for every grant of one name that no other guard is held, and that no token is repeated.
#[derive(Clone)]
pub(crate) struct Witness(Arc<Mutex<Seen>>);

struct Seen {
    /// How long an earlier guard may be held beside a later one. `None` is no limit: a server that lost its leases
    /// grants a name again before the former holder can know. Then only the tokens are checked.
    notice: Option<Duration>,
    tokens: BTreeSet<u64>,
    /// The grants that have not left.
    inside: Vec<(u64, LostSignal)>,
}

impl Witness {
    /// Makes a witness. One that is not `strict` checks the tokens alone.
    pub(crate) fn new(strict: bool) -> Self {
        Self::with_notice(strict.then_some(Duration::ZERO))
    }

    /// Makes a witness for keepers whose sessions are cut. When a session is cut, the server frees its names before the
    /// holder is told, and may grant them to the next caller in between. So the witness waits for the former holder's
    /// loss. That holder cannot release its guard meanwhile if it uses [`pass`](Self::pass).
    pub(crate) fn of_cut_sessions() -> Self {
        Self::with_notice(Some(NOTICE))
    }

    fn with_notice(notice: Option<Duration>) -> Self {
        Self(Arc::new(Mutex::new(Seen {
            notice,
            tokens: BTreeSet::new(),
            inside: Vec::new(),
        })))
    }

    /// Checks a guard that the caller keeps.
    #[track_caller]
    pub(crate) fn enter(&self, guard: &LockGuard) {
        let mut seen = self.0.lock().unwrap();
        let token = guard.token().get();
        assert!(seen.tokens.insert(token), "two grants, one token: {token}");
        let signal = guard.lost_signal();
        if let Some(notice) = seen.notice {
            let ends = |signal: &LostSignal| signal.wait(notice) != WaitOutcome::TimedOut;
            for (known, earlier) in seen.inside.iter().filter(|(known, _)| *known < token) {
                assert!(
                    !guard.is_held() || ends(earlier),
                    "{known} and {token} are both held"
                );
            }
            // If a later grant entered first, this guard must be over.
            let last = seen.tokens.last().copied();
            assert!(
                last == Some(token) || ends(&signal),
                "{token} is held after {last:?}"
            );
        }
        seen.inside.push((token, signal));
    }

    /// Checks a guard, and drops it.
    #[track_caller]
    pub(crate) fn pass(&self, guard: LockGuard) {
        self.enter(&guard);
        let token = guard.token().get();
        let mut seen = self.0.lock().unwrap();
        seen.inside.retain(|(inside, _)| *inside != token);
        drop(seen);
        drop(guard);
    }

    pub(crate) fn grants(&self) -> usize {
        self.0.lock().unwrap().tokens.len()
    }
}
