//! Transactions, and the pairs of key and value in replies.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use lockkeeper_register::{Entry, Version};
use serde_json::{Value, json};

/// The most verbs in a transaction.
pub(crate) const VERBS: usize = 64;
/// The most bytes of keys and values in a transaction. Consul's limit for the whole request is 512 KiB.
const BYTES: usize = 400 << 10;

/// The verbs of a transaction.
#[derive(Default)]
pub(crate) struct Txn {
    verbs: Vec<Value>,
    bytes: usize,
}

impl Txn {
    /// Returns whether there is no room for three more verbs with `bytes` bytes.
    pub(crate) fn is_full(&self, bytes: usize) -> bool {
        self.verbs.len() + 3 > VERBS || self.bytes + bytes > BYTES && !self.verbs.is_empty()
    }

    pub(crate) fn verbs(&self) -> usize {
        self.verbs.len()
    }

    /// Reads a key, which may be absent.
    pub(crate) fn read(&mut self, key: &str) {
        self.verbs
            .push(json!({ "KV": { "Verb": "get-tree", "Key": key } }));
    }

    /// Writes a key that has this version; 0 is an absent key. Consul gives a write of the same value no new version, so
    /// the flags differ each time.
    pub(crate) fn write(&mut self, key: &str, seen: Version, value: &str) {
        let value = BASE64_STANDARD.encode(value);
        self.bytes += value.len() + key.len();
        self.verbs.push(json!({ "KV": {
            "Verb": "cas", "Key": key, "Index": seen, "Value": value, "Flags": fastrand::u64(..),
        } }));
    }

    /// Deletes a key that has this version. The verb `delete-cas` does not fail if the key is absent.
    pub(crate) fn delete(&mut self, key: &str, seen: Version) {
        self.check_index(key, seen);
        self.verbs
            .push(json!({ "KV": { "Verb": "delete", "Key": key } }));
    }

    /// Fails unless the key has this version.
    pub(crate) fn check_index(&mut self, key: &str, version: Version) {
        self.verbs
            .push(json!({ "KV": { "Verb": "check-index", "Key": key, "Index": version } }));
    }

    /// Fails if there is such a key.
    pub(crate) fn absent(&mut self, key: &str) {
        self.verbs
            .push(json!({ "KV": { "Verb": "check-not-exists", "Key": key } }));
    }

    /// Makes a key that is deleted at the end of a session.
    pub(crate) fn lock(&mut self, key: &str, session: &str) {
        self.verbs
            .push(json!({ "KV": { "Verb": "lock", "Key": key, "Value": "", "Session": session } }));
    }

    /// Fails unless the session has the key.
    pub(crate) fn check_session(&mut self, key: &str, session: &str) {
        self.verbs
            .push(json!({ "KV": { "Verb": "check-session", "Key": key, "Session": session } }));
    }

    pub(crate) fn body(self) -> String {
        Value::from(self.verbs).to_string()
    }
}

/// Keys and their entries.
pub(crate) type Pairs = BTreeMap<String, Entry>;

/// Reads the pairs in an array of the server. A value that is no text makes an empty entry, which is refused for its name
/// alone.
pub(crate) fn pairs(array: &Value) -> Pairs {
    let read = |pair: &Value| {
        // A transaction wraps them.
        let pair = pair.get("KV").unwrap_or(pair);
        let value = pair
            .get("Value")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let value = BASE64_STANDARD.decode(value).unwrap_or_default();
        let entry = Entry {
            version: pair.get("ModifyIndex")?.as_u64()?,
            value: String::from_utf8(value).unwrap_or_default(),
        };
        Some((pair.get("Key")?.as_str()?.to_owned(), entry))
    };
    let array = array.as_array().into_iter().flatten();
    array.filter_map(read).collect()
}
