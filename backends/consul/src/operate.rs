//! Finds what is known to break locks in a Consul cluster, or to make them fail.

use std::time::{Duration, SystemTime};

use lockkeeper_core::{Error, Finding, StoreInfo as _};
use lockkeeper_register::Call;
use serde_json::Value;

use crate::store::ConsulStore;

pub(crate) fn examine(store: &ConsulStore, call: Call<'_>) -> Result<Vec<Finding>, Error> {
    let leader = store.leader(call)?;
    if leader.is_empty() {
        return Ok(vec![Finding::unusable(
            "leader",
            "the agent knows no leader",
            "nothing is granted or renewed",
            "bring most of the servers up, and connect them",
        )]);
    }
    let before = SystemTime::now();
    let own = store.get("/v1/agent/self", call);
    let after = SystemTime::now();
    let mut findings = vec![
        version(&own.as_ref().map(|reply| reply.body.as_slice())),
        Finding::fine("leader", format!("the leader is at {leader}")),
        servers(&store.get("/v1/status/peers", call)?.body),
        rights(
            store
                .least_session(call)
                .and_then(|_| store.try_write(call)),
        ),
        Finding::fine(
            "ttl",
            format!("the shortest ttl is {:?}", store.capabilities().min_ttl()),
        )
        .meaning(
            "twice the shortest session; a guard is lost half of the ttl after its last renewal",
        ),
    ];
    let date = own.as_ref().ok().and_then(|reply| reply.header("date"));
    findings.extend(date.and_then(http_date).map(|date| {
        // The header leaves the part of the second out.
        Finding::clocks(before, date + Duration::from_millis(500), after)
    }));
    Ok(findings)
}

fn version(own: &Result<&[u8], &Error>) -> Finding {
    let topic = "version";
    let own = match own {
        Ok(own) => serde_json::from_slice::<Value>(own).unwrap_or_default(),
        Err(error) => {
            return Finding::warning(
                topic,
                format!("the agent does not tell it: {error}"),
                "this was not checked",
                "give the token agent_prefix \"\" with policy = \"read\"",
            );
        }
    };
    let version = own.pointer("/Config/Version").and_then(Value::as_str);
    Finding::fine(topic, format!("Consul {}", version.unwrap_or("unknown")))
}

fn servers(body: &[u8]) -> Finding {
    let topic = "servers";
    let count = serde_json::from_slice::<Vec<String>>(body).map_or(0, |it| it.len());
    match count {
        0..3 => Finding::warning(
            topic,
            format!(
                "the cluster has {count} server{}",
                if count == 1 { "" } else { "s" }
            ),
            "the loss of one is an outage until it is back",
            "run three servers or five",
        ),
        _ => Finding::fine(topic, format!("the cluster has {count} servers")),
    }
}

fn rights(tried: Result<(), Error>) -> Finding {
    let topic = "rights";
    match tried {
        Ok(()) => Finding::fine(topic, "the token may open sessions and write keys"),
        Err(error) => Finding::unusable(
            topic,
            error.to_string(),
            "nothing is granted",
            "give the token the policy of docs/stores/consul.md",
        ),
    }
}

/// Reads the time in the header `Date`, such as `Fri, 27 Nov 2026 21:45:09 GMT`.
fn http_date(text: &str) -> Option<SystemTime> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let mut parts = text.split([' ', ':']).skip(1);
    let number = |text: &str| text.parse::<u64>().ok();
    let day = number(parts.next()?)?;
    let month = parts.next().and_then(|name| MONTHS.find(name))? as u64 / 3;
    let year = number(parts.next()?)?;
    // Years begin in March, so that the day of a leap year is the last one.
    let (year, month) = (year - u64::from(month < 2), (month + 10) % 12);
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    let mut seconds = days.checked_sub(719_469)? * 24;
    seconds += number(parts.next()?)?;
    for _ in 0..2 {
        seconds = seconds * 60 + number(parts.next()?)?;
    }
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_http_are_read() {
        for (text, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Tue, 29 Feb 2000 12:00:01 GMT", 951_825_601),
            ("Fri, 27 Nov 2026 21:45:09 GMT", 1_795_815_909),
        ] {
            let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(http_date(text), Some(expected), "{text}");
        }
        assert_eq!(http_date("today"), None);
    }
}
