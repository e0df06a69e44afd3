//! The requests of this process that wait, and the names that are watched for them. A request waits until keys of its
//! name are deleted.
//!
//! A name is watched as a whole, and for a moment after a wait: the next request that waits for it needs no other stream.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::sync::Unparker;

use crate::attempt::Queued;
use crate::keys::KeyRange;
use crate::queue::Ahead;

/// A name for which no request waits is of no use this long after the last one.
const LINGER: Duration = Duration::from_secs(1);
/// With more names than this, another stream watches only those for which requests wait.
const MANY: usize = 64;

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

/// The names that are watched, by the first of their keys.
#[derive(Default)]
pub(crate) struct Names {
    names: BTreeMap<String, Name>,
    last_id: u64,
}

struct Name {
    keys: KeyRange,
    /// The stream has told of all deletions before this revision.
    next: i64,
    /// When a request ended its wait.
    used_at: Instant,
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    ahead: Ahead,
    /// The revision at which this was ahead.
    revision: i64,
    signal: Signal,
}

impl Name {
    fn is_of_use(&self) -> bool {
        !self.waiting.is_empty() || self.used_at.elapsed() < LINGER
    }

    fn wake_all(&self) {
        self.waiting.values().for_each(|it| it.signal.wake());
    }
}

impl Names {
    /// Enters a request for the name with these keys. Returns the request's number, and whether the name is new.
    pub(crate) fn enter(
        &mut self,
        keys: &KeyRange,
        queued: &Queued,
        signal: Signal,
    ) -> (u64, bool) {
        self.last_id += 1;
        let (id, is_new) = (self.last_id, !self.names.contains_key(&keys.first));
        let from = queued.revision + 1;
        let name = self.names.entry(keys.first.clone()).or_insert(Name {
            keys: keys.clone(),
            next: from,
            used_at: Instant::now(),
            waiting: BTreeMap::new(),
        });
        if name.next > from {
            // The stream may have told of the deletions already.
            signal.wake();
        }
        let waiting = Waiting {
            ahead: queued.ahead.clone(),
            revision: queued.revision,
            signal,
        };
        name.waiting.insert(id, waiting);
        (id, is_new)
    }

    pub(crate) fn leave(&mut self, keys: &KeyRange, id: u64) {
        if let Some(name) = self.names.get_mut(&keys.first) {
            name.waiting.remove(&id);
            name.used_at = Instant::now();
        }
    }

    /// Returns whether no request waits.
    pub(crate) fn is_unused(&self) -> bool {
        self.names.values().all(|name| name.waiting.is_empty())
    }

    /// Returns the newest revision that the stream has told of or a request has seen; 0 if there is no name.
    pub(crate) fn newest(&self) -> i64 {
        let names = self.names.values();
        names.map(|name| name.next - 1).max().unwrap_or(0)
    }

    /// Forgets the names that are of no use. Returns the keys of the others, each with the revision from which they are to
    /// be watched.
    pub(crate) fn in_use(&mut self) -> impl Iterator<Item = (&KeyRange, i64)> {
        let is_many = self.names.len() > MANY;
        self.names
            .retain(|_, name| name.is_of_use() && !(is_many && name.waiting.is_empty()));
        self.names.values().map(|name| (&name.keys, name.next))
    }

    /// Counts the deletions of keys of a name, each with its revision. Returns whether the name is still of use.
    pub(crate) fn deleted(&mut self, first: &str, deletions: &[(String, i64)]) -> bool {
        let Some(name) = self.names.get_mut(first) else {
            return true;
        };
        for (key, at) in deletions {
            name.next = name.next.max(at + 1);
            for waiting in name.waiting.values_mut() {
                if *at > waiting.revision && waiting.ahead.keys.contains(key) {
                    waiting.ahead.deletions = waiting.ahead.deletions.saturating_sub(1);
                    if waiting.ahead.deletions == 0 {
                        waiting.signal.wake();
                    }
                }
            }
        }
        name.is_of_use()
    }

    /// Forgets a name of which the stream tells no more. Its requests look for themselves.
    pub(crate) fn cancelled(&mut self, first: &str) {
        if let Some(name) = self.names.remove(first) {
            name.wake_all();
        }
    }

    /// Forgets all names. Their requests look for themselves.
    pub(crate) fn clear(&mut self) {
        self.names.values().for_each(Name::wake_all);
        self.names.clear();
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_utils::sync::Parker;

    use crate::wire::Seen;

    use super::*;

    struct Rig(Names, KeyRange);

    impl Rig {
        /// Enters a request that saw `key` ahead, or that many keys, at a revision.
        fn enter(&mut self, key: Option<&str>, deletions: u32, revision: i64) -> Arc<AtomicBool> {
            let keys = match key {
                Some(key) => KeyRange::one(format!("{}{key}", self.1.first)),
                None => self.1.clone(),
            };
            let (created, modified) = (1, 1);
            let queued = Queued {
                seen: Seen { created, modified },
                revision,
                ahead: Ahead { keys, deletions },
            };
            let is_due = Arc::<AtomicBool>::default();
            let unparker = Parker::new().unparker().clone();
            let signal = Signal {
                is_due: Arc::clone(&is_due),
                unparker,
            };
            self.0.enter(&self.1, &queued, signal);
            is_due
        }

        fn delete(&mut self, key: &str, at: i64) -> bool {
            let first = self.1.first.clone();
            self.0.deleted(&first, &[(format!("{first}{key}"), at)])
        }
    }

    fn rig() -> Rig {
        Rig(Names::default(), KeyRange::under("n/"))
    }

    #[test]
    fn request_is_due_after_the_deletions_that_follow_its_look() {
        let due = |it: &Arc<AtomicBool>| it.load(Ordering::SeqCst);
        let mut rig = rig();
        let (lock, permit) = (rig.enter(Some("b"), 1, 5), rig.enter(None, 2, 6));
        rig.delete("a", 6);
        assert!(!due(&lock) && !due(&permit));
        rig.delete("b", 7);
        assert!(due(&lock) && !due(&permit));
        rig.delete("c", 8);
        assert!(due(&permit));
        // The stream has told of what came after this look.
        let (late, current) = (rig.enter(Some("d"), 1, 7), rig.enter(Some("d"), 1, 8));
        assert!(due(&late) && !due(&current));
        let watched: Vec<_> = rig.0.in_use().map(|(_, from)| from).collect();
        assert_eq!(watched, [9]);
        rig.0.cancelled("n/");
        assert!(due(&current));
    }

    #[test]
    fn name_is_watched_while_requests_wait_and_for_a_moment_more() {
        let mut rig = rig();
        rig.enter(Some("a"), 1, 5);
        assert!(rig.delete("a", 6));
        assert!(!rig.0.is_unused());
        let keys = rig.1.clone();
        rig.0.leave(&keys, 1);
        assert!(rig.0.is_unused());
        assert!(rig.delete("a", 7));
        rig.0.names.get_mut("n/").unwrap().used_at -= LINGER;
        assert!(!rig.delete("a", 8));
        assert_eq!(rig.0.in_use().count(), 0);
    }
}
