//! Acquire and release of a free name.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use ::mysql::prelude::Queryable as _;
use hashbrown::HashMap;
use lockkeeper::observers::{MetricsObserver, TracingObserver};
use lockkeeper::{Config, LockKeeper, LockName};
use lockkeeper_testkit::{MySqlKind, PostgresKind};
use parking_lot::Mutex;
use rusqlite::{Connection, params};

use crate::pinning::Pinned;
use crate::{Row, Rows, etcd, median, mysql, postgres, server};

/// Many short rounds, so that other load of the machine falls on both.
const ROUNDS: usize = 150;

/// The least that keeps a lock by hand in SQLite.
pub(crate) const RAW_TABLE: &str = "CREATE TABLE lock(namespace TEXT, name TEXT, epoch INTEGER,
    pid INTEGER, start INTEGER, host TEXT, expires INTEGER, PRIMARY KEY(namespace, name)) WITHOUT ROWID";
pub(crate) const RAW_INSERT: &str =
    "INSERT INTO lock VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING RETURNING epoch";
pub(crate) const RAW_DELETE: &str =
    "DELETE FROM lock WHERE namespace = ?1 AND name = ?2 AND epoch = ?3";
pub(crate) const RAW_HOST: &str = "3f0c8dbe-5d9b-4c3c-9a5e-0a4b7c1d2e3f/4026531836";

/// Measures the seconds of a pair of each alternately; returns the medians, and the median of the ratios.
pub(crate) fn alternately(
    pairs: u32,
    mut floor: impl FnMut() -> Result<(), Box<dyn std::error::Error>>,
    mut ours: impl FnMut() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<(f64, f64, f64), Box<dyn std::error::Error>> {
    let time = |work: &mut dyn FnMut() -> Result<(), Box<dyn std::error::Error>>| {
        let began = Instant::now();
        for _ in 0..pairs {
            work()?;
        }
        Ok::<_, Box<dyn std::error::Error>>(began.elapsed().as_secs_f64() / f64::from(pairs))
    };
    let (mut floors, mut all, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=ROUNDS {
        let (low, high) = (time(&mut floor)?, time(&mut ours)?);
        if round > 0 {
            floors.push(low);
            all.push(high);
            ratios.push(high / low);
        }
    }
    Ok((median(floors), median(all), median(ratios)))
}

pub(crate) fn row(what: &str, (floor, ours, ratio): (f64, f64, f64), budget: f64) -> Row {
    let show = |seconds: f64| match seconds {
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s => format!("{:.1} µs", s * 1e6),
    };
    Row {
        what: what.to_owned(),
        measured: show(ours),
        floor: show(floor),
        value: ratio,
        budget,
        unit: "x",
    }
}

pub(crate) fn pair(keeper: &LockKeeper, name: &LockName) -> Result<(), Box<dyn std::error::Error>> {
    keeper.lock(name)?.release()?;
    Ok(())
}

/// A `parking_lot::Mutex` per name in a sharded map, made at its first use and removed with its last
/// holder, as a map of arbitrary names has to.
struct ShardedMap {
    hasher: RandomState,
    shards: Vec<Mutex<Names>>,
}

type Names = HashMap<Arc<str>, Arc<Mutex<()>>, RandomState>;

impl ShardedMap {
    fn pair(&self, name: &str) -> Option<()> {
        let shard = self
            .shards
            .get(self.hasher.hash_one(name) as usize % self.shards.len())?;
        let mutex = {
            let mut names = shard.lock();
            match names.get(name) {
                Some(mutex) => Arc::clone(mutex),
                None => Arc::clone(names.entry(Arc::from(name)).or_default()),
            }
        };
        drop(mutex.lock());
        let mut names = shard.lock();
        drop(mutex);
        if names
            .get(name)
            .is_some_and(|mutex| Arc::strong_count(mutex) == 1)
        {
            names.remove(name);
        }
        Some(())
    }
}

pub(crate) fn memory() -> Rows {
    let map = ShardedMap {
        hasher: RandomState::new(),
        shards: (0..32).map(|_| Mutex::default()).collect(),
    };
    let name = LockName::new("seat:42")?;
    let plain = Config::from_url("memory:")?;
    // This program installs neither a subscriber of tracing nor a recorder of metrics.
    let traced = plain.clone().observer(Arc::new(TracingObserver::new()));
    let counted = plain.clone().observer(Arc::new(MetricsObserver::new()));
    let mut rows = Vec::new();
    for (what, config, budget) in [
        ("acquire + release, in-process", plain, 3.0),
        ("  with TracingObserver, no subscriber", traced, 3.5),
        ("  with MetricsObserver, no recorder", counted, 10.0),
    ] {
        let keeper = lockkeeper::open_config(&config)?;
        let made = alternately(
            20_000,
            || map.pair("seat:42").ok_or_else(|| "no shard".into()),
            || pair(&keeper, &name),
        )?;
        rows.push(row(what, made, budget));
    }
    Ok(rows)
}

pub(crate) fn sqlite() -> Rows {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("locks.db");
    let url = format!("sqlite:{}", path.display());
    let keeper = lockkeeper::open(&url)?;
    let name = LockName::new("seat:42")?;

    let raw = Connection::open(folder.path().join("raw.db"))?;
    raw.pragma_update(None, "journal_mode", "WAL")?;
    raw.pragma_update(None, "synchronous", "NORMAL")?;
    raw.execute_batch(RAW_TABLE)?;
    let mut insert = raw.prepare(RAW_INSERT)?;
    let mut delete = raw.prepare(RAW_DELETE)?;
    let mut epoch = 1_i64 << 50;
    let floor = || {
        epoch += 1;
        let values = params!["default", "seat:42", epoch, 4711, 815, RAW_HOST, epoch];
        let _: i64 = insert.query_row(values, |row| row.get(0))?;
        delete.execute(params!["default", "seat:42", epoch])?;
        Ok(())
    };
    let times = alternately(500, floor, || pair(&keeper, &name))?;
    Ok(vec![row("acquire + release, SQLite", times, 1.3)])
}

/// The least that is safe by hand: a unique value, and a release that compares it.
pub(crate) fn redis() -> Rows {
    let server = server::start()?;
    let _pinned = Pinned::to_own_cores(server.pid())?;
    let keeper = lockkeeper::open(&server.url())?;
    let name = LockName::new("seat:42")?;

    let mut raw = server::raw(&server)?;
    let sha = server::load_release(&mut raw)?;
    let mut number = 0_u64;
    let floor = || {
        number += 1;
        let owner = format!("3f0c8dbe5d9b4c3c-{number}");
        let mut set = redis::cmd("SET");
        set.arg("raw:seat:42").arg(&owner).arg("NX");
        let set: Option<String> = set.arg("PX").arg(30_000).query(&mut raw)?;
        set.ok_or("the name is taken")?;
        let mut evalsha = redis::cmd("EVALSHA");
        evalsha.arg(&sha).arg(1).arg("raw:seat:42").arg(&owner);
        let freed: i64 = evalsha.query(&mut raw)?;
        if freed == 1 {
            Ok(())
        } else {
            Err("it was lost".into())
        }
    };
    let times = alternately(100, floor, || pair(&keeper, &name))?;
    Ok(vec![row("acquire + release, redis", times, 1.05)])
}

/// The two statements `GET_LOCK` and `RELEASE_LOCK`, prepared, without lease and token.
pub(crate) fn mysql(kind: MySqlKind) -> Rows {
    let server = mysql::start(kind)?;
    let _pinned = Pinned::to_own_cores(server.pid())?;
    let keeper = lockkeeper::open(&server.url())?;
    let name = LockName::new("seat:42")?;

    let mut raw = mysql::raw(&server)?;
    let lock = raw.prep("SELECT GET_LOCK(?, 0)")?;
    let release = raw.prep("SELECT RELEASE_LOCK(?)")?;
    let floor = || {
        for statement in [&lock, &release] {
            let done: Option<Option<i64>> = raw.exec_first(statement, ("raw:seat:42",))?;
            if done != Some(Some(1)) {
                return Err("the name is taken, or was lost".into());
            }
        }
        Ok(())
    };
    let times = alternately(100, floor, || pair(&keeper, &name))?;
    Ok(vec![row(
        &format!("acquire + release, {kind}"),
        times,
        1.05,
    )])
}

/// The two statements `pg_try_advisory_lock` and `pg_advisory_unlock`, prepared, without lease and token.
pub(crate) fn postgres(kind: PostgresKind) -> Rows {
    let server = postgres::start(kind)?;
    let _pinned = Pinned::to_own_cores(server.pid())?;
    let keeper = lockkeeper::open(&server.url())?;
    let name = LockName::new("seat:42")?;

    let mut raw = postgres::Raw::open(&server)?;
    raw.prepare("lock", "SELECT pg_try_advisory_lock($1::int8)")?;
    raw.prepare("release", "SELECT pg_advisory_unlock($1::int8)")?;
    let floor = || {
        for statement in ["lock", "release"] {
            if raw.run(statement, "4242424242424242424")? != 1 {
                return Err("the name is taken, or was lost".into());
            }
        }
        Ok(())
    };
    let times = alternately(100, floor, || pair(&keeper, &name))?;
    Ok(vec![row(
        &format!("acquire + release, {kind}"),
        times,
        1.05,
    )])
}

/// The two transactions: the key is written with a lease if it is not there, and deleted if it is.
pub(crate) fn etcd() -> Rows {
    let server = etcd::start()?;
    let _pinned = Pinned::to_own_cores(server.pid())?;
    let keeper = lockkeeper::open(&server.url())?;
    let name = LockName::new("seat:42")?;

    let mut raw = etcd::Raw::connect(&server)?;
    let lease = raw.send(&etcd::Raw::request(
        "/v3/lease/grant",
        r#"{"TTL":3600,"ID":42}"#,
    ))?;
    if !lease.contains(r#""ID":"42""#) {
        return Err(format!("no lease: {lease}").into());
    }
    // `raw/seat:42`, and the host of a holder, in base64.
    let key = "cmF3L3NlYXQ6NDI=";
    let value = "M2YwYzhkYmUtNWQ5Yi00YzNjLTlhNWUtMGE0YjdjMWQyZTNmLzQwMjY1MzE4MzY=";
    let compare = |result| format!(r#"{{"key":"{key}","target":"CREATE","result":"{result}"}}"#);
    let lock = format!(
        r#"{{"compare":[{}],"success":[{{"request_put":{{"key":"{key}","value":"{value}","lease":42}}}}]}}"#,
        compare("EQUAL")
    );
    let release = format!(
        r#"{{"compare":[{}],"success":[{{"request_delete_range":{{"key":"{key}"}}}}]}}"#,
        compare("GREATER")
    );
    let requests = [lock, release].map(|body| etcd::Raw::request("/v3/kv/txn", &body));
    let floor = || {
        for request in &requests {
            let reply = raw.send(request)?;
            if !reply.contains(r#""succeeded":true"#) {
                return Err(format!("the name is taken, or was lost: {reply}").into());
            }
        }
        Ok(())
    };
    let times = alternately(50, floor, || pair(&keeper, &name))?;
    Ok(vec![row("acquire + release, etcd", times, 1.1)])
}
