//! The keys in Consul: `lockkeeper/NAMESPACE/KIND/NAME.`, and `lockkeeper/NAMESPACE/session/ID.` of a session.
//!
//! Letters, digits and `-` stay. Each other byte is `_` and two hexadecimal digits, so that a key is a part of a URL as it
//! is, and keys of different names never meet. Consul limits no key's length. The dot at the end is in no other place, so
//! no key begins with another key: a transaction can read one that may be absent only as a tree.

use lockkeeper_register::Key;

/// The kind of the keys of sessions. No entry has it.
const SESSION: &str = "session/";

/// The keys of a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(namespace: &str) -> Self {
        let prefix = format!("lockkeeper/{}/", encoded(namespace));
        Self { prefix }
    }

    /// Returns what all keys of the namespace begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn entry(&self, key: &Key) -> String {
        let (kind, name) = key.as_str().split_once('/').unwrap_or((key.as_str(), ""));
        format!("{}{kind}/{}.", self.prefix, encoded(name))
    }

    pub(crate) fn session(&self, id: &str) -> String {
        format!("{}{SESSION}{id}.", self.prefix)
    }

    /// Returns whether a key of the namespace is that of an entry, and not of a session.
    pub(crate) fn is_of_entry(&self, key: &str) -> bool {
        let key = key.strip_prefix(&self.prefix);
        key.is_some_and(|key| !key.starts_with(SESSION))
    }
}

fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || byte == b'-' {
            true => encoded.push(char::from(byte)),
            false => encoded.push_str(&format!("_{byte:02x}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{LockName, Mode};

    use super::*;

    #[test]
    fn keys_are_parts_of_a_url_and_no_key_begins_with_another() {
        let texts = [
            "a",
            "A",
            "a.",
            "a/b",
            "a_2f",
            "a_",
            "a%",
            "ä b\n",
            "..",
            "a/session/b",
        ];
        let mut all = Vec::new();
        for namespace in texts {
            let keys = Keys::new(namespace);
            for name in texts {
                let name = LockName::new(name).unwrap();
                for mode in [Mode::Exclusive, Mode::Permit { limit: 3 }] {
                    let key = keys.entry(&Key::of(&name, mode));
                    assert!(keys.is_of_entry(&key), "{key}");
                    all.push(key);
                }
            }
            let session = keys.session("72bb46bb-c712-80dd-12c1-26184746bd1f");
            assert!(!keys.is_of_entry(&session));
            all.push(session);
        }
        for (at, key) in all.iter().enumerate() {
            let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_./".contains(it);
            assert!(key.chars().all(is_plain), "{key}");
            let others = all.iter().enumerate();
            let mut others = others.filter(|(other, _)| *other != at);
            assert!(!others.any(|(_, other)| other.starts_with(key)), "{key}");
        }
    }
}
