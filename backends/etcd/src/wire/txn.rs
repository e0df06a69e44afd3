//! Transactions: operations that are carried out together if all of their conditions are true.

use serde_json::{Value, json};

use super::keys::KeyRange;
use super::{Found, KeyValue, Seen, encoded, key_values, range, revision, with};

/// Returns a condition that is true if no key of `keys` exists.
///
/// The fields that are left out say that the version is 0. The gateway reads a field once for each level of objects
/// around it, so a grant has few of them.
pub(crate) fn none_of(keys: &KeyRange) -> Value {
    range(keys)
}

fn compare(keys: &KeyRange, target: &str, result: &str, field: &str, value: &str) -> Value {
    let compare = json!({ "target": target, "result": result, field: value });
    with(range(keys), compare)
}

fn created(keys: &KeyRange, result: &str, revision: i64) -> Value {
    let revision = revision.to_string();
    compare(keys, "CREATE", result, "create_revision", &revision)
}

fn modified(keys: &KeyRange, result: &str, revision: i64) -> Value {
    let revision = revision.to_string();
    compare(keys, "MOD", result, "mod_revision", &revision)
}

fn value_is(key: &str, result: &str, value: &str) -> Value {
    compare(
        &KeyRange::one(key),
        "VALUE",
        result,
        "value",
        &encoded(value),
    )
}

/// Returns a condition that is true if `key` exists since `revision`; 0 if it is missing.
pub(crate) fn exists_since(key: &str, revision: i64) -> Value {
    created(&KeyRange::one(key), "EQUAL", revision)
}

/// Returns a condition that is true if there are keys in `keys`, and none from before `revision`.
pub(crate) fn none_before(keys: &KeyRange, revision: i64) -> Value {
    created(keys, "GREATER", revision - 1)
}

/// Returns a condition that is true if `key` is as it was last seen: no request has written it since.
pub(crate) fn unchanged(key: &str, seen: Seen) -> Value {
    modified(&KeyRange::one(key), "EQUAL", seen.modified)
}

/// Returns a condition that is true if no key of `keys` was written after `revision`.
pub(crate) fn unchanged_since(keys: &KeyRange, revision: i64) -> Value {
    modified(keys, "LESS", revision + 1)
}

/// Returns a condition that is true if `key` exists with a smaller value.
pub(crate) fn is_less(key: &str, value: &str) -> Value {
    value_is(key, "LESS", value)
}

/// Returns a condition that is true if `key` exists with this value.
pub(crate) fn is_equal(key: &str, value: &str) -> Value {
    value_is(key, "EQUAL", value)
}

/// Returns conditions that are true if the value of `key` begins with `start`, which ends with a comma.
pub(crate) fn begins_with(key: &str, start: &str) -> Vec<Value> {
    let end = format!("{}-", start.trim_end_matches(','));
    vec![value_is(key, "GREATER", start), value_is(key, "LESS", &end)]
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

fn delete(key: &str) -> Value {
    json!({ "request_delete_range": { "key": encoded(key) } })
}

/// Operations that are carried out together, or others instead of them.
#[derive(Clone, Default)]
pub(crate) struct Txn {
    /// All of them must be true for `then`.
    pub(crate) compare: Vec<Value>,
    pub(crate) then: Vec<Value>,
    pub(crate) otherwise: Vec<Value>,
}

impl Txn {
    /// Returns the transaction that reads a key.
    pub(crate) fn get(key: &str) -> Self {
        let then = vec![get(&KeyRange::one(key))];
        Self {
            then,
            ..Self::default()
        }
    }

    /// Returns the transaction that deletes a key if it was created at this revision.
    pub(crate) fn delete(key: &str, created: i64) -> Self {
        Self {
            compare: vec![exists_since(key, created)],
            then: vec![delete(key)],
            otherwise: Vec::new(),
        }
    }

    /// Returns the transaction that carries out all of these, each by its own conditions.
    pub(crate) fn of(all: Vec<Self>) -> Self {
        Self {
            then: all.into_iter().map(Self::nested).collect(),
            ..Self::default()
        }
    }

    /// Returns the transaction that carries out all of these if all of their conditions are true.
    pub(crate) fn joined(all: &[Self]) -> Self {
        let mut joined = Self::default();
        for txn in all {
            for compare in &txn.compare {
                // All attempts begin with the same comparison of the base.
                if joined.compare.first() != Some(compare) {
                    joined.compare.push(compare.clone());
                }
            }
            joined.then.extend_from_slice(&txn.then);
        }
        joined
    }

    /// Returns how many operations the server counts.
    pub(crate) fn size(&self) -> usize {
        self.compare.len().max(self.then.len())
    }

    /// Returns the body of a request.
    pub(crate) fn body(self) -> Value {
        let body = json!({ "compare": self.compare, "success": self.then });
        match self.otherwise.is_empty() {
            true => body,
            false => with(body, json!({ "failure": self.otherwise })),
        }
    }

    /// Returns the operation of another transaction. The only one of `otherwise` takes the place of that: the reply is
    /// its reply.
    pub(crate) fn nested(self) -> Value {
        json!({ "request_txn": self.body() })
    }
}

/// The reply to a transaction.
#[derive(Debug)]
pub(crate) struct TxnReply {
    /// Whether the conditions were true.
    pub(crate) succeeded: bool,
    /// The revision of the store at which it was carried out.
    pub(crate) revision: i64,
    results: Vec<OperationReply>,
}

#[derive(Debug)]
enum OperationReply {
    Read(Vec<KeyValue>),
    Txn(TxnReply),
    Written,
}

impl TxnReply {
    pub(crate) fn read(reply: &Value) -> Self {
        Self::read_at(reply, revision(reply))
    }

    fn read_at(reply: &Value, revision: i64) -> Self {
        let results = reply.get("responses").and_then(Value::as_array);
        let read = |it: &Value| match (it.get("response_range"), it.get("response_txn")) {
            (Some(found), _) => OperationReply::Read(key_values(found)),
            (_, Some(txn)) => OperationReply::Txn(Self::read_at(txn, revision)),
            _ => OperationReply::Written,
        };
        let mut results: Vec<_> = results.into_iter().flatten().map(read).collect();
        let succeeded = reply.get("succeeded").and_then(Value::as_bool) == Some(true);
        match results.pop() {
            Some(OperationReply::Txn(instead)) if !succeeded && results.is_empty() => instead,
            last => {
                results.extend(last);
                Self {
                    succeeded,
                    revision,
                    results,
                }
            }
        }
    }

    /// Returns the keys that the transaction has read, if it has.
    pub(crate) fn found(self) -> Option<Found> {
        let revision = self.revision;
        let read = self.results.into_iter().find_map(|it| match it {
            OperationReply::Read(all) => Some(all),
            _ => None,
        });
        read.map(|all| Found { all, revision })
    }

    /// Returns the replies to the transactions inside of this one.
    pub(crate) fn nested(self) -> Vec<Self> {
        let nested = self.results.into_iter().filter_map(|it| match it {
            OperationReply::Txn(reply) => Some(reply),
            _ => None,
        });
        nested.collect()
    }

    /// Returns the replies to transactions that were joined, with these numbers of operations.
    pub(crate) fn split(self, counts: impl Iterator<Item = usize>) -> Vec<Self> {
        let mut results = self.results.into_iter();
        let part = |count| Self {
            results: results.by_ref().take(count).collect(),
            ..self
        };
        counts.map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_a_joined_transaction_go_to_their_operations() {
        let txn = |key: &str, then: &[&str]| Txn {
            compare: ["base", key].iter().map(|it| json!(it)).collect(),
            then: then.iter().map(|it| json!(it)).collect(),
            otherwise: vec![json!("get")],
        };
        let all = [
            txn("a", &["put a"]),
            Txn::get("b"),
            txn("c", &["get c", "put c"]),
        ];
        let joined = Txn::joined(&all);
        assert_eq!(joined.compare, ["base", "a", "c"]);
        assert_eq!((joined.then.len(), joined.otherwise.len()), (4, 0));
        let [b, c] = ["b", "c"].map(|key| json!({ "kvs": [{ "key": encoded(key) }] }));
        let (written, read) = (json!({}), |found| json!({ "response_range": found }));
        let reply = json!({ "header": { "revision": "7" }, "succeeded": true,
            "responses": [written, read(b), read(c), written] });
        let replies = TxnReply::read(&reply).split(all.iter().map(|it| it.then.len()));
        assert!(replies.iter().all(|it| it.succeeded && it.revision == 7));
        let found = |it: TxnReply| Some(it.found()?.all.first()?.key.clone());
        let found: Vec<_> = replies.into_iter().map(found).collect();
        assert_eq!(found, [None, Some("b".to_owned()), Some("c".to_owned())]);
    }

    #[test]
    fn reply_to_what_is_done_instead_is_the_reply() {
        let instead = json!({ "succeeded": true, "responses": [{ "response_range": {} }, {}] });
        let reply =
            json!({ "header": { "revision": "7" }, "responses": [{ "response_txn": instead }] });
        let reply = TxnReply::read(&reply);
        assert!(reply.succeeded && reply.revision == 7);
        assert!(reply.found().is_some_and(|found| found.all.is_empty()));
    }
}
