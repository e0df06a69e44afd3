//! The readers of a lock, as named locks.
//!
//! A shared lease is a slot: one of [`MAX_READERS`] names beside the lock's own. A session takes a slot while it holds
//! the lock's name, which it releases in the same statement. So the server's queue for that name is the order of
//! readers and writers, and a session that keeps the name lets no reader in.
//!
//! A session that took the lock's name has the lock once all slots are free. To look them up takes time, so a name of the
//! namespace says whether any process reads: see [`Guardian`](crate::guardian::Guardian).
//!
//! An attempt holds the lock's name before it knows whether it succeeds. Another attempt would take it for a writer, so
//! attempts make way for each other at a gate.

use std::collections::HashSet;

use crate::dialect::Timed;
use crate::names::EncodedName;
use crate::permits::Template;

/// The largest number of shared leases of a name: a writer looks up every slot.
pub(crate) const MAX_READERS: u32 = 32;

/// The number of slots that an attempt looks up at first: each takes time, and few processes read one name.
pub(crate) const FIRST_SLOTS: u32 = 4;

/// What a request for a slot found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A free slot, which it took.
    Slot(u32),
    /// The lock's name is held, by a writer or by a session that waits for one.
    Busy,
    /// The slots that it looked up are in use.
    Full,
    /// The lock's name is held by a reader that waited, for the time of a statement.
    Passing,
}

/// Values of a column beside the numbers of slots, which begin with 1.
const BUSY: u32 = 0;
const FULL: u32 = 1_000;
const PASSING: u32 = 1_001;

/// Connection ids differ by this remainder in four digits of base 36, for which a name has room.
const MARKS: u32 = 36 * 36 * 36 * 36;

/// The names of a lock that may be shared.
#[derive(Clone, Debug)]
pub(crate) struct Readers {
    lock: EncodedName,
    base: EncodedName,
}

impl Readers {
    pub(crate) fn of(lock: &EncodedName) -> Self {
        let (lock, base) = (lock.clone(), lock.base());
        Self { lock, base }
    }

    /// Returns whether this is the name of a slot.
    pub(crate) fn is_slot(name: &EncodedName) -> bool {
        name.semaphore_part()
            .is_some_and(|(_, part)| part.starts_with('r'))
    }

    /// Removes the locks that have readers: the session that holds the lock's name waits for them.
    pub(crate) fn retain_leases<T>(held: &mut Vec<(EncodedName, T)>) {
        let slots = held.iter().filter(|(name, _)| Self::is_slot(name));
        let bases = slots.filter_map(|(slot, _)| Some(slot.semaphore_part()?.0.to_owned()));
        let bases: HashSet<_> = bases.collect();
        held.retain(|(name, _)| {
            let is_lock = name.semaphore_part().is_none();
            !(is_lock && !bases.is_empty() && bases.contains(&*name.base()))
        });
    }

    /// Returns parts of the statements of the sessions that wait for the lock of a slot.
    pub(crate) fn waits(slot: &EncodedName) -> [String; 2] {
        let base = slot.semaphore_part().map_or("", |(base, _)| base);
        let lock = base.trim_end_matches('+');
        // The names have the same hash, and begin differently.
        let lock = lock.split_once('~').map_or_else(
            || format!("GET_LOCK('{lock}',"),
            |(_, hash)| format!("~{hash}',"),
        );
        [lock, format!("GET_LOCK('{base}r")]
    }

    pub(crate) fn gate(&self) -> EncodedName {
        self.base.with("g")
    }

    pub(crate) fn slot(&self, slot: u32) -> EncodedName {
        self.base.with(&format!("r{slot:02}"))
    }

    pub(crate) fn slots(&self) -> Vec<EncodedName> {
        (0..MAX_READERS).map(|slot| self.slot(slot)).collect()
    }

    /// Returns all names that a request for a slot may have taken, but for the mark of a wait.
    pub(crate) fn taken_by_attempt(&self) -> Vec<EncodedName> {
        let names = self.slots().into_iter();
        names.chain([self.lock.clone(), self.gate()]).collect()
    }

    /// Tries to take the lock, prepared. Returns a column more than [`TRY`](crate::statements::TRY), between its two.
    pub(crate) fn try_exclusive(&self, flag: &EncodedName) -> Template {
        let mut template = Template::default();
        template.add("SELECT ");
        self.attempt_exclusive(&mut template);
        template.add(",IS_FREE_LOCK(").name(flag).add(")");
        template
    }

    /// Adds two columns: the first does what [`TRY`](crate::statements::TRY) does if no slot is in use.
    pub(crate) fn attempt_exclusive(&self, template: &mut Template) {
        template.add("CASE GET_LOCK(").name(&self.gate());
        // Its holder waits for nothing, so the time is for a busy server.
        template
            .add(",1) WHEN 1 THEN CASE GET_LOCK(")
            .name(&self.lock)
            .add(",0) WHEN 1 THEN ");
        self.keep_or_release(template, "UUID_SHORT()");
        template
            .add(" WHEN 0 THEN 0 END END,RELEASE_LOCK(")
            .name(&self.gate())
            .add(")");
    }

    /// Adds a column for a session that holds the lock's name: `kept`, or 0 after the name was released because a slot is
    /// in use.
    pub(crate) fn keep_or_release(&self, template: &mut Template, kept: &str) {
        let mut before = "CASE WHEN ";
        for slot in self.slots() {
            template.add(before).add("IS_USED_LOCK(").name(&slot);
            before = ") OR ";
        }
        template.add(") THEN 0*RELEASE_LOCK(").name(&self.lock);
        template.add(&format!(") ELSE {kept} END"));
    }

    /// Takes one of the first `slots` slots without a wait. The columns are what was found, the epoch, two without a
    /// meaning, and the session that has the lock's name afterwards.
    pub(crate) fn attempt_shared(&self, slots: u32, flag: &EncodedName) -> Template {
        let mut template = Template::default();
        template.add("SELECT CASE GET_LOCK(").name(&self.gate());
        template
            .add(",1) WHEN 1 THEN CASE GET_LOCK(")
            .name(&self.lock)
            .add(",0) WHEN 1 THEN ");
        self.take(&mut template, slots, flag, &FULL.to_string());
        // Between two looks the holder may have gone.
        template.add(" WHEN 0 THEN CASE WHEN IS_USED_LOCK(");
        self.mark(&mut template, |template| {
            template
                .add("COALESCE(IS_USED_LOCK(")
                .name(&self.lock)
                .add("),0)");
        });
        template
            .add(") OR IS_FREE_LOCK(")
            .name(&self.lock)
            .add(&format!(") THEN {PASSING} ELSE {BUSY} END END END"));
        // The epoch comes before the name is free for a writer, which gets a larger one.
        template.add(",UUID_SHORT(),RELEASE_LOCK(").name(&self.lock);
        template.add("),RELEASE_LOCK(").name(&self.gate());
        template.add("),IS_USED_LOCK(").name(&self.lock).add(")");
        template
    }

    /// Waits for a slot in the order of all that wait for the lock's name. The columns are a mark, what was found, and the
    /// epoch. If no slot is free, it waits up to a second for `preferred`, and lets others come first then.
    ///
    /// The mark tells attempts that the session keeps the lock's name for the time of a statement.
    pub(crate) fn wait_shared(&self, timed: &Timed, preferred: u32, flag: &EncodedName) -> String {
        let mut template = Template::default();
        let own = |template: &mut Template| {
            template.add("CONNECTION_ID()");
        };
        template.add(&timed.select).add(" GET_LOCK(");
        self.mark(&mut template, own);
        template.add(",0),CASE GET_LOCK(").name(&self.lock);
        template.add(&format!(",{}) WHEN 1 THEN ", timed.seconds));
        let mut otherwise = Template::default();
        otherwise
            .add("CASE GET_LOCK(")
            .name(&self.slot(preferred))
            .add(&format!(
                ",1) WHEN 1 THEN {} WHEN 0 THEN {FULL} END",
                preferred + 1
            ));
        self.take(&mut template, MAX_READERS, flag, &otherwise.pasted());
        template
            .add(&format!(
                " WHEN 0 THEN {BUSY} END,UUID_SHORT(),RELEASE_LOCK("
            ))
            .name(&self.lock)
            .add("),RELEASE_LOCK(");
        self.mark(&mut template, own);
        template.add(")").pasted()
    }

    /// Releases all that [`wait_shared`](Self::wait_shared) may have taken.
    pub(crate) fn undo_wait(&self) -> String {
        let mut template = Template::default();
        template.add("SELECT RELEASE_LOCK(");
        self.mark(&mut template, |template| {
            template.add("CONNECTION_ID()");
        });
        for name in self.taken_by_attempt() {
            template.add("),RELEASE_LOCK(").name(&name);
        }
        template.add(")").pasted()
    }

    /// Adds the number of the slot that the session takes, plus 1, or `otherwise` if none of the first `slots` is free.
    /// NULL if no process keeps the flag: then writers do not look for readers.
    fn take(&self, template: &mut Template, slots: u32, flag: &EncodedName, otherwise: &str) {
        template
            .add("CASE WHEN IS_FREE_LOCK(")
            .name(flag)
            .add(") THEN NULL");
        for (number, slot) in (1..=slots).zip(self.slots()) {
            template.add(" WHEN IS_FREE_LOCK(").name(&slot);
            // Only a session that holds the lock's name takes a slot, so it is free still.
            template.add(") THEN CASE GET_LOCK(").name(&slot);
            template.add(&format!(",0) WHEN 1 THEN {number} END"));
        }
        template.add(" ELSE ").add(otherwise).add(" END");
    }

    /// Adds the name of the mark of a session.
    fn mark(&self, template: &mut Template, id: impl FnOnce(&mut Template)) {
        template.add("CONCAT(").name(&self.base.with("q"));
        template.add(",CONV(");
        id(template);
        template.add(&format!("%{MARKS},10,36))"));
    }

    /// Returns what the column of a request says.
    pub(crate) fn found(column: u64) -> Found {
        match u32::try_from(column) {
            Ok(BUSY) => Found::Busy,
            Ok(PASSING) => Found::Passing,
            Ok(number @ 1..=MAX_READERS) => Found::Slot(number - 1),
            _ => Found::Full,
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_remote::sessions::SessionName;

    use super::*;

    #[test]
    fn slots_belong_to_the_lock_of_any_name() {
        let lengths = [1, 52, 53, 58, 59, 60, 64, 500].map(|length| "x".repeat(length));
        let names = ["seat:42", "Seat 42", "a:b~c", "~", "ß"];
        let names = names.into_iter().chain(lengths.iter().map(String::as_str));
        for (namespace, name) in names.flat_map(|name| [("shop", name), ("My: Shop", name)]) {
            let lock = EncodedName::new(namespace, name);
            assert_eq!(lock.base(), EncodedName::semaphore(namespace, name));
            let slot = Readers::of(&lock).slot(MAX_READERS - 1);
            assert!(slot.len() <= 64 && EncodedName::parse(&slot).is_some());
            assert!(slot.is_akin(&lock) && lock.is_akin(&slot));
            assert!(slot.gate().is_none() && Readers::is_slot(&slot));
            let other = EncodedName::new(namespace, &format!("{name}x"));
            let permit = EncodedName::semaphore(namespace, name).with("03/05");
            for name in [other, permit, EncodedName::flag(namespace)] {
                assert!(!slot.is_akin(&name) && !name.is_akin(&slot), "{name}");
            }
        }
    }
}
