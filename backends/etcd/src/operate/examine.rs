//! Finds what is known to break locks in an etcd cluster, or to make them fail.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_core::{Error, Finding, HostInstant};
use serde_json::{Value, json};

use crate::connection::failure::Refusal;
use crate::store::Store;

/// A member that the URL names, and its status.
type Told<'a> = (&'a str, Result<Value, Error>);

pub(crate) fn examine(store: &Store, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
    let left = deadline.saturating_since(store.client.clock.now());
    let told = store.client.connector.statuses(left);
    if let Some(error) = told.iter().find_map(|(_, status)| status.as_ref().err())
        && told.iter().all(|(_, status)| status.is_err())
    {
        let mut errors = told.iter().filter_map(|(_, status)| status.as_ref().err());
        return match errors.any(|error| Refusal::of(error) == Some(Refusal::NoLeader)) {
            true => Ok(vec![no_leader()]),
            false => Err(error.clone()),
        };
    }
    let ask = |path| store.ask(path, &json!({}), deadline);
    let list = ask("/v3/cluster/member/list");
    let mut findings = listed(&told);
    if list.as_ref().map_or(told.len(), count) > 1 {
        findings.extend(former_leader(&told));
    }
    findings.extend([
        Finding::fine("leader", "the cluster has a leader"),
        members(&list),
        alarms(&ask("/v3/maintenance/alarm")),
        ttl(store.leases.min_ttl()),
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

/// Returns a finding if a member is older than 3.4.31, or 3.5.13 of 3.5: <https://github.com/etcd-io/etcd/pull/16822>.
fn former_leader(told: &[Told<'_>]) -> Option<Finding> {
    let version = |(_, status): &Told<'_>| {
        let status = status.as_ref().ok()?;
        let text = status.get("version")?.as_str()?.to_owned();
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        let version: (u32, u32, u32) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let is_old = version < (3, 4, 31) || ((3, 5, 0)..(3, 5, 13)).contains(&version);
        is_old.then_some(text)
    };
    let version = told.iter().find_map(version)?;
    Some(Finding::warning(
        "former leader",
        format!("etcd {version} lets a former leader end leases that the new leader has renewed"),
        "a lock can have two holders for up to a third of its ttl, after the disk of a leader was slow for longer than a ttl",
        "update etcd to 3.4.31, 3.5.13 or later",
    ))
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

/// Returns the number of members in the reply to a request for the list.
fn count(list: &Value) -> usize {
    let members = list.get("members").and_then(Value::as_array);
    members.map_or(0, Vec::len)
}

fn members(list: &Result<Value, Error>) -> Finding {
    let topic = "members";
    let list = match list {
        Ok(list) => list,
        Err(error) => return untold(topic, &error.to_string()),
    };
    match count(list) {
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
        let old = |told: &[Told<'_>]| former_leader(told).map(|it| it.what.contains("3.4.23"));
        assert_eq!(old(&same), Some(true));
        for fixed in ["3.4.31", "3.5.13", "3.6.0", "main"] {
            assert_eq!(old(&[("a", of("1", fixed))]), None, "{fixed}");
        }
        for older in ["3.4.30", "3.5.12", "3.3.27"] {
            assert_eq!(old(&[("a", of("1", older))]), Some(false), "{older}");
        }
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
