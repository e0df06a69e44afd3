//! One free lock and its drop, for `scripts/trace`, which counts the functions of ours that they enter.

use std::error::Error;
use std::hint::black_box;
use std::thread;
use std::time::Duration;

use lockkeeper::LockKeeper;

use crate::raw::Done;
use crate::store::{Kind, Store};

/// The first argument of a process that is traced.
pub(crate) const TRACE: &str = "trace";

/// Pairs before the traced one: they connect, start threads, and load what is loaded once.
const WARM_UP: usize = 20;
/// How long the traced pair waits for what the first grant starts on another thread: the connection on which a keeper of
/// Redis listens is opened after 50 ms, and then all leases are verified.
const SETTLES: Duration = Duration::from_millis(500);

/// Runs the pair on a store of the kind with this name.
pub(crate) fn run(words: &[String], kinds: &[Kind]) -> Done {
    let wanted = words.first().map_or("redis", String::as_str);
    let kind = kinds.iter().copied().find(|kind| kind.word() == wanted);
    let store = Store::start(kind.ok_or_else(|| format!("no store is called {wanted}"))?)?;
    // The debugger stops the thread so often that it meets the usual time-outs.
    let keeper = store.open(match store.kind {
        Kind::Memory | Kind::Sqlite => "ttl=1h",
        _ => "ttl=1h&margin=10m&wait=1h&response_timeout=30s",
    })?;
    for _ in 0..WARM_UP {
        drop(keeper.lock("warm")?);
    }
    thread::sleep(SETTLES);
    // Its reply is read before the traced lock begins.
    keeper.lock("warm")?.release()?;
    traced(&keeper)
}

/// What the debugger stops at.
#[inline(never)]
fn traced(keeper: &LockKeeper) -> Result<(), Box<dyn Error>> {
    let guard = keeper.lock(black_box("traced"))?;
    drop(guard);
    Ok(())
}
