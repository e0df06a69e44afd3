//! Many threads that take two names each, on the default pool and on one with a connection for each name.

use std::error::Error;

use lockkeeper::LockKeeper;

use crate::row::{Row, Rows, medians, millis};
use crate::store::{Kind, Store};
use crate::threads::together;

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

pub(crate) fn rows(kind: Kind) -> Rows {
    let store = Store::start(kind)?;
    let (keeper, wide) = (
        store.open("wait=60s")?,
        store.open("wait=60s&pool_size=100")?,
    );
    lock_pairs(&keeper)?;
    lock_pairs(&wide)?;
    let (ours, floor) = medians(RUNS, || lock_pairs(&wide), || lock_pairs(&keeper))?;
    let what = format!(
        "{THREADS} threads x {PAIRS} pairs of names, {}",
        store.name()
    );
    Ok(vec![Row::times(what, ours, floor, millis, 2.0)])
}
