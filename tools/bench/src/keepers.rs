//! Many keepers of one process on one server.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::memory::{resident, status};
use crate::row::{NONE, Row, Rows, median};
use crate::store::{Kind, Missing, start_redis};

const KEEPERS: u32 = 500;
/// Of this process and of the server, which inherits the limit: two connections a keeper, and some more.
const OPEN_FILES: u64 = 4_096;
/// By then the listeners of the last keepers have connected, which no lock waits for.
const CONNECTED: Duration = Duration::from_secs(1);

/// Raises the limit of open files if it is lower.
fn allow_open_files() -> Result<(), Box<dyn std::error::Error>> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= OPEN_FILES) {
        return Ok(());
    }
    if maximum.is_some_and(|maximum| maximum < OPEN_FILES) {
        let why = format!("this system allows fewer than {OPEN_FILES} open files (`ulimit -Hn`)");
        return Err(Missing::new(why).into());
    }
    let current = Some(OPEN_FILES);
    setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    Ok(())
}

pub(crate) fn rows(_: Kind) -> Rows {
    allow_open_files()?;
    let server = start_redis()?;
    let connections = || -> Result<f64, Box<dyn std::error::Error>> {
        let clients = server.info("clients")?;
        let connected = clients.get("connected_clients").ok_or("no count")?;
        Ok(connected.parse()?)
    };
    let url = server.url();
    let read = || (status(None, "Threads"), resident(None));
    let (before, connected) = (read(), connections()?);
    let (mut keepers, mut guards) = (Vec::new(), Vec::new());
    let mut first_locks = Vec::new();
    for number in 0..KEEPERS {
        let keeper = lockkeeper::open(&url)?;
        let began = Instant::now();
        guards.push(keeper.lock(format!("seat:{number}"))?);
        first_locks.push(began.elapsed().as_secs_f64() * 1e6);
        keepers.push(keeper);
    }
    thread::sleep(CONNECTED);
    let (after, connected) = (read(), connections()? - connected);
    let lost = guards.iter().filter(|it| it.lost_signal().is_lost());
    let lost = lost.count();
    if lost > 0 {
        return Err(format!("{lost} leases were lost").into());
    }
    let released = Instant::now();
    for guard in guards {
        guard.release()?;
    }
    let release = released.elapsed().as_secs_f64() * 1e6 / f64::from(KEEPERS);
    let each = |total: f64| total / f64::from(KEEPERS);
    let mut rows = vec![Row::plain(
        "connections a keeper, 500 keepers, redis",
        each(connected),
        2,
        "",
        // One for commands, and one for notifications.
        2.0,
    )];
    let mut add = |what, value, decimals, unit| {
        rows.push(Row::plain(what, value, decimals, unit, NONE));
    };
    if let (Some(few), Some(many)) = (before.0, after.0) {
        add("  threads a keeper", each(many - few), 2, "");
    }
    if let (Some(small), Some(large)) = (before.1, after.1) {
        let kib = each(large - small) / 1024.0;
        add("  memory a keeper (RSS)", kib, 1, " KiB");
    }
    add("  a lock by each keeper", median(first_locks), 0, " µs");
    add("  a release by each keeper", release, 0, " µs");
    Ok(rows)
}
