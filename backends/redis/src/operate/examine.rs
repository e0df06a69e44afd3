//! Finds settings of a Redis or Valkey server that are known to break locks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::{Error, Finding, HostInstant};
use lockkeeper_remote::{Failure, senseless};
use redis::{InfoDict, cmd};

use super::cluster::state;
use super::run;
use super::sentinels::{examine_sentinels, isolation};
use crate::locks::Locks;
use crate::topology::ask_for_flush_notice;
use crate::topology::node::Node;
use crate::wire::server_clock::{STEP, Seen};

pub(super) fn examine(
    locks: &Locks,
    node: &Node,
    deadline: HostInstant,
) -> Result<Vec<Finding>, Error> {
    let (before, asked_at) = (SystemTime::now(), node.clock.now());
    let (seconds, micros): (u64, u64) = run(node, &cmd("TIME"), deadline)?;
    let after = SystemTime::now();
    let told = i64::try_from(seconds.saturating_mul(1_000_000).saturating_add(micros))
        .map_err(|_| senseless())?;
    node.note_time(told, asked_at);
    let time = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
    let time = UNIX_EPOCH.checked_add(time).ok_or_else(senseless)?;
    let info: Vec<u8> = run(node, &cmd("INFO"), deadline)?;
    let info = InfoDict::new(&String::from_utf8_lossy(&info));
    let grace = node.options.remote.restart_grace;
    let mut findings = vec![
        version(&info),
        Finding::clocks(before, time, after),
        clock(locks, node, told, deadline)?,
        role(&info),
        replicas(&info, node.options.replicas),
        eviction(&info),
        persistence(&info, &appendfsync(node, deadline), grace),
        flush_notice(node, deadline)?,
        clients(&info, node.options.remote.pool_size),
    ];
    match node.map {
        None => findings.push(cluster(&info)),
        Some(_) => {
            let mut cluster_info = cmd("CLUSTER");
            cluster_info.arg("INFO");
            let told: Vec<u8> = run(node, &cluster_info, deadline)?;
            findings.push(state(&InfoDict::new(&String::from_utf8_lossy(&told))));
            findings.push(isolation(&info, node.options.replicas));
        }
    }
    findings.extend(memory(&info));
    if let Some(sentinels) = node.connector.sentinels() {
        findings.push(isolation(&info, node.options.replicas));
        findings.extend(examine_sentinels(sentinels, time_left(node, deadline)));
    }
    Ok(findings)
}

/// Looks whether the server's clock runs as it should, by what this program has seen of it, and by the last epoch.
fn clock(locks: &Locks, node: &Node, now: i64, deadline: HostInstant) -> Result<Finding, Error> {
    let last: Option<String> = match locks.keys.only_epoch() {
        // A cluster has an epoch key in each bucket.
        None => None,
        Some(epoch_key) => {
            let mut get = cmd("MGET");
            get.arg(epoch_key);
            let found: Vec<Option<String>> = run(node, &get, deadline)?;
            found.into_iter().flatten().next()
        }
    };
    let last = last.and_then(|last| last.parse::<i64>().ok());
    Ok(clock_of(
        &node.server_clock.seen(node.clock.now()),
        last.map_or(0, |last| last.saturating_sub(now)),
    ))
}

/// `behind` says by how many microseconds the server's clock is behind the last epoch.
fn clock_of(seen: &Seen, behind: i64) -> Finding {
    let micros = |span: i64| Duration::from_micros(span.unsigned_abs());
    let what = if behind > STEP {
        let behind = micros(behind);
        format!(
            "the server's clock is {behind:.1?} behind its last token, so it was set back, or another server took over"
        )
    } else if let Some(step) = seen.step {
        let way = if step > 0 { "forward" } else { "back" };
        let step = micros(step);
        format!(
            "the server's clock was set {way} by {step:.1?} while this program was open, or another server took over"
        )
    } else if let Some((gained, span)) = seen.drift
        && gained.saturating_abs() > STEP
        && micros(gained) > span / 1_000
    {
        let way = if gained > 0 { "gained" } else { "lost" };
        let gained = micros(gained);
        format!("the server's clock has {way} {gained:.1?} in {span:.1?} of this host's")
    } else {
        return Finding::fine("clock runs", "the server's clock runs as this host's");
    };
    Finding::warning(
        "clock runs",
        what,
        "the server ends leases by its clock: set forward by more than a ttl, it grants a held name until the holder's next renewal; set back, it keeps the lock of a dead holder that much longer",
        "have the time service of the server slew its clock, and step it only while nothing is locked",
    )
}

fn text(info: &InfoDict, field: &str) -> String {
    info.get(field).unwrap_or_else(|| "unknown".to_owned())
}

fn number(info: &InfoDict, field: &str) -> u64 {
    info.get(field).unwrap_or(0)
}

fn version(info: &InfoDict) -> Finding {
    let valkey: Option<String> = info.get("valkey_version");
    let valkey = valkey.map(|version| format!("Valkey {version}"));
    let redis = || format!("Redis {}", text(info, "redis_version"));
    Finding::fine("version", valkey.unwrap_or_else(redis))
}

fn role(info: &InfoDict) -> Finding {
    if text(info, "role") != "slave" {
        return Finding::fine("role", "this is a primary");
    }
    Finding::unusable(
        "role",
        "this is a replica",
        "it takes no writes, or forgets them when it hears from its primary",
        "connect to its primary",
    )
}

fn replicas(info: &InfoDict, wanted: u32) -> Finding {
    let there = number(info, "connected_slaves");
    match (there, u64::from(wanted)) {
        (_, wanted) if there < wanted => Finding::unusable(
            "replicas",
            format!("{there} replicas are connected, and `replicas` asks for {wanted}"),
            "no lock can be granted until enough of them are",
            "start the replicas, or lower `replicas`",
        ),
        (0, _) => Finding::fine("replicas", "there are no replicas"),
        (_, 0) => Finding::warning(
            "replicas",
            format!("{there} replicas are connected, and grants do not wait for them"),
            "when one takes over that has not heard of a grant, the name is granted twice",
            "set replicas=1 or more in the URL, and have the data refuse smaller tokens",
        ),
        (_, wanted) => {
            let what = format!("grants wait for {wanted} of {there} replicas");
            Finding::fine("replicas", what)
        }
    }
}

fn eviction(info: &InfoDict) -> Finding {
    let policy = text(info, "maxmemory_policy");
    let what = format!("maxmemory-policy is {policy}");
    if policy == "noeviction" {
        return Finding::fine("maxmemory-policy", what);
    }
    if number(info, "maxmemory") == 0 {
        let what = format!("{what}, and maxmemory is not set");
        return Finding::fine("maxmemory-policy", what)
            .meaning("nothing is evicted while there is no limit");
    }
    Finding::warning(
        "maxmemory-policy",
        what,
        "when the server is full it throws locks away while they are held, and grants them again",
        "set maxmemory-policy noeviction, or give the locks a server of their own",
    )
}

fn memory(info: &InfoDict) -> Option<Finding> {
    let (used, most) = (number(info, "used_memory"), number(info, "maxmemory"));
    (most > 0 && used > most / 10 * 9).then(|| {
        Finding::warning(
            "memory",
            format!("{} of {} MiB are used", used >> 20, most >> 20),
            "at its limit the server grants no more locks, or evicts those that are held",
            "raise maxmemory, or find what fills it",
        )
    })
}

/// Returns the setting `appendfsync`; empty if the server does not say, or the user may not ask.
fn appendfsync(node: &Node, deadline: HostInstant) -> String {
    let mut get = cmd("CONFIG");
    get.arg("GET").arg("appendfsync");
    let answer = run::<Vec<String>>(node, &get, deadline);
    answer
        .ok()
        .and_then(|mut pair| pair.pop())
        .unwrap_or_default()
}

fn persistence(info: &InfoDict, fsync: &str, grace: Duration) -> Finding {
    let is_on = text(info, "aof_enabled") == "1";
    let what = match (is_on, fsync) {
        (false, _) => "the append-only file is off".to_owned(),
        (true, "") => "the append-only file is on".to_owned(),
        (true, _) => format!("the append-only file is on, and appendfsync is {fsync}"),
    };
    if !grace.is_zero() {
        return Finding::fine("persistence", what).meaning(format!(
            "nothing is granted until {grace:?} after a start (restart_grace); that should be the largest ttl, or more"
        ));
    }
    let forgotten = match (is_on, fsync) {
        (true, "always") => return Finding::fine("persistence", what),
        (true, "") => {
            return Finding::fine("persistence", what)
                .meaning("a crash loses the grants that were not on the disk yet (appendfsync)");
        }
        (true, _) => "the last grants",
        (false, _) => "who holds what",
    };
    Finding::warning(
        "persistence",
        what,
        format!(
            "a server that restarts after a crash has forgotten {forgotten}; until a former holder that is stopped or cut off notices, another process can get its lock"
        ),
        "set restart_grace to the largest ttl in the URL of all programs, or appendonly yes and appendfsync always",
    )
}

fn time_left(node: &Node, deadline: HostInstant) -> Duration {
    deadline.saturating_since(node.clock.now())
}

fn flush_notice(node: &Node, deadline: HostInstant) -> Result<Finding, Error> {
    let limit = time_left(node, deadline).min(node.options.remote.response_timeout);
    let mut connection = node.connector.connect(limit)?;
    let refusal = ask_for_flush_notice(&mut connection, limit).map_err(Failure::into_error)?;
    let Some(refusal) = refusal else {
        return Ok(Finding::fine(
            "flush",
            "the server tells holders of a flush",
        ));
    };
    let said = refusal.details().unwrap_or_default();
    Ok(Finding::warning(
        "flush",
        format!(
            "the server does not tell holders of a flush: {} {said}",
            refusal.code()
        ),
        "a holder notices at its next renewal, and until then another process can get its lock",
        "allow the user +client|tracking; it needs RESP3, too",
    ))
}

fn cluster(info: &InfoDict) -> Finding {
    if text(info, "cluster_enabled") != "1" {
        return Finding::fine("cluster", "the server is not in cluster mode");
    }
    Finding::warning(
        "cluster",
        "the server is in cluster mode",
        "locks whose slot is on another node, or moves there, end in errors",
        "write redis+cluster:// with nodes of the cluster",
    )
}

fn clients(info: &InfoDict, pool: u32) -> Finding {
    let (now, most) = (
        number(info, "connected_clients"),
        number(info, "maxclients"),
    );
    // The pool and the listener; the connection of this request is counted already.
    let ours = u64::from(pool) + 1;
    let what = format!("{now} clients are connected, of at most {most}");
    if most == 0 || now.saturating_add(ours) <= most {
        return Finding::fine("clients", what);
    }
    Finding::warning(
        "clients",
        what,
        format!("a program that waits and holds needs up to {ours} more"),
        "raise maxclients, or lower pool_size",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_core::Severity::{Fine, Unusable, Warning};

    #[test]
    fn clock_that_does_not_run_as_the_hosts_is_found() {
        let second = 1_000_000;
        let drift = |gained, seconds| Seen {
            step: None,
            drift: Some((gained, Duration::from_secs(seconds))),
        };
        let step = Seen {
            step: Some(-60 * second),
            ..Seen::default()
        };
        for (seen, behind, words) in [
            (Seen::default(), 0, "runs as this host's"),
            (Seen::default(), -3_600 * second, "runs as this host's"),
            (Seen::default(), 20 * second, "20.0s behind its last token"),
            (step, 0, "set back by 60.0s"),
            (drift(second, 86_400), 0, "runs as this host's"),
            (drift(-second, 100), 0, "lost 1.0s in 100.0s"),
        ] {
            let found = clock_of(&seen, behind);
            assert!(found.what.contains(words), "{found:?}");
        }
    }

    #[test]
    fn settings_that_break_locks_are_found() {
        let few_clients = "connected_clients:95\nmaxclients:100";
        for (info, check, severity) in [
            ("role:master", role as fn(&InfoDict) -> Finding, Fine),
            ("role:slave", role, Unusable),
            ("connected_slaves:0", |info| replicas(info, 0), Fine),
            ("connected_slaves:0", |info| replicas(info, 1), Unusable),
            ("connected_slaves:2", |info| replicas(info, 0), Warning),
            ("connected_slaves:2", |info| replicas(info, 1), Fine),
            ("maxmemory:0\nmaxmemory_policy:allkeys-lru", eviction, Fine),
            ("maxmemory:9\nmaxmemory_policy:noeviction", eviction, Fine),
            (
                "maxmemory:9\nmaxmemory_policy:volatile-ttl",
                eviction,
                Warning,
            ),
            ("cluster_enabled:0", cluster, Fine),
            ("cluster_enabled:1", cluster, Warning),
            (few_clients, |info| clients(info, 4), Fine),
            (few_clients, |info| clients(info, 10), Warning),
        ] {
            assert_eq!(check(&InfoDict::new(info)).severity, severity, "{info}");
        }
        for (aof, fsync, grace, severity) in [
            (0, "everysec", 0, Warning),
            (1, "everysec", 0, Warning),
            (1, "always", 0, Fine),
            (1, "", 0, Fine),
            (0, "", 30, Fine),
        ] {
            let info = InfoDict::new(&format!("aof_enabled:{aof}"));
            let found = persistence(&info, fsync, Duration::from_secs(grace));
            assert_eq!(found.severity, severity, "{found:?}");
        }
        for (most, is_full) in [(100, true), (0, false)] {
            let info = format!("used_memory:95\nmaxmemory:{most}");
            assert_eq!(memory(&InfoDict::new(&info)).is_some(), is_full);
        }
    }
}
