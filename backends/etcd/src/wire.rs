//! What is said to the server, in the JSON of etcd's gateway: bytes are base64, and 64-bit numbers are text.

pub(crate) mod entry;
pub(crate) mod keys;
pub(crate) mod txn;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use keys::KeyRange;

/// Writes a text as bytes are written.
pub fn encoded(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// Reads a number, which is left out if it is zero.
pub fn number(value: &Value) -> i64 {
    let text = value.as_str().and_then(|text| text.parse().ok());
    text.or_else(|| value.as_i64()).unwrap_or(0)
}

/// Reads bytes as text.
pub fn decoded(value: &Value) -> String {
    let bytes = BASE64_STANDARD.decode(value.as_str().unwrap_or_default());
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

/// Returns the body of a request that reads keys.
pub(crate) fn range(range: &KeyRange) -> Value {
    let mut value = json!({ "key": encoded(&range.first) });
    if !range.end.is_empty()
        && let Some(fields) = value.as_object_mut()
    {
        fields.insert("range_end".to_owned(), encoded(&range.end).into());
    }
    value
}

/// Returns a value with further fields.
pub(crate) fn with(mut value: Value, fields: Value) -> Value {
    if let (Some(value), Value::Object(fields)) = (value.as_object_mut(), fields) {
        value.extend(fields);
    }
    value
}

/// Returns a request to watch keys from now on.
pub(crate) fn watch(keys: &KeyRange) -> String {
    json!({ "create_request": range(keys) }).to_string()
}

/// Returns a request to watch the deletions of keys from now on.
pub(crate) fn watch_deletions(keys: &KeyRange) -> String {
    let deletions = with(range(keys), json!({ "filters": ["NOPUT"] }));
    json!({ "create_request": deletions }).to_string()
}

/// The revisions of a key as it was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The revision at which it was created.
    pub(crate) created: i64,
    /// The revision at which it was last written.
    pub(crate) modified: i64,
}

/// A key that was read.
#[derive(Clone, Debug)]
pub(crate) struct KeyValue {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) seen: Seen,
    pub(crate) lease: i64,
}

/// Keys that were read, in the order of their creation.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) all: Vec<KeyValue>,
    /// The revision of the store.
    pub(crate) revision: i64,
}

impl Found {
    /// Reads the reply to a read.
    pub(crate) fn read(reply: &Value) -> Self {
        let (all, revision) = (key_values(reply), revision(reply));
        Self { all, revision }
    }
}

/// Reads the keys in the reply to a read, and returns them in the order of their creation.
fn key_values(range: &Value) -> Vec<KeyValue> {
    let found = range.get("kvs").and_then(Value::as_array);
    let read = |kv: &Value| {
        let field = |name| kv.get(name).unwrap_or(&Value::Null);
        KeyValue {
            key: decoded(field("key")),
            value: decoded(field("value")),
            seen: Seen {
                created: number(field("create_revision")),
                modified: number(field("mod_revision")),
            },
            lease: number(field("lease")),
        }
    };
    let mut found: Vec<_> = found.into_iter().flatten().map(read).collect();
    found.sort_by_key(|it| it.seen.created);
    found
}

/// Returns the revision of the store at which a request was carried out.
pub(crate) fn revision(reply: &Value) -> i64 {
    number(reply.pointer("/header/revision").unwrap_or(&Value::Null))
}
