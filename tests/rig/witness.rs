//! Who holds a name, and whether two do.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{LockGuard, LostSignal, WaitOutcome};

/// Sees every grant of one name, and that no other guard says that it is held.
#[derive(Clone)]
pub(crate) struct Witness(Arc<Mutex<Seen>>);

struct Seen {
    /// Whether guards may not overlap: a server that has forgotten grants a name again before its
    /// holder knows; the token tells them apart then.
    strict: bool,
    tokens: BTreeSet<u64>,
    /// The latest, which may still be held.
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
            assert!(!(seen.strict && overlap), "{known} and {token} both hold");
            // A later grant was seen first: this one must be over.
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
