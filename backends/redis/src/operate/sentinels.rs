//! Finds sentinels with which programs would not survive a fail-over.

use std::time::{Duration, Instant};

use lockkeeper_core::{Error, Finding};
use lockkeeper_remote::{Endpoint, Failure, senseless};
use redis::{InfoDict, Value, cmd, pipe};

use crate::connection::access::Access;
use crate::topology::sentinels::Sentinels;

/// Asks all sentinels within `limit`.
pub(super) fn examine_sentinels(sentinels: &Sentinels, limit: Duration) -> Vec<Finding> {
    let began = Instant::now();
    let count = sentinels.all.len();
    let mut named = Vec::new();
    let mut silent = Vec::new();
    let mut quorum = None;
    for (at, sentinel) in sentinels.all.iter().enumerate() {
        let untried = u32::try_from(count - at).unwrap_or(u32::MAX);
        let share = limit.saturating_sub(began.elapsed()) / untried;
        match ask_for_quorum(sentinels, sentinel, share) {
            Ok((endpoint, found)) => {
                named.push((&sentinel.endpoint, endpoint));
                quorum = quorum.or(Some(found));
            }
            Err(error) => silent.push(error),
        }
    }
    let mut findings = vec![answering(count, &silent), agreement(&named)];
    findings.extend(quorum);
    findings
}

fn ask_for_quorum(
    sentinels: &Sentinels,
    sentinel: &Access,
    limit: Duration,
) -> Result<(Endpoint, Finding), Error> {
    let began = Instant::now();
    let mut connection = sentinel.connect(limit)?;
    let left = || limit.saturating_sub(began.elapsed());
    let named = sentinels.ask(&mut connection, &pipe(), left())?;
    let mut check = cmd("SENTINEL");
    check.arg("CKQUORUM").arg(sentinels.name());
    let answer = connection.ask(&check.get_packed_command(), left());
    let found = match answer.map_err(Failure::into_error)? {
        Value::SimpleString(text) => Finding::fine("quorum", text),
        Value::ServerError(error) => Finding::warning(
            "quorum",
            format!("{} {}", error.code(), error.details().unwrap_or_default()),
            "when the primary fails, no other server replaces it",
            "start the missing sentinels; see `sentinel ckquorum`",
        ),
        _ => return Err(senseless()),
    };
    Ok((named.endpoint, found))
}

fn answering(count: usize, silent: &[Error]) -> Finding {
    let what = format!(
        "{} of {count} listed sentinels answer",
        count - silent.len()
    );
    match silent.first() {
        None if count < 3 => Finding::fine("sentinels", what).meaning(
            "the primary is not found without them; it is usual to have three, and to list all",
        ),
        None => Finding::fine("sentinels", what),
        Some(error) => Finding::warning(
            "sentinels",
            format!("{what}: {error}"),
            "without any of them the primary is not found",
            "start the sentinel, or correct its address in the URL",
        ),
    }
}

/// Compares the primaries that sentinels name.
fn agreement(named: &[(&Endpoint, Endpoint)]) -> Finding {
    let Some((_, first)) = named.first() else {
        return Finding::fine("primary", "no sentinel names a primary");
    };
    match named.iter().find(|(_, endpoint)| endpoint != first) {
        None => Finding::fine("primary", format!("the sentinels name {first}")),
        Some((other, endpoint)) => Finding::warning(
            "primary",
            format!(
                "the sentinels do not agree: one names {first}, and that at {other} names {endpoint}"
            ),
            "a program that asks the wrong one first locks on a server that the others do not use",
            "wait for the end of the fail-over; if they still differ then, correct the sentinel, or leave it out of the URL",
        ),
    }
}

/// Examines whether a primary that is cut off goes on granting beside the one that replaces it.
pub(super) fn isolation(info: &InfoDict, replicas: u32) -> Finding {
    // The server says how many replicas are good only if it wants some of them.
    let is_limited = info.get::<String>("min_slaves_good_slaves").is_some();
    match (is_limited, replicas) {
        (true, _) => Finding::fine(
            "min-replicas-to-write",
            "a primary without its replicas takes no writes",
        ),
        (false, 1..) => Finding::fine(
            "min-replicas-to-write",
            "min-replicas-to-write is not set, but grants and renewals wait for replicas (`replicas`)",
        ),
        (false, 0) => Finding::warning(
            "min-replicas-to-write",
            "min-replicas-to-write is not set",
            "a primary that is cut off goes on granting, and another one that replaces it does so, too",
            "set min-replicas-to-write 1, and min-replicas-max-lag to less than the ttl, on all servers; or replicas=1 in the URL",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_core::Severity::{Fine, Warning};

    #[test]
    fn sentinels_that_disagree_are_found() {
        let [one, other] = ["a", "b"].map(|host| Endpoint::tcp(host, 1));
        let same = [(&one, one.clone()), (&other, one.clone())];
        assert_eq!(agreement(&same).severity, Fine);
        let found = agreement(&[(&one, one.clone()), (&other, other.clone())]);
        assert_eq!(found.severity, Warning);
        assert!(found.what.contains("that at b:1 names b:1"), "{found:?}");
    }

    #[test]
    fn primary_that_grants_without_replicas_is_found() {
        for (info, replicas, severity) in [
            ("min_slaves_good_slaves:2", 0, Fine),
            ("connected_slaves:2", 1, Fine),
            ("connected_slaves:2", 0, Warning),
        ] {
            let found = isolation(&InfoDict::new(info), replicas);
            assert_eq!(found.severity, severity, "{info}");
        }
    }
}
