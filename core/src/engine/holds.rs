//! The leases of a name that this process has.

use super::hold::Hold;
use crate::sync::Arc;

/// A lease that this process has.
pub(crate) struct Held {
    pub(crate) hold: Arc<Hold>,
    /// The number of guards that have it now: more than one only of a shared lease.
    pub(super) guards: u32,
}

/// The leases of a name: rarely more than one, for which nothing is allocated.
#[derive(Default)]
pub(super) struct Holds {
    first: Option<Held>,
    more: Vec<Held>,
}

impl Holds {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.first.iter().chain(&self.more)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.first.iter_mut().chain(&mut self.more)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Held> {
        match index {
            0 => self.first.as_mut(),
            _ => self.more.get_mut(index - 1),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn position_of(&self, hold: &Arc<Hold>) -> Option<usize> {
        self.iter().position(|held| Arc::ptr_eq(&held.hold, hold))
    }

    pub(super) fn push(&mut self, held: Held) {
        match &self.first {
            None => self.first = Some(held),
            Some(_) => self.more.push(held),
        }
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Held> {
        match index {
            0 => std::mem::replace(&mut self.first, self.more.pop()),
            _ if index <= self.more.len() => Some(self.more.swap_remove(index - 1)),
            _ => None,
        }
    }
}
