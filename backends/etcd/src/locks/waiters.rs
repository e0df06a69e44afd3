//! The requests of this process that wait, and what the stream of the listener tells them: each waits until keys of its
//! name are deleted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::sync::Unparker;

use super::queue::Ahead;
use crate::wire::keys::{KeyRange, name_prefix};

/// The stream goes on to tell of deletions this long after the last wait: the next one needs no other stream.
const LINGER: Duration = Duration::from_secs(1);
/// How many deletions are remembered, for a request that looked before it was entered here.
const RECENT: usize = 256;

/// Wakes the thread of a request.
#[derive(Clone)]
pub(crate) struct Signal {
    pub(crate) is_due: Arc<AtomicBool>,
    pub(crate) unparker: Unparker,
}

impl Signal {
    fn wake(&self) {
        self.is_due.store(true, Ordering::SeqCst);
        self.unparker.unpark();
    }
}

/// The requests that wait.
#[derive(Default)]
pub(crate) struct Waiters {
    /// By the prefix of their name's keys, and a number.
    waiting: BTreeMap<(String, u64), Waiting>,
    last_id: u64,
    /// When a request ended its wait.
    used_at: Option<Instant>,
    /// All deletions after this revision are in `recent`, or come. `None` while no stream tells of deletions.
    told_from: Option<i64>,
    recent: VecDeque<(String, i64)>,
}

struct Waiting {
    ahead: Ahead,
    /// The revision at which this was ahead.
    revision: i64,
    signal: Signal,
}

impl Waiting {
    fn deleted(&mut self, key: &str, at: i64) {
        if at > self.revision && self.ahead.keys.contains(key) {
            self.ahead.deletions = self.ahead.deletions.saturating_sub(1);
            if self.ahead.deletions == 0 {
                self.signal.wake();
            }
        }
    }
}

impl Waiters {
    /// Enters a request for the name with these keys, and what was ahead of it at a revision. Returns the request's
    /// number.
    pub(crate) fn enter(
        &mut self,
        keys: &KeyRange,
        ahead: Ahead,
        revision: i64,
        signal: Signal,
    ) -> u64 {
        let mut waiting = Waiting {
            ahead,
            revision,
            signal,
        };
        if self.told_from.is_some_and(|from| revision < from) {
            // The deletion that it waits for may be forgotten.
            waiting.signal.wake();
        }
        for (key, at) in &self.recent {
            waiting.deleted(key, *at);
        }
        self.last_id += 1;
        self.waiting
            .insert((keys.first.clone(), self.last_id), waiting);
        self.last_id
    }

    pub(crate) fn leave(&mut self, keys: &KeyRange, id: u64) {
        self.waiting.remove(&(keys.first.clone(), id));
        self.used_at = Some(Instant::now());
    }

    /// Returns whether no request waits.
    pub(crate) fn is_unused(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether no request waits, or did lately.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_unused() && self.used_at.is_none_or(|at| at.elapsed() > LINGER)
    }

    /// Notes that a stream tells of all deletions after a revision. A request that looked at another one looks again. (A
    /// larger one may be that of a former cluster: revisions begin again.)
    pub(crate) fn begin(&mut self, revision: i64) {
        self.told_from = Some(revision);
        let other = self.waiting.values().filter(|it| it.revision != revision);
        other.for_each(|it| it.signal.wake());
    }

    /// Notes that no stream tells of deletions.
    pub(crate) fn end(&mut self) {
        self.told_from = None;
        self.recent.clear();
    }

    /// Counts the deletion of a key at a revision.
    pub(crate) fn deleted(&mut self, key: String, at: i64) {
        let name = name_prefix(&key).to_owned();
        let of_name = (name.clone(), 0)..=(name, u64::MAX);
        for (_, waiting) in self.waiting.range_mut(of_name) {
            waiting.deleted(&key, at);
        }
        if self.recent.len() == RECENT
            && let Some((_, forgotten)) = self.recent.pop_front()
        {
            self.told_from = Some(forgotten);
        }
        self.recent.push_back((key, at));
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_utils::sync::Parker;

    use super::*;

    const NAME: &str = "lockkeeper/n/l/a/";

    struct Rig(Waiters, KeyRange);

    impl Rig {
        /// Enters a request that saw `key` ahead, or that many keys, at a revision.
        fn enter(&mut self, key: Option<&str>, deletions: u32, revision: i64) -> Arc<AtomicBool> {
            let keys = match key {
                Some(key) => KeyRange::one(format!("{NAME}{key}")),
                None => self.1.clone(),
            };
            let ahead = Ahead { keys, deletions };
            let is_due = Arc::<AtomicBool>::default();
            let unparker = Parker::new().unparker().clone();
            let signal = Signal {
                is_due: Arc::clone(&is_due),
                unparker,
            };
            self.0.enter(&self.1, ahead, revision, signal);
            is_due
        }

        fn delete(&mut self, key: &str, at: i64) {
            self.0.deleted(format!("{NAME}{key}"), at);
        }
    }

    fn rig() -> Rig {
        Rig(Waiters::default(), KeyRange::under(NAME))
    }

    fn due(it: &Arc<AtomicBool>) -> bool {
        it.load(Ordering::SeqCst)
    }

    #[test]
    fn request_is_due_after_the_deletions_that_follow_its_look() {
        let mut rig = rig();
        rig.0.begin(5);
        let (lock, permit) = (rig.enter(Some("b"), 1, 5), rig.enter(None, 2, 6));
        rig.delete("a", 6);
        assert!(!due(&lock) && !due(&permit));
        rig.0.deleted("lockkeeper/n/l/b/b".to_owned(), 6);
        assert!(!due(&lock));
        rig.delete("b", 7);
        assert!(due(&lock) && !due(&permit));
        rig.delete("c", 8);
        assert!(due(&permit));
    }

    #[test]
    fn request_is_due_if_the_deletion_was_told_before_it_was_entered() {
        let mut rig = rig();
        rig.0.begin(5);
        rig.delete("d", 8);
        let (late, current) = (rig.enter(Some("d"), 1, 7), rig.enter(Some("d"), 1, 8));
        assert!(due(&late) && !due(&current));
        // It is remembered no longer.
        for at in 9..=9 + 256 {
            rig.0.deleted("lockkeeper/n/l/b/b".to_owned(), at);
        }
        let (late, current) = (rig.enter(Some("c"), 1, 8), rig.enter(Some("c"), 1, 9));
        assert!(due(&late) && !due(&current));
    }

    #[test]
    fn request_that_looked_before_the_stream_began_looks_again() {
        let mut rig = rig();
        let requests = [4, 5, 6].map(|revision| rig.enter(Some("a"), 1, revision));
        rig.0.begin(5);
        assert_eq!(requests.each_ref().map(due), [true, false, true]);
        let early = rig.enter(Some("a"), 1, 4);
        assert!(due(&early));
        rig.0.end();
        assert!(!due(&rig.enter(Some("a"), 1, 4)));
    }

    #[test]
    fn stream_is_of_use_while_requests_wait_and_for_a_moment_more() {
        let mut rig = rig();
        assert!(rig.0.is_idle());
        rig.enter(Some("a"), 1, 5);
        assert!(!rig.0.is_unused());
        let keys = rig.1.clone();
        rig.0.leave(&keys, 1);
        assert!(rig.0.is_unused() && !rig.0.is_idle());
        rig.0.used_at = rig.0.used_at.map(|at| at - 2 * LINGER);
        assert!(rig.0.is_idle());
    }
}
