//! Many threads that take two names each, on the default pool and on one with a connection for each name.

use std::error::Error;

use lockkeeper::LockKeeper;
use lockkeeper_testkit::{MySqlKind, PostgresKind, PostgresOptions};

use crate::threads::together;
use crate::{Row, Rows, mysql, postgres};

const RUNS: usize = 5;
const THREADS: usize = 40;
const PAIRS: usize = 10;
const NAMES: usize = 20;

/// Returns the seconds in which the threads take ten pairs of names each, in sorted order.
fn lock_pairs(keeper: &LockKeeper) -> Result<f64, Box<dyn Error>> {
    let lock_pair = |number: usize| {
        // Any two names; the factors are primes.
        let first = number * 7_919 % NAMES;
        let second = (first + 1 + number * 104_729 % (NAMES - 1)) % NAMES;
        let lock = |number| keeper.lock(format!("account:{number:02}"));
        let held = (lock(first.min(second))?, lock(first.max(second))?);
        held.1.release()?;
        held.0.release()?;
        Ok::<_, lockkeeper::Error>(())
    };
    let (_, elapsed) = together(THREADS, |thread| {
        Ok((0..PAIRS).try_for_each(|pair| lock_pair(thread * PAIRS + pair))?)
    })?;
    Ok(elapsed.as_secs_f64())
}

pub(crate) fn rows_mysql(kind: MySqlKind) -> Rows {
    let server = mysql::start(kind)?;
    rows_on(&server.url(), kind.name())
}

pub(crate) fn rows_postgres(kind: PostgresKind) -> Rows {
    // The wide pool comes near the 100 connections of the default.
    let options = PostgresOptions::new().config("max_connections", "200");
    let server = postgres::start_with(kind, options)?;
    rows_on(&server.url(), kind.name())
}

fn rows_on(url: &str, store: &str) -> Rows {
    let open = |keys: &str| lockkeeper::open(&format!("{url}?wait=60s{keys}"));
    let (keeper, wide) = (open("")?, open("&pool_size=100")?);
    lock_pairs(&keeper)?;
    lock_pairs(&wide)?;
    let (mut all, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        all.push(lock_pairs(&keeper)? * 1e3);
        floors.push(lock_pairs(&wide)? * 1e3);
    }
    let (measured, floor) = (crate::median(all), crate::median(floors));
    Ok(vec![Row {
        what: format!("40 threads x 10 pairs of names, {store}"),
        measured: format!("{measured:.0} ms"),
        floor: format!("{floor:.0} ms"),
        value: measured / floor,
        budget: 2.0,
        unit: "x",
    }])
}
