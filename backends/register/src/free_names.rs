//! The names that a provider has released, and whose entries it may write without reading them.

use std::collections::HashMap;
use std::time::Duration;

use lockkeeper_core::HostInstant;
use parking_lot::Mutex;

use crate::entry::Contents;
use crate::key::Key;
use crate::store::Version;

/// How long the entry of a free name is kept.
pub(crate) const KEPT: Duration = Duration::from_secs(60);
/// The number of free names from which on they are kept for a second only.
const MANY: usize = 4_096;

/// The names that this provider has released last, and whose entries it can write without reading them.
#[derive(Debug, Default)]
pub(crate) struct FreeNames(Mutex<HashMap<Key, FreeName>>);

#[derive(Clone, Copy, Debug)]
struct FreeName {
    version: Version,
    last: u64,
    since: HostInstant,
}

impl FreeNames {
    /// Returns the version and the last epoch of the entry of a free name.
    pub(crate) fn get(&self, key: &Key) -> Option<(Version, u64)> {
        let names = self.0.lock();
        names.get(key).map(|free| (free.version, free.last))
    }

    /// Records what was written to an entry. `None` is a write that was refused.
    pub(crate) fn note(
        &self,
        key: &Key,
        contents: Option<&Contents>,
        version: Option<Version>,
        since: HostInstant,
    ) {
        let free = contents.filter(|it| it.is_free()).zip(version);
        let mut names = self.0.lock();
        match free {
            Some((contents, version)) => {
                let last = contents.last;
                let free = FreeName {
                    version,
                    last,
                    since,
                };
                names.insert(key.clone(), free);
            }
            None => drop(names.remove(key)),
        }
    }

    /// Removes and returns the names that are to be removed from the store.
    pub(crate) fn take_due(&self, kept: Duration, now: HostInstant) -> Vec<(Key, Version, u64)> {
        let mut names = self.0.lock();
        let kept = match names.len() >= MANY {
            true => kept.min(Duration::from_secs(1)),
            false => kept,
        };
        let due = names.extract_if(|_, free| now >= free.since + kept);
        due.map(|(key, free)| (key, free.version, free.last))
            .collect()
    }

    /// Takes names back that could not be removed from the store. They are due at once.
    pub(crate) fn put_back(&self, due: Vec<(Key, Version, u64)>) {
        let mut names = self.0.lock();
        for (key, version, last) in due {
            let since = HostInstant::default();
            names.entry(key).or_insert(FreeName {
                version,
                last,
                since,
            });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
