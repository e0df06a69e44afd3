//! Checks exclusion and the order of tokens.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{LockGuard, LostSignal, WaitOutcome};

use super::WAIT_LIMIT;

/// Checks for every grant of one name that no other guard is held, and that no token is repeated.
#[derive(Clone)]
pub(crate) struct Witness(Arc<Mutex<Seen>>);

struct Seen {
    /// How long an earlier guard may be held beside a later one. `None`: for as long as it wants, since a server that lost
    /// its leases grants a name again before the former holder can know; then only the token tells the two apart.
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

    /// Makes a witness of grants whose sessions may be cut. The server frees the names of such a session at once, so the
    /// next grant can come before the former holder is told. But it has to be told, and not by its own release: a guard that
    /// [passes](Self::pass) does not end while another one enters.
    pub(crate) fn of_cut_sessions() -> Self {
        Self::with_notice(Some(WAIT_LIMIT))
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
            for (known, of_known) in &seen.inside {
                let earlier = if token > *known { of_known } else { &signal };
                assert!(
                    !guard.is_held() || ends(earlier),
                    "{known} and {token} are both held"
                );
            }
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
