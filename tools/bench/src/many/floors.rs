//! What one raw connection of each store can carry: the floor of many threads with a name each.

use std::error::Error;
use std::time::Duration;

use lockkeeper::backends::etcd::{EtcdOptions, PlainClient, encoded};
use lockkeeper_testkit::{MySqlKind, PostgresKind, RedisCluster, RedisServer};
use mysql::prelude::Queryable as _;
use serde_json::{Value, json};

use super::rows;
use crate::{
    Rows, etcd as etcd_server, mysql as mysql_server, postgres as postgres_server, server,
};

/// How many requests travel together.
const PIPELINE: usize = 64;
const NAMES_PER_STATEMENT: usize = 32;
/// No node of the cluster is replaced.
const NEVER: Duration = Duration::from_secs(86_400);
/// How long a raw request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The floor has one connection, and [`PIPELINE`] requests in a pipeline.
pub(crate) fn redis() -> Rows {
    let server = server::start()?;
    on_redis("redis", &server, &server.url())
}

/// The floor is that of one server beside the cluster.
pub(crate) fn cluster() -> Rows {
    let (kind, server) = (server::kind()?, server::start()?);
    let cluster = RedisCluster::start(kind, 0, NEVER)?;
    cluster.announce_servers()?;
    let url = cluster
        .server(0)
        .url()
        .replacen("redis:", "redis+cluster:", 1);
    on_redis("cluster of 3 redis", &server, &url)
}

fn on_redis(store: &str, server: &RedisServer, url: &str) -> Rows {
    let keeper = lockkeeper::open(url)?;
    let mut raw = server::raw(server)?;
    let sha = server::load_release(&mut raw)?;
    let keys: Vec<_> = (0..PIPELINE)
        .map(|number| format!("raw:seat:{number}"))
        .collect();
    let floor = || {
        let (mut take, mut free) = (redis::pipe(), redis::pipe());
        for key in &keys {
            take.cmd("SET").arg(key).arg("3f0c8dbe5d9b4c3c-1").arg("NX");
            take.arg("PX").arg(30_000);
            free.cmd("EVALSHA").arg(&sha).arg(1).arg(key);
            free.arg("3f0c8dbe5d9b4c3c-1");
        }
        let taken: Vec<Option<String>> = take.query(&mut raw)?;
        let freed: Vec<i64> = free.query(&mut raw)?;
        if taken.contains(&None) || freed.contains(&0) {
            return Err("a name is taken, or was lost".into());
        }
        Ok(PIPELINE)
    };
    rows(store, &keeper, floor)
}

/// The floor has one session, and [`NAMES_PER_STATEMENT`] names in a statement.
pub(crate) fn mysql(kind: MySqlKind) -> Rows {
    let server = mysql_server::start(kind)?;
    let keeper = lockkeeper::open(&server.url())?;
    let mut raw = mysql_server::raw(&server)?;
    let select = |call: &str, rest: &str| {
        let calls = (0..NAMES_PER_STATEMENT).map(|it| format!("{call}('raw:seat:{it}'{rest})"));
        format!("SELECT {}", calls.collect::<Vec<_>>().join(", "))
    };
    let (take, free) = (select("GET_LOCK", ", 0"), select("RELEASE_LOCK", ""));
    let floor = || {
        for statement in [&take, &free] {
            let row: Option<mysql::Row> = raw.query_first(statement)?;
            let row = row.ok_or("no row")?;
            let done = (0..row.len()).all(|at| row.get(at) == Some(1_i64));
            if !done {
                return Err("a name is taken, or was lost".into());
            }
        }
        Ok(NAMES_PER_STATEMENT)
    };
    rows(kind.name(), &keeper, floor)
}

/// The floor has one session, and [`NAMES_PER_STATEMENT`] names in a statement.
pub(crate) fn postgres(kind: PostgresKind) -> Rows {
    let server = postgres_server::start(kind)?;
    let keeper = lockkeeper::open(&server.url())?;
    let mut raw = postgres_server::Raw::open(&server)?;
    let each = |call: &str| format!("SELECT {call}(key) FROM unnest($1::int8[]) AS keys (key)");
    raw.prepare("lock", &each("pg_try_advisory_lock"))?;
    raw.prepare("release", &each("pg_advisory_unlock"))?;
    let keys = (0..NAMES_PER_STATEMENT).map(|it| (it + 4_242_424_242_424_242_424).to_string());
    let keys = format!("{{{}}}", keys.collect::<Vec<_>>().join(","));
    let floor = || {
        for statement in ["lock", "release"] {
            if raw.run(statement, &keys)? != NAMES_PER_STATEMENT {
                return Err("a name is taken, or was lost".into());
            }
        }
        Ok(NAMES_PER_STATEMENT)
    };
    rows(kind.name(), &keeper, floor)
}

/// The floor has one connection, and [`PIPELINE`] names in a transaction.
pub(crate) fn etcd() -> Rows {
    let server = etcd_server::start()?;
    let keeper = lockkeeper::open(&server.url())?;
    let addr = server.addr();
    let options = EtcdOptions::tcp(addr.ip().to_string(), addr.port());
    let mut raw = PlainClient::connect(&options)?;
    let mut call = |path: &str, body: &Value| -> Result<Value, Box<dyn Error>> {
        Ok(raw.call(path, body, TIMEOUT)?.ok_or("no reply")?)
    };
    call("/v3/lease/grant", &json!({ "TTL": 3_600, "ID": 42 }))?;
    let keys = (0..PIPELINE).map(|number| encoded(&format!("raw/seat:{number}")));
    let keys: Vec<_> = keys.collect();
    let txn = |result, operation: &dyn Fn(&str) -> Value| {
        let compare = |key| json!({ "key": key, "target": "CREATE", "result": result });
        let compare: Vec<_> = keys.iter().map(compare).collect();
        let success: Vec<_> = keys.iter().map(|key| operation(key)).collect();
        json!({ "compare": compare, "success": success })
    };
    let value = encoded("3f0c8dbe-5d9b-4c3c-9a5e-0a4b7c1d2e3f/4026531836");
    let put = |key: &str| json!({ "request_put": { "key": key, "value": value, "lease": 42 } });
    let delete = |key: &str| json!({ "request_delete_range": { "key": key } });
    let (take, free) = (txn("EQUAL", &put), txn("GREATER", &delete));
    let floor = || {
        for body in [&take, &free] {
            let reply = call("/v3/kv/txn", body)?;
            if reply.get("succeeded") != Some(&Value::Bool(true)) {
                return Err("a name is taken, or was lost".into());
            }
        }
        Ok(PIPELINE)
    };
    rows("etcd", &keeper, floor)
}

/// The floor has one connection, and [`PIPELINE`] names in a transaction.
pub(crate) fn sqlite() -> Rows {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("locks.db");
    let keeper = lockkeeper::open(&format!("sqlite:{}", path.display()))?;
    let raw = rusqlite::Connection::open(folder.path().join("raw.db"))?;
    raw.pragma_update(None, "journal_mode", "WAL")?;
    raw.pragma_update(None, "synchronous", "NORMAL")?;
    // By default, malloc asks the kernel for memory in every statement.
    raw.pragma_update(None, "temp_store", "MEMORY")?;
    raw.execute_batch(crate::free::RAW_TABLE)?;
    let mut insert = raw.prepare(crate::free::RAW_INSERT)?;
    let mut delete = raw.prepare(crate::free::RAW_DELETE)?;
    let names: Vec<_> = (0..PIPELINE)
        .map(|number| format!("seat:{number}"))
        .collect();
    let host = crate::free::RAW_HOST;
    let mut epoch = 1_i64 << 50;
    let floor = || {
        epoch += 1;
        raw.execute_batch("BEGIN IMMEDIATE")?;
        for name in &names {
            let values = rusqlite::params!["default", name, epoch, 4711, 815, host, epoch];
            let _: i64 = insert.query_row(values, |row| row.get(0))?;
        }
        raw.execute_batch("COMMIT; BEGIN IMMEDIATE")?;
        for name in &names {
            delete.execute(rusqlite::params!["default", name, epoch])?;
        }
        raw.execute_batch("COMMIT")?;
        Ok(PIPELINE)
    };
    rows("sqlite", &keeper, floor)
}
