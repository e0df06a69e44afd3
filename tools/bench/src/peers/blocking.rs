//! Crates and plain requests with which a call to lock blocks its thread.

use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ::mysql::prelude::Queryable as _;
use lockkeeper_testkit::{MySqlServer, RedisServer};
use rlock::AcquireOptions;
use rlock::sync_lock::RLock;

use super::{Ran, Run, Tally, Work};
use crate::raw::redis::{free, load_release, take};
use crate::store::{connect_mysql, connect_redis};
use crate::threads::{Failed, together};

/// How long a thread sleeps before it asks Redis again.
pub(super) const RETRY: Duration = Duration::from_millis(10);

/// Acquires a name, calls the function, and releases the name. Each thread makes a value of this type before
/// the run, with a connection.
type Hold = Box<dyn FnMut(&str, &mut dyn FnMut()) -> Result<(), Failed> + Send>;

/// Runs the threads, each with what `open` returns.
fn run(work: &Work, mut open: impl FnMut() -> Result<Hold, Box<dyn Error>>) -> Ran {
    let opened = (0..work.threads).map(|_| open());
    let opened = Mutex::new(opened.collect::<Result<Vec<_>, _>>()?);
    let (tallies, elapsed) = together(work.threads, |thread| {
        let hold = opened.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (mut hold, name) = (hold.ok_or("no session")?, work.name(thread));
        let mut tally = Tally::new();
        while !work.is_done(&tally) {
            let asked = Instant::now();
            hold(&name, &mut || {
                tally.add(asked);
                if !work.held.is_zero() {
                    thread::sleep(work.held);
                }
            })?;
            if !work.between.is_zero() {
                tally.pause(work.between);
            }
        }
        Ok(tally)
    })?;
    Ok(Run::new(&tallies, elapsed))
}

/// This library; all threads share a keeper.
pub(super) fn keeper(url: &str) -> Result<impl Fn(&Work) -> Ran + use<>, Box<dyn Error>> {
    let keeper = lockkeeper::open(&format!("{url}wait=60s"))?;
    Ok(move |work: &Work| {
        run(work, || {
            let keeper = keeper.clone();
            Ok(Box::new(move |name, granted| {
                let guard = keeper.lock(name)?;
                granted();
                drop(guard);
                Ok(())
            }))
        })
    })
}

/// rlock with its defaults, but for the time between attempts if `retry` has one; all threads share a
/// manager.
pub(super) fn rlock(
    url: &str,
    retry: Option<Duration>,
) -> Result<impl Fn(&Work) -> Ran + use<>, Box<dyn Error>> {
    let manager = RLock::new(url)?;
    let mut options = AcquireOptions::builder();
    if let Some(retry) = retry {
        options = options.retry_interval(retry);
    }
    let options = options.build()?;
    Ok(move |work: &Work| {
        run(work, || {
            let (manager, options) = (manager.clone(), options.clone());
            Ok(Box::new(move |name, granted| {
                let mut guard = manager.acquire_mutex_with_options(name, options.clone())?;
                granted();
                guard.release()?;
                Ok(())
            }))
        })
    })
}

/// A connection for each thread, `SET NX PX` until it succeeds, and compare-and-delete.
pub(super) fn raw_redis(server: &RedisServer) -> Result<impl Fn(&Work) -> Ran, Box<dyn Error>> {
    let sha = load_release(&mut connect_redis(server)?)?;
    Ok(move |work: &Work| {
        let mut number = 0;
        run(work, || {
            let mut raw = connect_redis(server)?;
            number += 1;
            let owner = format!("3f0c8dbe5d9b4c3c-{number}");
            let sha = sha.clone();
            Ok(Box::new(move |name, granted| {
                let key = format!("raw:{name}");
                while take(&key, &owner)
                    .query::<Option<String>>(&mut raw)?
                    .is_none()
                {
                    thread::sleep(RETRY);
                }
                granted();
                match free(&sha, &key, &owner).query(&mut raw)? {
                    1_u32 => Ok(()),
                    _ => Err("the name was lost".into()),
                }
            }))
        })
    })
}

/// A session for each thread, with the prepared statements.
pub(super) fn raw_mysql(server: &MySqlServer) -> impl Fn(&Work) -> Ran {
    move |work: &Work| {
        run(work, || {
            let mut raw = connect_mysql(server)?;
            let take = raw.prep("SELECT GET_LOCK(?, 60)")?;
            let free = raw.prep("SELECT RELEASE_LOCK(?)")?;
            Ok(Box::new(move |name, granted| {
                let name = format!("raw:{name}");
                if raw.exec_first(&take, (&name,))? != Some(Some(1_i64)) {
                    return Err("the name was not granted".into());
                }
                granted();
                match raw.exec_first(&free, (&name,))? {
                    Some(Some(1_i64)) => Ok(()),
                    _ => Err("the name was lost".into()),
                }
            }))
        })
    }
}
