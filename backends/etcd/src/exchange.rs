//! One request with several operations.
//!
//! An operation with a condition is a transaction. The server takes half the time for one transaction with all
//! conditions as for one that has the others inside. But it does nothing if one name is taken, so the others follow.
//!
//! Of 32 pairs, each cost the server 110 µs of CPU in one transaction with all conditions, and 218 µs as a
//! transaction inside of another one. In a request of its own it cost 930 µs.

use std::sync::atomic::Ordering;

use lockkeeper_core::HostInstant;
use lockkeeper_remote::Failure;
use serde_json::{Value, json};

use crate::batch::BATCH;
use crate::store::Store;
use crate::wire::{Txn, TxnReply};

/// How many batches are not joined after one in which a condition was false. Then conditions are often false.
const PAUSE: u32 = 16;

/// Carries out operations, and returns a reply that has theirs in their order: to a transaction, the reply of a
/// transaction.
pub(crate) fn exchange(
    store: &Store,
    operations: Vec<Value>,
    until: HostInstant,
) -> Result<Value, Failure> {
    if let [single] = &operations[..]
        && let Some(body) = single.get("request_txn")
    {
        let reply = store.client.call("/v3/kv/txn", body, until)?;
        let header = reply.get("header").cloned();
        return Ok(json!({ "header": header, "responses": [{ "response_txn": reply }] }));
    }
    let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
    let pause = |left: u32| left.checked_sub(1);
    if store.unjoined.fetch_update(set, get, pause).is_err()
        && let Some((joined, parts)) = join(&operations)
    {
        let reply = store.client.txn(joined, until)?;
        if TxnReply(&reply).succeeded() {
            return Ok(split(reply, parts));
        }
        store.unjoined.store(PAUSE, set);
    }
    let nested = Txn {
        then: operations,
        ..Txn::default()
    };
    store.client.txn(nested, until)
}

/// Returns a transaction that carries out all operations if all their conditions are true, and how many operations
/// of it those of each transaction are; `None` for an operation without a condition.
fn join(operations: &[Value]) -> Option<(Txn, Vec<Option<usize>>)> {
    let (mut joined, mut parts) = (Txn::default(), Vec::new());
    for operation in operations {
        let Some(txn) = operation.get("request_txn") else {
            joined.then.push(operation.clone());
            parts.push(None);
            continue;
        };
        let list = |name| txn.get(name).and_then(Value::as_array);
        for compare in list("compare")? {
            // All attempts begin with the same comparison of the base.
            if joined.compare.first() != Some(compare) {
                joined.compare.push(compare.clone());
            }
        }
        let then = list("success")?;
        joined.then.extend(then.iter().cloned());
        parts.push(Some(then.len()));
    }
    let size = joined.compare.len().max(joined.then.len());
    (size <= BATCH + 1).then_some((joined, parts))
}

/// Returns the reply to a joined transaction as that to the operations.
fn split(mut reply: Value, parts: Vec<Option<usize>>) -> Value {
    let responses = reply.get_mut("responses").map(Value::take);
    let Some(Value::Array(responses)) = responses else {
        return reply;
    };
    let mut responses = responses.into_iter();
    let split = parts.into_iter().map(|part| match part {
        None => responses.next().unwrap_or_default(),
        Some(count) => {
            let own: Vec<_> = responses.by_ref().take(count).collect();
            json!({ "response_txn": { "succeeded": true, "responses": own } })
        }
    });
    let split: Vec<_> = split.collect();
    json!({ "header": reply.get("header"), "responses": split })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn txn(compare: &[&str], then: &[&str]) -> Value {
        json!({ "request_txn": { "compare": compare, "success": then } })
    }

    #[test]
    fn replies_of_a_joined_transaction_go_to_their_operations() {
        let operations = [
            txn(&["base", "a"], &["put a"]),
            json!("get b"),
            txn(&["base", "c"], &["get c", "put c"]),
        ];
        let (joined, parts) = join(&operations).unwrap();
        assert_eq!(joined.compare, ["base", "a", "c"]);
        assert_eq!(joined.then, ["put a", "get b", "get c", "put c"]);
        let reply = json!({ "header": "h", "succeeded": true, "responses": [1, 2, 3, 4] });
        let part = |own| json!({ "response_txn": { "succeeded": true, "responses": own } });
        let split = split(reply, parts);
        let expected = json!([part(json!([1])), 2, part(json!([3, 4]))]);
        assert_eq!(split, json!({ "header": "h", "responses": expected }));
        let many = vec![txn(&["a", "b", "b"], &["c"]); BATCH];
        assert!(join(&many).is_none());
    }
}
