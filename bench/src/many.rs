//! Many threads, each with a free name of its own.

use std::error::Error;
use std::time::{Duration, Instant};

use lockkeeper::backends::etcd::{EtcdOptions, PlainClient, encoded};
use lockkeeper::{LockKeeper, LockName};
use lockkeeper_testkit::{MySqlKind, PostgresKind};
use mysql::prelude::Queryable as _;
use serde_json::{Value, json};

use crate::threads::together;
use crate::wakes::beside_blocked;
use crate::{
    Row, Rows, etcd as etcd_server, median, mysql as mysql_server, postgres as postgres_server,
    server,
};

const THREADS: usize = 64;
const RUNS: usize = 5;
const RUN: Duration = Duration::from_millis(400);
/// How many requests of the floor travel together.
const PIPELINE: usize = 64;
const NAMES_PER_STATEMENT: usize = 32;
/// How long a raw request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What one thread did.
pub(crate) struct Tally {
    pub(crate) began: Instant,
    pub(crate) grants: u32,
    longest_wait: Duration,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            grants: 0,
            longest_wait: Duration::ZERO,
        }
    }

    /// Counts a grant that is asked for since `asked`.
    pub(crate) fn add(&mut self, asked: Instant) {
        self.grants += 1;
        self.longest_wait = self.longest_wait.max(asked.elapsed());
    }
}

/// What the threads of one run did.
pub(crate) struct Run {
    pub(crate) grants_per_second: f64,
    pub(crate) longest_wait: Duration,
}

impl Run {
    pub(crate) fn new(tallies: &[Tally], elapsed: Duration) -> Self {
        let grants: u32 = tallies.iter().map(|tally| tally.grants).sum();
        let longest_wait = tallies.iter().map(|tally| tally.longest_wait).max();
        Self {
            grants_per_second: f64::from(grants) / elapsed.as_secs_f64(),
            longest_wait: longest_wait.unwrap_or_default(),
        }
    }

    /// Returns the medians of some runs.
    pub(crate) fn median(runs: &[Self]) -> Self {
        let rates = runs.iter().map(|run| run.grants_per_second);
        let mut waits: Vec<_> = runs.iter().map(|run| run.longest_wait).collect();
        waits.sort_unstable();
        Self {
            grants_per_second: median(rates.collect()),
            longest_wait: waits.get(waits.len() / 2).copied().unwrap_or_default(),
        }
    }
}

/// Has `threads` threads lock and release a name each, which begins with `prefix`, for `span`.
pub(crate) fn run(
    keeper: &LockKeeper,
    prefix: &str,
    threads: usize,
    span: Duration,
) -> Result<Run, Box<dyn Error>> {
    let (tallies, elapsed) = together(threads, |number| {
        let name = LockName::new(format!("{prefix}:{number}"))?;
        let mut tally = Tally::new();
        while tally.began.elapsed() < span {
            let asked = Instant::now();
            let guard = keeper.lock(&name)?;
            tally.add(asked);
            guard.release()?;
        }
        Ok(tally)
    })?;
    Ok(Run::new(&tallies, elapsed))
}

/// Returns the pairs per second of `floor` while as many threads block as the keeper has callers, and all are
/// woken for each of the two requests of a pair.
fn floor_with_wakes(
    floor: &mut impl FnMut() -> Result<usize, Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    beside_blocked(THREADS, |wake_all| {
        let (began, mut pairs) = (Instant::now(), 0);
        while began.elapsed() < RUN {
            let mut round = 0;
            while round < THREADS {
                round += floor()?;
            }
            wake_all();
            wake_all();
            pairs += round;
        }
        Ok(pairs as f64 / began.elapsed().as_secs_f64())
    })
}

/// Measures runs of the keeper and of the floor alternately. `floor` makes one round of pairs, and returns
/// how many these are.
fn rows(
    store: &str,
    keeper: &LockKeeper,
    mut floor: impl FnMut() -> Result<usize, Box<dyn Error>>,
) -> Rows {
    run(keeper, "seat", THREADS, RUN)?;
    let (mut runs, mut floors, mut woken) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let (began, mut pairs) = (Instant::now(), 0);
        while began.elapsed() < RUN {
            pairs += floor()?;
        }
        floors.push(pairs as f64 / began.elapsed().as_secs_f64());
        woken.push(floor_with_wakes(&mut floor)?);
        runs.push(run(keeper, "seat", THREADS, RUN)?);
    }
    let (typical, floor, woken) = (Run::median(&runs), median(floors), median(woken));
    let ours = typical.grants_per_second;
    Ok(vec![
        Row {
            what: format!("{THREADS} threads, a name each, {store}"),
            measured: format!("{ours:.0}/s"),
            floor: format!("{floor:.0}/s"),
            value: floor / ours,
            budget: 2.0,
            unit: "x",
        },
        Row {
            what: format!("  floor with {THREADS} threads woken, {store}"),
            measured: format!("{ours:.0}/s"),
            floor: format!("{woken:.0}/s"),
            value: woken / ours,
            budget: f64::INFINITY,
            unit: "x",
        },
        Row::plain(
            format!("  longest wait, {store}"),
            typical.longest_wait.as_secs_f64() * 1e3,
            1,
            " ms",
            20.0,
        ),
    ])
}

/// The floor has one connection, and [`PIPELINE`] requests in a pipeline.
pub(crate) fn redis() -> Rows {
    let server = server::start()?;
    let keeper = lockkeeper::open(&server.url())?;
    let mut raw = server::raw(&server)?;
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
    rows("redis", &keeper, floor)
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
