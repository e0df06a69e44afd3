//! Requests and replies in the JSON of etcd's gateway: bytes are base64, and 64-bit numbers are text.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::keys::KeyRange;

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

/// Returns the body of a request that reads the first keys, `most` of them.
pub(crate) fn page(keys: &KeyRange, most: u32) -> Value {
    with(range(keys), json!({ "limit": most }))
}

fn with(mut value: Value, fields: Value) -> Value {
    if let (Some(value), Value::Object(fields)) = (value.as_object_mut(), fields) {
        value.extend(fields);
    }
    value
}

/// Returns a comparison that is true if no key of `keys` exists.
///
/// The fields that are left out say that the version is 0. The gateway reads a field once for each level of objects
/// around it, so a grant has few of them.
pub(crate) fn none_of(keys: &KeyRange) -> Value {
    range(keys)
}

/// Returns a comparison that is true if `key` exists since `revision`.
pub(crate) fn exists_since(key: &str, revision: i64) -> Value {
    created(&KeyRange::one(key), "EQUAL", revision)
}

/// Returns a comparison that is true if `key` is as it was last seen: no request has written it since.
pub(crate) fn unchanged(key: &str, seen: Seen) -> Value {
    let written = seen.modified.to_string();
    let compare = json!({ "target": "MOD", "result": "EQUAL", "mod_revision": written });
    with(range(&KeyRange::one(key)), compare)
}

/// Returns a comparison that is true if there are keys in `keys`, and none from before `revision`.
pub(crate) fn none_before(keys: &KeyRange, revision: i64) -> Value {
    created(keys, "GREATER", revision - 1)
}

fn created(keys: &KeyRange, result: &str, revision: i64) -> Value {
    let compare =
        json!({ "target": "CREATE", "result": result, "create_revision": revision.to_string() });
    with(range(keys), compare)
}

/// Returns a comparison that is true if no key of `keys` was written after `revision`.
pub(crate) fn unchanged_since(keys: &KeyRange, revision: i64) -> Value {
    let after = (revision + 1).to_string();
    let compare = json!({ "target": "MOD", "result": "LESS", "mod_revision": after });
    with(range(keys), compare)
}

/// Returns a comparison that is true if `key` exists with a smaller value.
pub(crate) fn is_less(key: &str, value: &str) -> Value {
    value_is(key, "LESS", value)
}

/// Returns a comparison that is true if `key` exists with this value.
pub(crate) fn is_equal(key: &str, value: &str) -> Value {
    value_is(key, "EQUAL", value)
}

fn value_is(key: &str, result: &str, value: &str) -> Value {
    let compare = json!({ "target": "VALUE", "result": result, "value": encoded(value) });
    with(range(&KeyRange::one(key)), compare)
}

/// The body of a request that reads a key as it was at a revision.
pub(crate) fn read_at(key: &str, revision: i64) -> Value {
    let at = json!({ "revision": revision.to_string() });
    with(range(&KeyRange::one(key)), at)
}

/// Returns the operation that reads keys.
pub(crate) fn get(keys: &KeyRange) -> Value {
    json!({ "request_range": range(keys) })
}

/// Returns the operation that writes a key, bound to a lease unless that is 0.
pub(crate) fn put(key: &str, value: &str, lease: i64) -> Value {
    json!({ "request_put": {
        "key": encoded(key), "value": encoded(value), "lease": lease.to_string()
    } })
}

/// Returns the operation that deletes a key.
pub(crate) fn delete(key: &str) -> Value {
    json!({ "request_delete_range": { "key": encoded(key) } })
}

/// Operations that are carried out together, or others instead of them.
#[derive(Default)]
pub(crate) struct Txn {
    /// All of them must be true for `then`.
    pub(crate) compare: Vec<Value>,
    pub(crate) then: Vec<Value>,
    pub(crate) otherwise: Vec<Value>,
}

impl Txn {
    /// Returns the body of a request.
    pub(crate) fn body(self) -> Value {
        let body = json!({ "compare": self.compare, "success": self.then });
        match self.otherwise.is_empty() {
            true => body,
            false => with(body, json!({ "failure": self.otherwise })),
        }
    }

    /// Returns the operation of another transaction.
    pub(crate) fn nested(self) -> Value {
        json!({ "request_txn": self.body() })
    }
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
    /// The revision at which it was created.
    pub(crate) created: i64,
    /// The revision at which it was last written.
    pub(crate) modified: i64,
    pub(crate) lease: i64,
}

impl KeyValue {
    pub(crate) fn seen(&self) -> Seen {
        let (created, modified) = (self.created, self.modified);
        Seen { created, modified }
    }
}

/// Reads the keys in the reply to a read, and returns them in the order of their creation.
pub(crate) fn key_values(range: &Value) -> Vec<KeyValue> {
    let found = range.get("kvs").and_then(Value::as_array);
    let read = |kv: &Value| {
        let field = |name| kv.get(name).unwrap_or(&Value::Null);
        KeyValue {
            key: decoded(field("key")),
            value: decoded(field("value")),
            created: number(field("create_revision")),
            modified: number(field("mod_revision")),
            lease: number(field("lease")),
        }
    };
    let mut found: Vec<_> = found.into_iter().flatten().map(read).collect();
    found.sort_by_key(|it| it.created);
    found
}

/// Returns the revision of the store at which a request was carried out.
pub(crate) fn revision(reply: &Value) -> i64 {
    number(reply.pointer("/header/revision").unwrap_or(&Value::Null))
}

/// The reply to a transaction, or to one inside of another.
#[derive(Clone, Copy)]
pub(crate) struct TxnReply<'a>(pub(crate) &'a Value);

impl<'a> TxnReply<'a> {
    /// Returns whether the comparisons were true.
    pub(crate) fn succeeded(self) -> bool {
        self.0.get("succeeded").and_then(Value::as_bool) == Some(true)
    }

    fn response(self, at: usize, kind: &str) -> Option<&'a Value> {
        self.0.get("responses")?.get(at)?.get(kind)
    }

    /// Returns the keys that the operation number `at` has read.
    pub(crate) fn keys(self, at: usize) -> Option<Vec<KeyValue>> {
        self.response(at, "response_range").map(key_values)
    }

    /// Returns the reply to the transaction that is the operation number `at`.
    pub(crate) fn nested(self, at: usize) -> Option<TxnReply<'a>> {
        self.response(at, "response_txn").map(TxnReply)
    }
}
