//! Many threads that lock one name, each for a millisecond.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::LockKeeper;
use lockkeeper_testkit::{MySqlKind, PostgresKind};

use crate::pinning::Pinned;
use crate::process::{Process, Role};
use crate::threads::together;
use crate::{Row, Rows, etcd, mysql, postgres, server};

pub(crate) const HELD: Duration = Duration::from_millis(1);
const RUNS: usize = 5;
/// Long enough for a waiter to be queued.
const PAUSE: Duration = Duration::from_millis(3);

/// Returns how long a sleep of a millisecond takes on an idle processor: the floor.
pub(crate) fn measured_sleep() -> f64 {
    let began = Instant::now();
    for _ in 0..500 {
        thread::sleep(HELD);
    }
    began.elapsed().as_secs_f64() / 500.0
}

/// Has `threads` threads lock the name `grants` times together, and returns the longest wait.
fn lock_in_threads(
    keeper: &LockKeeper,
    threads: usize,
    grants: usize,
) -> Result<Duration, Box<dyn Error>> {
    let (longest, _) = together(threads, |_| {
        let mut longest = Duration::ZERO;
        for _ in 0..grants / threads {
            let began = Instant::now();
            let guard = keeper.lock("seat:42")?;
            longest = longest.max(began.elapsed());
            thread::sleep(HELD);
            guard.release()?;
        }
        Ok(longest)
    })?;
    Ok(longest.into_iter().max().unwrap_or_default())
}

pub(crate) fn times(what: String, seconds: f64, floor: f64, budget: f64) -> Row {
    Row {
        what,
        measured: format!("{:.0} ms", seconds * 1e3),
        floor: format!("{:.0} ms", floor * 1e3),
        value: seconds / floor,
        budget,
        unit: "x",
    }
}

pub(crate) fn threads() -> Rows {
    let folder = tempfile::tempdir()?;
    let sqlite = format!(
        "sqlite:{}?wait=60s",
        folder.path().join("locks.db").display()
    );
    let mut rows = Vec::new();
    for (store, url) in [("memory", "memory:?wait=60s"), ("sqlite", &sqlite)] {
        rows.extend(threads_on(url, store, "statements", &own_count)?);
    }
    Ok(rows)
}

pub(crate) fn threads_redis() -> Rows {
    let server = server::start()?;
    let url = format!("{}?wait=60s", server.url());
    threads_on(&url, "redis", "commands", &|_| {
        Ok(Some(server::sent(&server)?))
    })
}

pub(crate) fn threads_mysql(kind: MySqlKind) -> Rows {
    let server = mysql::start(kind)?;
    let url = format!("{}?wait=60s", server.url());
    let questions = mysql::Questions::of(&server)?;
    threads_on(&url, kind.name(), "statements", &|_| {
        Ok(Some(questions.sent()?))
    })
}

pub(crate) fn threads_postgres(kind: PostgresKind) -> Rows {
    let server = postgres::start(kind)?;
    let url = format!("{}?wait=60s", server.url());
    threads_on(&url, kind.name(), "statements", &own_count)
}

pub(crate) fn threads_etcd() -> Rows {
    let server = etcd::start()?;
    let url = format!("{}?wait=60s", server.url());
    threads_on(&url, "etcd", "requests", &own_count)
}

/// Counts what the keeper has sent, for stores that do not count, or only with a delay.
pub(crate) fn own_count(keeper: &LockKeeper) -> Result<Option<u64>, Box<dyn Error>> {
    Ok(keeper.usage().map(|usage| usage.commands))
}

/// Returns how many commands the store was sent so far, if it counts them.
pub(crate) type Count<'a> = &'a dyn Fn(&LockKeeper) -> Result<Option<u64>, Box<dyn Error>>;

fn threads_on(url: &str, store: &str, called: &str, count: Count<'_>) -> Rows {
    let keeper = lockkeeper::open(url)?;
    lock_in_threads(&keeper, 100, 100)?;
    let before = count(&keeper)?;
    // The median of a few runs, since a shared machine stalls for a second now and then.
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let floor = measured_sleep() * 1e3;
        let began = Instant::now();
        lock_in_threads(&keeper, 100, 1_000)?;
        let seconds = began.elapsed().as_secs_f64();
        let floor = f64::midpoint(floor, measured_sleep() * 1e3);
        runs.push((seconds, floor));
    }
    let after = count(&keeper)?;
    runs.sort_by(|(a, of_a), (b, of_b)| (a / of_a).total_cmp(&(b / of_b)));
    let (seconds, floor) = runs.get(RUNS / 2).copied().ok_or("no run")?;
    let mut rows = vec![times(
        format!("100 threads x 10, 1 ms held, {store}"),
        seconds,
        floor,
        1.03,
    )];
    if let Some((before, after)) = before.zip(after) {
        let commands = (after - before) as f64 / (1e3 * RUNS as f64);
        let what = format!("  {called} per grant, {store}");
        rows.push(Row::plain(what, commands, 3, "", 0.1));
    }
    Ok(rows)
}

pub(crate) fn processes() -> Rows {
    let folder = tempfile::tempdir()?;
    let url = format!(
        "sqlite:{}?wait=60s",
        folder.path().join("locks.db").display()
    );
    let to_another = |middle, _| {
        let what = "release here to grant in another process, sqlite".to_owned();
        Row::plain(what, middle, 3, " ms", 2.0)
    };
    processes_on(&url, "sqlite", None, &mut || Ok(()), to_another)
}

pub(crate) fn processes_redis() -> Rows {
    let server = server::start()?;
    let url = format!("{}?wait=60s", server.url());
    let mut raw = server::raw(&server)?;
    let mut round_trip = || Ok(redis::cmd("PING").exec(&mut raw)?);
    let way = by_round_trips("redis");
    processes_on(&url, "redis", server.pid(), &mut round_trip, way)
}

pub(crate) fn processes_mysql(kind: MySqlKind) -> Rows {
    let server = mysql::start(kind)?;
    let url = format!("{}?wait=60s", server.url());
    let mut raw = mysql::raw(&server)?;
    let mut round_trip = || Ok(raw.ping()?);
    let store = kind.name();
    let way = by_round_trips(store);
    processes_on(&url, store, server.pid(), &mut round_trip, way)
}

pub(crate) fn processes_postgres(kind: PostgresKind) -> Rows {
    let server = postgres::start(kind)?;
    let url = format!("{}?wait=60s", server.url());
    let mut raw = postgres::Raw::open(&server)?;
    raw.prepare("ping", "SELECT $1::bool")?;
    let mut round_trip = || raw.run("ping", "true").map(drop);
    let store = kind.name();
    let way = by_round_trips(store);
    processes_on(&url, store, server.pid(), &mut round_trip, way)
}

pub(crate) fn processes_etcd() -> Rows {
    let server = etcd::start()?;
    let url = format!("{}?wait=60s", server.url());
    let mut raw = etcd::Raw::connect(&server)?;
    // A write, as the release is one.
    let put = etcd::Raw::request("/v3/kv/put", r#"{"key":"cmF3","value":"cmF3"}"#);
    let mut round_trip = || raw.send(&put).map(drop);
    let way = by_round_trips("etcd");
    processes_on(&url, "etcd", server.pid(), &mut round_trip, way)
}

/// Measures a hand-over between processes on a store where each step is a round trip.
fn by_round_trips(store: &str) -> impl Fn(f64, f64) -> Row {
    move |middle, floor| Row {
        what: format!("release here to grant in another process, {store}"),
        measured: format!("{middle:.3} ms"),
        floor: format!("{floor:.3} ms"),
        value: middle / floor,
        budget: 2.5,
        unit: "x",
    }
}

/// How the floor of a hand-over between processes is measured.
type RoundTrip<'a> = &'a mut dyn FnMut() -> Result<(), Box<dyn Error>>;

fn processes_on(
    url: &str,
    store: &str,
    server: Option<u32>,
    round_trip: RoundTrip<'_>,
    to_another: impl Fn(f64, f64) -> Row,
) -> Rows {
    let mut all = Process::start_all(4, Role::Threads, url)?;
    let floor = measured_sleep() * 1e3;
    let began = Instant::now();
    for process in &mut all {
        process.go()?;
    }
    let mut longest: f64 = 0.0;
    for process in &mut all {
        longest = longest.max(process.line()?.parse()?);
    }
    let seconds = began.elapsed().as_secs_f64();
    let floor = f64::midpoint(floor, measured_sleep() * 1e3);
    drop(all);
    let (middle, round) = handovers(url, server, round_trip)?;
    Ok(vec![
        times(
            format!("4 processes x 25 threads, 1 ms held, {store}"),
            seconds,
            floor,
            1.05,
        ),
        Row::plain("  longest wait".to_owned(), longest, 0, " ms", 300.0),
        to_another(middle, round),
    ])
}

/// Measures the time from just before a release here to the grant in the other process, by the clock that
/// both share, and a round trip alternately with it, after the same pause. Both are in milliseconds.
fn handovers(
    url: &str,
    server: Option<u32>,
    round_trip: RoundTrip<'_>,
) -> Result<(f64, f64), Box<dyn Error>> {
    use lockkeeper::clock::{Clock as _, SystemClock};

    let _pinned = Pinned::to_own_cores(server)?;
    let keeper = lockkeeper::open(url)?;
    let mut other = Process::start(Role::Handovers, url)?;
    let (mut all, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let guard = keeper.lock("seat:42")?;
        other.go()?;
        // The other process reports just before it acquires; give it the time to be queued.
        other.line()?;
        thread::sleep(PAUSE);
        let released = SystemClock.now().as_nanos();
        guard.release()?;
        let granted: u64 = other.line()?.parse()?;
        all.push(granted.saturating_sub(released) as f64 / 1e6);
        thread::sleep(PAUSE);
        let began = Instant::now();
        round_trip()?;
        floors.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok((crate::median(all), crate::median(floors)))
}

/// Has the threads of one of several processes lock the name, and returns the longest wait in milliseconds.
pub(crate) fn lock_in_child(keeper: &LockKeeper) -> Result<String, Box<dyn Error>> {
    let longest = lock_in_threads(keeper, 25, 250)?;
    Ok((longest.as_secs_f64() * 1e3).to_string())
}

/// Locks the name that the parent holds, and returns the time of the grant in nanoseconds.
pub(crate) fn take_over_in_child(keeper: &LockKeeper) -> Result<String, Box<dyn Error>> {
    use lockkeeper::clock::{Clock as _, SystemClock};

    println!("waiting");
    let guard = keeper.lock("seat:42")?;
    let granted = SystemClock.now().as_nanos();
    guard.release()?;
    Ok(granted.to_string())
}
