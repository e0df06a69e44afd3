//! One name that goes from guard to guard of a process with nothing done while it is held.

use std::error::Error;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use lockkeeper::{LockKeeper, LockName};

use crate::row::{Row, Rows, medians, micros};
use crate::store::{Kind, Store};
use crate::threads::together;

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

pub(crate) fn rows(kind: Kind) -> Rows {
    let store = Store::start(kind)?;
    let keeper = store.open("wait=60s")?;
    let name = LockName::new("seat:42")?;
    handover(&keeper, &name)?;
    let (ours, floor) = medians(RUNS, || Ok(token_pass()), || handover(&keeper, &name))?;
    let what = format!(
        "{THREADS} threads, one name, nothing done, {}",
        store.name()
    );
    Ok(vec![Row::times(what, ours, floor, micros, 1.5)])
}
