//! Many different names that are used once: nothing may be left of them. They are used by a new process,
//! which has no free memory of earlier work that would hide what is left.

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{LockKeeper, LockName};

use crate::memory::resident;
use crate::process::{Process, Role};
use crate::row::{NONE, Row, Rows};
use crate::threads::together;

const THREADS: usize = 64;
const NAMES: u32 = 1_000_000;
/// A slow store uses as many names as it can in this time; the row says how many.
const SPAN: Duration = Duration::from_secs(40);
/// Fills buffers, caches and a log, which are not given back. The largest buffer is the read buffer of a connection
/// to MySQL. The mysql crate writes to all of its 4 MiB before it starts again at the beginning.
const WARM_UP: u32 = 200_000;
/// A pointer for each name would be over.
const BYTES_A_NAME: f64 = 4.0;

#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Bytes,
    /// Of these none may be left.
    Entries,
}

/// What a store, or a process, has at a time.
pub(crate) struct Left {
    pub(crate) what: &'static str,
    pub(crate) amount: f64,
    pub(crate) unit: Unit,
}

/// Locks and releases `names` different names once in all threads together, for `SPAN` at most. Returns how
/// many were used, and in how many seconds.
fn use_once(keeper: &LockKeeper, prefix: &str, names: u32) -> Result<(u32, f64), Box<dyn Error>> {
    let next = AtomicU32::new(0);
    let end = Instant::now() + SPAN;
    let (used, elapsed) = together(THREADS, |_| {
        let mut used = 0;
        while Instant::now() < end {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= names {
                break;
            }
            let name = LockName::new(format!("{prefix}:{number}"))?;
            keeper.lock(&name)?.release()?;
            used += 1;
        }
        Ok(used)
    })?;
    Ok((used.iter().sum(), elapsed.as_secs_f64()))
}

/// Uses as many names as `line` says. Returns how many were used, the seconds that took, and this process'
/// resident memory afterwards in bytes, if the system shows it.
pub(crate) fn use_in_child(keeper: &LockKeeper, line: &str) -> Result<String, Box<dyn Error>> {
    let (used, seconds) = use_once(keeper, line, line.parse()?)?;
    let memory = resident(None).map(|bytes| bytes.to_string());
    Ok(format!("{used} {seconds} {}", memory.unwrap_or_default()))
}

/// Makes `child` use names, and returns how many were used, in how many seconds, and its memory.
fn send(child: &mut Process, names: u32) -> Result<(f64, f64, Option<f64>), Box<dyn Error>> {
    child.send(&names.to_string())?;
    let line = child.line()?;
    let mut numbers = line.split(' ').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    let (used, seconds) = next().zip(next()).ok_or("the child failed")?;
    Ok((used, seconds, next()))
}

/// Uses the names, and measures the process and the store before and after. The floor is what was there
/// before.
pub(crate) fn rows(
    url: &str,
    store: &str,
    measure: &dyn Fn() -> Result<Vec<Left>, Box<dyn Error>>,
) -> Rows {
    let mut child = Process::start(Role::Once, url)?;
    let mut run = |names| -> Result<_, Box<dyn Error>> {
        let (used, seconds, memory) = send(&mut child, names)?;
        let mut left = measure()?;
        left.extend(memory.map(|amount| Left {
            what: "memory of the process (RSS)",
            amount,
            unit: Unit::Bytes,
        }));
        Ok((used, seconds, left))
    };
    let (_, _, before) = run(WARM_UP)?;
    let (used, seconds, after) = run(NAMES)?;
    let mut rows = vec![Row::plain(
        format!("{used} names used once, {THREADS} threads, {store}"),
        used / seconds,
        0,
        "/s",
        NONE,
    )];
    for (before, after) in before.iter().zip(&after) {
        rows.push(row(before.amount, after, used));
    }
    Ok(rows)
}

fn row(before: f64, after: &Left, used: f64) -> Row {
    let grown = (after.amount - before).max(0.0);
    match after.unit {
        Unit::Bytes => Row {
            what: format!("  {}, growth a name", after.what),
            measured: format!("{:.0} KiB", after.amount / 1024.0),
            floor: format!("{:.0} KiB", before / 1024.0),
            value: grown / used,
            budget: BYTES_A_NAME,
            unit: " B",
        },
        Unit::Entries => Row {
            what: format!("  {}", after.what),
            measured: after.amount.to_string(),
            floor: before.to_string(),
            value: grown,
            budget: 0.0,
            unit: "",
        },
    }
}
