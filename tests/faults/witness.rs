//! Checks exclusion and the order of tokens.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{LockGuard, LostSignal, WaitOutcome};

/// Checks for every grant of one name that no other guard is held, and that no token is repeated.
#[derive(Clone)]
pub(crate) struct Witness(Arc<Mutex<Seen>>);

struct Seen {
    /// Whether guards may not overlap. A server that lost its leases grants a name again before the
    /// former holder can know; then only the token tells the two apart.
    strict: bool,
    tokens: BTreeSet<u64>,
    /// The latest grants, which may still be held.
    grants: VecDeque<(u64, LostSignal)>,
}

impl Witness {
    pub(crate) fn new(strict: bool) -> Self {
        Self(Arc::new(Mutex::new(Seen {
            strict,
            tokens: BTreeSet::new(),
            grants: VecDeque::new(),
        })))
    }

    #[track_caller]
    pub(crate) fn enter(&self, guard: &LockGuard) {
        let mut seen = self.0.lock().unwrap();
        let token = guard.token().get();
        assert!(seen.tokens.insert(token), "two grants, one token: {token}");
        for (known, signal) in &seen.grants {
            let overlap = guard.is_held() && signal.wait(Duration::ZERO) == WaitOutcome::TimedOut;
            assert!(
                !(seen.strict && overlap),
                "{known} and {token} are both held"
            );
            // If a later grant entered first, this grant must be over.
            assert!(
                !seen.strict || token > *known || !guard.is_held(),
                "{token} is held after {known}"
            );
        }
        seen.grants.push_back((token, guard.lost_signal()));
        if seen.grants.len() > 64 {
            seen.grants.pop_front();
        }
    }

    pub(crate) fn grants(&self) -> usize {
        self.0.lock().unwrap().tokens.len()
    }
}
