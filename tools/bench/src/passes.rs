//! One name that goes from guard to guard of a process with nothing done while it is held.

use std::error::Error;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use lockkeeper::{LockKeeper, LockName};
use lockkeeper_testkit::{MySqlKind, PostgresKind};

use crate::threads::together;
use crate::{Row, Rows, etcd, median, mysql, postgres, server};

const THREADS: usize = 100;
const PASSES: usize = 20_000;
const RUNS: usize = 7;

/// Returns the seconds of one pass of a token between two threads, by mutex and condvar: the floor.
pub(crate) fn token_pass() -> f64 {
    let (token, passed) = (Mutex::new(0), Condvar::new());
    let run = |of: usize| {
        let mut turn = token.lock().unwrap_or_else(PoisonError::into_inner);
        while *turn < PASSES {
            if *turn % 2 == of {
                *turn += 1;
                passed.notify_one();
            } else {
                turn = passed.wait(turn).unwrap_or_else(PoisonError::into_inner);
            }
        }
        passed.notify_one();
    };
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| run(0));
        run(1);
    });
    began.elapsed().as_secs_f64() / PASSES as f64
}

/// Returns the seconds of one grant where all threads want one name.
fn handover(keeper: &LockKeeper, name: &LockName) -> Result<f64, Box<dyn Error>> {
    let (_, elapsed) = together(THREADS, |_| {
        for _ in 0..PASSES / THREADS {
            keeper.lock(name)?.release()?;
        }
        Ok(())
    })?;
    Ok(elapsed.as_secs_f64() / PASSES as f64)
}

pub(crate) fn micros(seconds: f64) -> String {
    format!("{:.2} µs", seconds * 1e6)
}

fn rows(store: &str, url: &str) -> Rows {
    let separator = if url.contains('?') { '&' } else { '?' };
    let keeper = lockkeeper::open(&format!("{url}{separator}wait=60s"))?;
    let name = LockName::new("seat:42")?;
    handover(&keeper, &name)?;
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        floors.push(token_pass());
        ours.push(handover(&keeper, &name)?);
    }
    let (measured, floor) = (median(ours), median(floors));
    Ok(vec![Row {
        what: format!("{THREADS} threads, one name, nothing done, {store}"),
        measured: micros(measured),
        floor: micros(floor),
        value: measured / floor,
        budget: 1.5,
        unit: "x",
    }])
}

pub(crate) fn memory() -> Rows {
    rows("memory", "memory:")
}

pub(crate) fn sqlite() -> Rows {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("locks.db");
    rows("sqlite", &format!("sqlite:{}", path.display()))
}

pub(crate) fn redis() -> Rows {
    let server = server::start()?;
    rows("redis", &server.url())
}

pub(crate) fn on_mysql(kind: MySqlKind) -> Rows {
    let server = mysql::start(kind)?;
    rows(kind.name(), &server.url())
}

pub(crate) fn on_postgres(kind: PostgresKind) -> Rows {
    let server = postgres::start(kind)?;
    rows(kind.name(), &server.url())
}

pub(crate) fn on_etcd() -> Rows {
    let server = etcd::start()?;
    rows("etcd", &server.url())
}
