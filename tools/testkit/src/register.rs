//! The entry of a name, on stores that keep one for each.

use std::io;

use serde_json::Value;

use crate::test_server::not_held;

/// An entry: its leases, and the requests that wait.
pub(crate) struct RegisterEntry(Value);

impl RegisterEntry {
    /// Reads the value of an entry. One that is empty is free.
    pub(crate) fn read(value: &str) -> Self {
        Self(serde_json::from_str(value).unwrap_or_default())
    }

    fn parts(&self, at: &str) -> &[Value] {
        let parts = self.0.get(at).and_then(Value::as_array);
        parts.map_or(&[], Vec::as_slice)
    }

    /// Returns the session of the first lease of a name.
    pub(crate) fn session(&self, name: &str) -> io::Result<&str> {
        let session = self.parts("l").first().and_then(|it| it.get("s")?.as_str());
        session.ok_or_else(|| not_held(name))
    }

    /// Returns how many requests wait.
    pub(crate) fn waiters(&self) -> usize {
        self.parts("q").len()
    }

    /// Returns whether a session with a lease or a place lives.
    pub(crate) fn is_used(&self, lives: impl Fn(&str) -> bool) -> bool {
        let parts = ["l", "q"].map(|at| self.parts(at)).into_iter().flatten();
        let mut sessions = parts.filter_map(|it| it.get("s")?.as_str());
        sessions.any(lives)
    }

    /// Returns whether nothing is held, and nothing waits.
    pub(crate) fn is_free(&self) -> bool {
        self.parts("l").is_empty() && self.waiters() == 0
    }
}

/// Encodes a name as a store's keys have it: letters, digits and the bytes `kept` stay.
pub(crate) fn encoded(text: &str, kept: &[u8], escape: impl Fn(u8) -> String) -> String {
    let encoded =
        text.bytes().map(
            |byte| match byte.is_ascii_alphanumeric() || kept.contains(&byte) {
                true => char::from(byte).to_string(),
                false => escape(byte),
            },
        );
    encoded.collect()
}
