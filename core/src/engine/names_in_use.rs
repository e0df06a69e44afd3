//! The names in use of one shard of the queue.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::hold::Hold;
use super::key::Key;
use super::name_state::{HandOver, NameState};
use super::waiter::{Given, WaitKind};
use crate::name::LockName;
use crate::options::LeaseTerms;
use crate::sync::Arc;

#[derive(Default)]
pub(super) struct NamesInUse {
    table: HashTable<Name>,
}

/// A name that is in use.
struct Name {
    name: LockName,
    is_permit: bool,
    state: NameState,
}

impl NamesInUse {
    fn entry(&mut self, key: Key<'_>) -> Entry<'_, Name> {
        self.table
            .entry(key.hash(), |used| used.is(key), |used| used.name.hash64())
    }

    /// Returns what a thread gets at once that comes to a name.
    #[inline(always)] // As in `release.rs`.
    pub(super) fn offer(
        &mut self,
        key: Key<'_>,
        terms: LeaseTerms,
        kind: WaitKind,
        hand_over: &HandOver,
    ) -> Option<Given> {
        match self.entry(key) {
            Entry::Occupied(mut entry) => {
                let state = &mut entry.get_mut().state;
                match state.waiters.is_empty() {
                    true => state.offer(terms, kind, hand_over),
                    false => state.mismatch(terms.mode),
                }
            }
            Entry::Vacant(entry) => {
                entry.insert(Name::new(key, NameState::asked_for(terms.mode)));
                Some(Given::HeadPermit)
            }
        }
    }

    /// Keeps a name that is not in use for a release. Returns whether it does.
    pub(super) fn begin_release(&mut self, key: Key<'_>) -> bool {
        match self.entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(Name::new(key, NameState::releasing()));
                true
            }
        }
    }

    /// Adds a hold whose lease was resumed. Returns the others.
    pub(super) fn adopt(&mut self, key: Key<'_>, hold: Arc<Hold>) -> Vec<Arc<Hold>> {
        match self.entry(key) {
            Entry::Occupied(mut entry) => entry.get_mut().state.adopt(hold),
            Entry::Vacant(entry) => {
                entry.insert(Name::new(key, NameState::resumed(hold)));
                Vec::new()
            }
        }
    }

    pub(super) fn find(&mut self, key: Key<'_>) -> Option<&mut NameState> {
        let used = self.table.find_mut(key.hash(), |used| used.is(key))?;
        Some(&mut used.state)
    }

    /// Changes the state of a name, and forgets the name if it is not in use any more. `None` if it was not
    /// in use before.
    pub(super) fn change<R>(
        &mut self,
        key: Key<'_>,
        change: impl FnOnce(&mut NameState) -> R,
    ) -> Option<R> {
        let used = self.table.find_entry(key.hash(), |used| used.is(key));
        let mut used = used.ok()?;
        let state = &mut used.get_mut().state;
        let result = change(state);
        if state.is_unused() {
            used.remove();
        }
        Some(result)
    }

    pub(super) fn states(&self) -> impl Iterator<Item = &NameState> {
        self.table.iter().map(|used| &used.state)
    }
}

impl Name {
    fn new(key: Key<'_>, state: NameState) -> Self {
        Self {
            name: key.name.clone(),
            is_permit: key.is_permit,
            state,
        }
    }

    fn is(&self, key: Key<'_>) -> bool {
        self.is_permit == key.is_permit && self.name == *key.name
    }
}
