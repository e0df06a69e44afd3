//! Finds what is known to break locks in an etcd cluster, or to make them fail.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_core::{Error, Finding, HostInstant};
use serde_json::{Value, json};

use crate::store::Store;

/// A member that the URL names, and its status.
type Told<'a> = (&'a str, Result<Value, Error>);

pub(crate) fn examine(store: &Store, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
    let until = store.client.at_least_one_attempt(deadline);
    let left = until.saturating_since(store.clock.now());
    let told = store.client.connector.statuses(left);
    if let Some(error) = told.iter().find_map(|(_, status)| status.as_ref().err())
        && told.iter().all(|(_, status)| status.is_err())
    {
        let mut errors = told.iter().filter_map(|(_, status)| status.as_ref().err());
        return match errors.any(|error| error.to_string().contains("no leader")) {
            true => Ok(vec![no_leader()]),
            false => Err(error.clone()),
        };
    }
    let ask = |path| store.ask(path, &json!({}), deadline);
    let mut findings = listed(&told);
    findings.extend([
        Finding::fine("leader", "the cluster has a leader"),
        members(&ask("/v3/cluster/member/list")),
        alarms(&ask("/v3/maintenance/alarm")),
        ttl(store.min_ttl()),
    ]);
    Ok(findings)
}

/// Examines the members that the URL names.
fn listed(told: &[Told<'_>]) -> Vec<Finding> {
    let told_of =
        |(host, status): &'_ Told<'_>| Some((host.to_string(), status.as_ref().ok()?.clone()));
    let answers: Vec<_> = told.iter().filter_map(told_of).collect();
    let mut findings = vec![version(&answers), answering(told)];
    let is_learner = |it: &Value| it.get("isLearner").and_then(Value::as_bool) == Some(true);
    if let Some((host, _)) = answers.iter().find(|(_, status)| is_learner(status)) {
        findings.push(Finding::warning(
            "learner",
            format!("the member at {host} is a learner"),
            "it serves no client, so the others have to",
            "promote it (`etcdctl member promote`), or leave it out of the URL",
        ));
    }
    let cluster = |it: &Value| it.pointer("/header/cluster_id").cloned();
    if let Some((first, status)) = answers.first()
        && let Some((host, _)) = answers
            .iter()
            .find(|(_, it)| cluster(it) != cluster(status))
    {
        findings.push(Finding::unusable(
            "cluster",
            format!("the servers at {first} and {host} are of two clusters"),
            "two programs can hold one lock, each in its own cluster",
            "name the members of one cluster in the URL",
        ));
    }
    findings
}

fn version(answers: &[(String, Value)]) -> Finding {
    let topic = "version";
    let told = |(_, status): &(String, Value)| Some(status.get("version")?.as_str()?.to_owned());
    let versions: BTreeSet<_> = answers.iter().filter_map(told).collect();
    if versions.is_empty() {
        return untold(topic, "this user may not ask for it");
    }
    let versions: Vec<_> = versions.into_iter().collect();
    Finding::fine(topic, format!("etcd {}", versions.join(" and ")))
}

fn answering(told: &[Told<'_>]) -> Finding {
    let silent: Vec<_> = told
        .iter()
        .filter_map(|(_, status)| status.as_ref().err())
        .collect();
    let count = told.len();
    let what = format!("{} of {count} listed members answer", count - silent.len());
    match silent.first() {
        None => Finding::fine("listed members", what),
        Some(error) => Finding::warning(
            "listed members",
            format!("{what}: {error}"),
            "each that is missing makes an outage by the loss of others more likely",
            "start the member and connect it to the others, or correct its address in the URL",
        ),
    }
}

fn field(value: &Value, name: &str) -> String {
    let text = value.get(name).and_then(Value::as_str);
    text.unwrap_or("unknown").to_owned()
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
fn untold(topic: &'static str, why: &str) -> Finding {
    Finding::warning(
        topic,
        format!("the cluster does not tell: {why}"),
        "this was not checked",
        "run doctor as a user with the role root",
    )
}

fn members(list: &Result<Value, Error>) -> Finding {
    let topic = "members";
    let list = match list {
        Ok(list) => list,
        Err(error) => return untold(topic, &error.to_string()),
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
        Err(error) => return untold(topic, &error.to_string()),
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

#[cfg(test)]
mod tests {
    use lockkeeper_core::{ErrorKind, Severity};

    use super::*;

    #[test]
    fn listed_members_that_differ_are_found() {
        let of = |cluster: &str, version: &str| {
            Ok(json!({ "header": { "cluster_id": cluster }, "version": version }))
        };
        let topics = |told: &[Told<'_>]| -> Vec<_> {
            let unfit = listed(told)
                .into_iter()
                .filter(|it| it.severity != Severity::Fine);
            unfit.map(|it| it.topic).collect()
        };
        let same = [("a", of("1", "3.4.23")), ("b", of("1", "3.5.30"))];
        assert_eq!(topics(&same), Vec::<&str>::new());
        let [version, ..] = &listed(&same)[..] else {
            panic!("there is a version");
        };
        assert_eq!(version.what, "etcd 3.4.23 and 3.5.30");
        let learner = json!({ "header": { "cluster_id": "1" }, "isLearner": true });
        let silent = Err(Error::new(ErrorKind::Unavailable, "it is down"));
        let unfit = [
            ("a", of("1", "")),
            ("b", of("2", "")),
            ("c", Ok(learner)),
            ("d", silent),
        ];
        assert_eq!(topics(&unfit), ["listed members", "learner", "cluster"]);
    }
}
