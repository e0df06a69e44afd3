//! Removes the entries of free names.
//!
//! A released name keeps its entry for a while, so that its next lock needs no read, and its epochs grow. The entry of the
//! namespace `floor` has the largest epoch of all entries that were removed: it is raised before they are, and a write that
//! makes an entry has the floor's version as a condition. So the epochs of a name grow also if its entry was removed, and
//! a write that arrives late makes no entry again, whatever the clocks say.
//!
//! A provider removes what it has released itself, and at its end. Now and then it looks for what dead processes left.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_core::{Error, epochs_in};
use lockkeeper_remote::pause;

use crate::entry::Contents;
use crate::exchange::MAX_PAUSE;
use crate::free_names::KEPT;
use crate::key::Key;
use crate::register::Register;
use crate::store::{Call, Read, SessionId, Version, Write};

impl Register {
    /// Removes the entries of the names that this provider has released, and that have been free for this long.
    pub(crate) fn remove_own(&self, kept: Duration, call: Call<'_>) {
        let mut due = self.freed.take_due(kept, self.now());
        // What is left after a failure is removed next time, or by another program.
        if self.remove_entries(&mut due, call).is_err() {
            self.freed.put_back(due);
        }
    }

    /// Removes the entries of free names that dead processes have left.
    pub(crate) fn remove_abandoned(&self, call: Call<'_>) -> Result<(), Error> {
        let mut found = Vec::new();
        for entry in self.store.list(call)? {
            // Another program writes what cannot be read. An operator is told of it by `doctor`.
            if let Ok(contents) = Contents::read(&entry.value) {
                found.push((entry.version, contents));
            }
        }
        found.retain(|(_, contents)| Key::read(&contents.key).name().is_some());
        let ended = self.ended_of(found.iter().map(|it| &it.1), call)?;
        let left = found.into_iter().filter_map(|(version, mut contents)| {
            contents.end(|session| ended.contains(session));
            let key = Key::read(&contents.key);
            contents.is_free().then_some((key, version, contents.last))
        });
        let old = self.least_epoch().saturating_sub(epochs_in(KEPT));
        let mut left: Vec<_> = left.filter(|it| it.2 < old).collect();
        self.remove_entries(&mut left, call)
    }

    /// Returns which sessions of these contents have ended.
    pub(crate) fn ended_of<'c>(
        &self,
        contents: impl Iterator<Item = &'c Contents>,
        call: Call<'_>,
    ) -> Result<Vec<SessionId>, Error> {
        let sessions: BTreeSet<&str> = contents
            .flat_map(Contents::sessions)
            .map(String::as_str)
            .collect();
        let sessions: Vec<&str> = sessions.into_iter().collect();
        let mut ended = Vec::new();
        for check in sessions.chunks(self.batch()) {
            let read = Read {
                check,
                ..Read::default()
            };
            ended.append(&mut self.store.read(&read, call)?.ended);
        }
        Ok(ended)
    }

    /// Removes entries that still have these versions. After an error, those that were removed are no longer in the list.
    fn remove_entries(
        &self,
        entries: &mut Vec<(Key, Version, u64)>,
        call: Call<'_>,
    ) -> Result<(), Error> {
        let Some(largest) = entries.iter().map(|it| it.2).max() else {
            return Ok(());
        };
        while !self.raise_floor(largest, call)? {
            // A transaction may have locked the floor. The store ends the last read at the deadline.
            pause(MAX_PAUSE.mul_f64(fastrand::f64()), call.cancel);
        }
        while !entries.is_empty() {
            let rest = entries.len().saturating_sub(self.batch());
            let removes = entries.iter().skip(rest);
            let removes = removes.map(|(key, version, _)| Write {
                key,
                seen: Some(*version),
                session: None,
                also: None,
                value: None,
            });
            let writes: Vec<_> = removes.collect();
            self.store.write(&writes, call)?;
            entries.truncate(rest);
        }
        Ok(())
    }

    /// Raises the floor to `epoch`. Returns false if another program has changed it meanwhile.
    fn raise_floor(&self, epoch: u64, call: Call<'_>) -> Result<bool, Error> {
        let keys = &[&self.floor];
        let view = self.store.read(
            &Read {
                keys,
                ..Read::default()
            },
            call,
        )?;
        let entry = view.entries.into_iter().next().flatten();
        let floor = entry
            .as_ref()
            .map(|entry| Contents::read(&entry.value))
            .transpose()?;
        if floor.is_some_and(|floor| floor.last >= epoch) {
            return Ok(true);
        }
        let text = Contents::free(&self.floor, epoch).text();
        let write = Write {
            key: &self.floor,
            seen: entry.map(|it| it.version),
            session: None,
            also: None,
            value: Some(&text),
        };
        let written = self.store.write(&[write], call)?;
        Ok(matches!(&*written, [Some(_)]))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_utils::sync::Parker;
    use lockkeeper_core::{Mode, SystemClock};

    use super::*;
    use crate::entry::Waiter;
    use crate::map_store::{Faults, Map, MapStore};

    fn register() -> (Arc<Map>, Register) {
        let map = Arc::new(Map::new(false, Faults::default()));
        let unparker = Parker::new().unparker().clone();
        let clock = Arc::new(SystemClock);
        let register = Register::new(Arc::new(MapStore::new(&map, "n")), clock, unparker);
        (map, register)
    }

    /// Makes an entry.
    fn write(register: &Register, key: &Key, contents: &Contents) -> Option<Version> {
        let write = Write {
            key,
            seen: None,
            session: None,
            also: None,
            value: Some(&contents.text()),
        };
        let written = register.store.write(&[write], register.background_call());
        written.unwrap().remove(0)
    }

    #[test]
    fn free_name_that_could_not_be_removed_is_removed_next_time() {
        let (map, register) = register();
        let call = register.background_call();
        let key = Key::read("lock/a");
        let contents = Contents::free(&key, 5);
        let version = write(&register, &key, &contents);
        let since = register.now();
        register.freed.note(&key, Some(&contents), version, since);
        for is_cut_off in [true, false] {
            map.set(|faults| faults.is_cut_off = is_cut_off);
            register.remove_own(std::time::Duration::ZERO, call);
        }
        let left = register.store.list(call).unwrap();
        let left: Vec<_> = left
            .iter()
            .filter(|it| it.value.contains("lock/a"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn what_dead_processes_left_is_removed_below_the_floor() {
        let (_map, register) = register();
        let call = register.background_call();
        let session = register.store.open_session(KEPT, call).unwrap();
        let young = register.least_epoch();
        let entries = [
            ("lock/dead", 5, Some("dead")),
            ("permits/free", 7, None),
            ("lock/live", 9, Some(session.as_str())),
            ("lock/young", young, None),
            ("namespace/other", 3, None),
        ];
        for (key, last, session) in entries {
            let key = Key::read(key);
            let mut contents = Contents::free(&key, last);
            contents.queue.extend(session.map(|session| Waiter {
                owner: "1-1".to_owned(),
                mode: Mode::Exclusive,
                session: session.to_owned(),
            }));
            write(&register, &key, &contents);
        }
        register.remove_abandoned(call).unwrap();
        let left = register.store.list(call).unwrap();
        let left = left.iter().map(|it| Contents::read(&it.value).unwrap());
        let mut left: Vec<_> = left.map(|it| (it.key, it.last)).collect();
        left.sort();
        let expected = [
            ("lock/live", 9),
            ("lock/young", young),
            ("namespace/floor", 7),
            ("namespace/other", 3),
        ];
        assert_eq!(left, expected.map(|(key, last)| (key.to_owned(), last)));
    }
}
