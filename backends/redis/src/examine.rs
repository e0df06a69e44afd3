//! Finds settings of a Redis or Valkey server that are known to break locks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::{Error, Finding, HostInstant};
use lockkeeper_remote::senseless;
use redis::cmd;

use crate::store::Store;

/// `INFO`'s fields.
struct Info(String);

impl Info {
    fn get(&self, field: &str) -> Option<&str> {
        self.0.lines().find_map(|line| {
            let (known, value) = line.trim_end().split_once(':')?;
            (known == field).then_some(value)
        })
    }

    fn number(&self, field: &str) -> u64 {
        let number = self.get(field).and_then(|value| value.parse().ok());
        number.unwrap_or(0)
    }

    fn is(&self, field: &str, value: &str) -> bool {
        self.get(field) == Some(value)
    }
}

pub(crate) fn examine(store: &Store, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
    let before = SystemTime::now();
    let (seconds, micros): (u64, u64) = store.run_for_admin(&cmd("TIME"), deadline)?;
    let after = SystemTime::now();
    let time = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
    let time = UNIX_EPOCH.checked_add(time).ok_or_else(senseless)?;
    let info: Vec<u8> = store.run_for_admin(&cmd("INFO"), deadline)?;
    let info = Info(String::from_utf8_lossy(&info).into_owned());
    let mut findings = vec![
        version(&info),
        Finding::clocks(before, time, after),
        role(&info),
        replicas(&info, store.options.replicas),
        eviction(&info),
        persistence(&info),
        cluster(&info),
        clients(&info, store.options.remote.pool_size),
    ];
    findings.extend(memory(&info));
    Ok(findings)
}

fn version(info: &Info) -> Finding {
    let valkey = info.get("valkey_version").map(|it| format!("Valkey {it}"));
    let redis = || format!("Redis {}", info.get("redis_version").unwrap_or("unknown"));
    Finding::fine("version", valkey.unwrap_or_else(redis))
}

fn role(info: &Info) -> Finding {
    let topic = "role";
    if info.is("role", "slave") {
        return Finding::unusable(
            topic,
            "this is a replica",
            "it takes no writes, or forgets them when it hears from its primary",
            "connect to its primary",
        );
    }
    Finding::fine(topic, "this is a primary")
}

fn replicas(info: &Info, wanted: u32) -> Finding {
    let topic = "replicas";
    let there = info.number("connected_slaves");
    let wanted = u64::from(wanted);
    if there < wanted {
        return Finding::unusable(
            topic,
            format!("{there} replicas are connected, and `replicas` asks for {wanted}"),
            "no lock can be granted until enough of them are",
            "start the replicas, or lower `replicas`",
        );
    }
    match (there, wanted) {
        (0, _) => Finding::fine(topic, "there are no replicas"),
        (_, 0) => Finding::warning(
            topic,
            format!("{there} replicas are connected, and grants do not wait for them"),
            "when one takes over that has not heard of a grant, the name is granted twice",
            "set replicas=1 or more in the URL, and have the data refuse smaller tokens",
        ),
        _ => Finding::fine(
            topic,
            format!("grants wait for {wanted} of {there} replicas"),
        ),
    }
}

fn eviction(info: &Info) -> Finding {
    let topic = "maxmemory-policy";
    let policy = info.get("maxmemory_policy").unwrap_or("unknown");
    let what = format!("maxmemory-policy is {policy}");
    if policy == "noeviction" {
        return Finding::fine(topic, what);
    }
    if info.number("maxmemory") == 0 {
        return Finding::fine(topic, format!("{what}, and maxmemory is not set"))
            .meaning("nothing is evicted while there is no limit");
    }
    Finding::warning(
        topic,
        what,
        "when the server is full it throws locks away while they are held, and grants them again",
        "set maxmemory-policy noeviction, or give the locks a server of their own",
    )
}

fn memory(info: &Info) -> Option<Finding> {
    let (used, most) = (info.number("used_memory"), info.number("maxmemory"));
    (most > 0 && used > most / 10 * 9).then(|| {
        Finding::warning(
            "memory",
            format!("{} of {} MiB are used", used >> 20, most >> 20),
            "at its limit the server grants no more locks, or evicts those that are held",
            "raise maxmemory, or find what fills it",
        )
    })
}

fn persistence(info: &Info) -> Finding {
    let topic = "persistence";
    if info.is("aof_enabled", "1") {
        return Finding::fine(topic, "the append-only file is on")
            .meaning("a crash loses the grants that were not on the disk yet (appendfsync)");
    }
    Finding::warning(
        topic,
        "the append-only file is off",
        "a server that restarts has forgotten who holds what; a holder notices at its next \
         renewal, and until then another process can get its lock",
        "set appendonly yes, or have the data refuse smaller tokens",
    )
}

fn cluster(info: &Info) -> Finding {
    let topic = "cluster";
    if info.is("cluster_enabled", "1") {
        return Finding::warning(
            topic,
            "the server is in cluster mode",
            "locks whose slot is on another node, or moves there, end in errors",
            "name a server that is not in cluster mode, or that has all slots",
        );
    }
    Finding::fine(topic, "the server is not in cluster mode")
}

fn clients(info: &Info, pool: u32) -> Finding {
    let topic = "clients";
    let (now, most) = (info.number("connected_clients"), info.number("maxclients"));
    // The pool and the listener; the connection of this request is counted already.
    let ours = u64::from(pool) + 1;
    let what = format!("{now} clients are connected, of at most {most}");
    if most == 0 || now.saturating_add(ours) <= most {
        return Finding::fine(topic, what);
    }
    Finding::warning(
        topic,
        what,
        format!("a program that waits and holds needs up to {ours} more"),
        "raise maxclients, or lower pool_size",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_core::Severity;

    fn info(text: &str) -> Info {
        Info(text.replace('\n', "\r\n"))
    }

    #[test]
    fn eviction_is_warned_of_only_with_a_memory_limit() {
        for (text, severity) in [
            (
                "maxmemory:0\nmaxmemory_policy:allkeys-lru\n",
                Severity::Fine,
            ),
            ("maxmemory:9\nmaxmemory_policy:noeviction\n", Severity::Fine),
            (
                "maxmemory:9\nmaxmemory_policy:volatile-ttl\n",
                Severity::Warning,
            ),
        ] {
            assert_eq!(eviction(&info(text)).severity, severity, "{text}");
        }
    }

    #[test]
    fn missing_and_ignored_replicas_are_found() {
        for (there, wanted, severity) in [
            (0, 0, Severity::Fine),
            (0, 1, Severity::Unusable),
            (2, 0, Severity::Warning),
            (2, 1, Severity::Fine),
        ] {
            let info = info(&format!("role:master\nconnected_slaves:{there}\n"));
            assert_eq!(replicas(&info, wanted).severity, severity);
        }
    }

    #[test]
    fn replica_is_unusable_and_cluster_is_warned_of() {
        assert_eq!(role(&info("role:master\n")).severity, Severity::Fine);
        assert_eq!(role(&info("role:slave\n")).severity, Severity::Unusable);
        let on = |on| cluster(&info(&format!("cluster_enabled:{on}\n"))).severity;
        assert_eq!((on(0), on(1)), (Severity::Fine, Severity::Warning));
    }

    #[test]
    fn full_memory_and_too_few_clients_are_warned_of() {
        assert!(memory(&info("used_memory:95\nmaxmemory:100\n")).is_some());
        assert!(memory(&info("used_memory:95\nmaxmemory:0\n")).is_none());
        let few = info("connected_clients:95\nmaxclients:100\n");
        assert_eq!(clients(&few, 10).severity, Severity::Warning);
        assert_eq!(clients(&few, 4).severity, Severity::Fine);
    }
}
