//! Finds what is known to break locks in an etcd cluster, or to make them fail.

use std::time::Duration;

use lockkeeper_core::{Error, Finding, HostInstant};
use serde_json::{Value, json};

use crate::store::Store;

pub(crate) fn examine(store: &Store, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
    let empty = json!({});
    let status = match store.ask("/v3/maintenance/status", &empty, deadline) {
        Err(error) if error.to_string().contains("no leader") => return Ok(vec![no_leader()]),
        status => status?,
    };
    let ask = |path| store.ask(path, &empty, deadline);
    Ok(vec![
        version(&status),
        Finding::fine("leader", "the cluster has a leader"),
        members(&ask("/v3/cluster/member/list")),
        alarms(&ask("/v3/maintenance/alarm")),
        ttl(store.min_ttl()),
    ])
}

fn field(value: &Value, name: &str) -> String {
    let text = value.get(name).and_then(Value::as_str);
    text.unwrap_or("unknown").to_owned()
}

fn version(status: &Value) -> Finding {
    Finding::fine("version", format!("etcd {}", field(status, "version")))
}

/// Each connection asks for a member with a leader, so another one refuses every request.
fn no_leader() -> Finding {
    Finding::unusable(
        "leader",
        "the member that answers has no leader",
        "nothing is granted or renewed",
        "bring most of the members up, and connect them",
    )
}

/// Returns the finding for a part that this user may not ask for.
fn untold(topic: &'static str, error: &Error) -> Finding {
    Finding::warning(
        topic,
        format!("the cluster does not tell: {error}"),
        "this was not checked",
        "run doctor as a user with the role root",
    )
}

fn members(list: &Result<Value, Error>) -> Finding {
    let topic = "members";
    let list = match list {
        Ok(list) => list,
        Err(error) => return untold(topic, error),
    };
    let members = list.get("members").and_then(Value::as_array);
    match members.map_or(0, Vec::len) {
        count @ 0..3 => Finding::warning(
            topic,
            match count {
                1 => "the cluster has 1 member".to_owned(),
                count => format!("the cluster has {count} members"),
            },
            "the loss of one is an outage until it is back",
            "run three members or five",
        ),
        count => Finding::fine(topic, format!("the cluster has {count} members")),
    }
}

fn alarms(reply: &Result<Value, Error>) -> Finding {
    let topic = "alarms";
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) => return untold(topic, error),
    };
    let raised = reply.get("alarms").and_then(Value::as_array);
    let raised: Vec<_> = raised
        .into_iter()
        .flatten()
        .map(|alarm| field(alarm, "alarm"))
        .collect();
    if raised.is_empty() {
        return Finding::fine(topic, "no alarm is raised");
    }
    Finding::unusable(
        topic,
        format!("the alarm {} is raised", raised.join(", ")),
        "the cluster takes no writes, so no lock is granted",
        "NOSPACE: compact and defragment it, or raise its quota, then `etcdctl alarm disarm`; CORRUPT: replace the member",
    )
}

fn ttl(least: Duration) -> Finding {
    Finding::fine("ttl", format!("the shortest ttl is {least:?}"))
        .meaning("1.5 times the election time-out, in whole seconds")
}
