//! The keys of entries.

use std::fmt;

use lockkeeper_core::{LockName, Mode};

/// The key of an entry: the lock of a name, the semaphore of a name, or an entry that belongs to the namespace.
///
/// A store keeps the entries of its namespace alone, and encodes the text as it needs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// Returns the key of the lock of `name`, or of its semaphore if `mode` is a permit.
    pub fn of(name: &LockName, mode: Mode) -> Self {
        let kind = if mode.is_permit() { "permits" } else { "lock" };
        Self(format!("{kind}/{name}"))
    }

    /// Returns the key of an entry that belongs to the namespace, such as the largest epoch of the entries that were
    /// removed.
    pub fn of_namespace(topic: &'static str) -> Self {
        Self(format!("namespace/{topic}"))
    }

    /// Returns the key of which an entry contains the text.
    pub(crate) fn read(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Returns the name, and whether the key is that of its semaphore. `None` if the entry belongs to the namespace.
    pub(crate) fn name(&self) -> Option<(&str, bool)> {
        match self.0.split_once('/')? {
            ("lock", name) => Some((name, false)),
            ("permits", name) => Some((name, true)),
            _ => None,
        }
    }

    /// Returns the text: a kind without a slash, a slash, and the name as it is: up to 530 bytes of any UTF-8.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
