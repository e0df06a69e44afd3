//! Measures locks in a table (`locks=table`) beside the server's own locks, which belong to a session.

use lockkeeper::{LockKeeper, LockName};

use crate::free::{alternately, row};
use crate::many;
use crate::modes::cost;
use crate::pinning::Pinned;
use crate::row::{NONE, Row, Rows, medians};
use crate::store::{Kind, Store};

const THREADS: usize = 64;
const RUNS: usize = 5;

/// The rows of a free name, and of many. The floor is the lock of a session on the same server.
pub(crate) fn rows(kind: Kind) -> Rows {
    let store = Store::start(kind)?;
    let (session, table) = (store.open("")?, store.open("locks=table")?);
    let seat = LockName::new("seat:42")?;
    let pair = |keeper: &LockKeeper| keeper.lock(&seat)?.release().map(drop);
    let pinned = Pinned::to_own_cores(store.pid())?;
    let free = alternately(kind.pairs(), || Ok(pair(&session)?), || Ok(pair(&table)?))?;
    drop(pinned);
    let name = store.name();
    let mut rows = vec![row(format!("pair in a table to pair, {name}"), free, NONE)];
    rows.extend(cost(&store, &table, "table", &|| pair(&table))?);
    let rate = |keeper| Ok(many::run(keeper, "seat", THREADS, many::RUN)?.grants_per_second);
    let (ours, floor) = medians(RUNS, || rate(&session), || rate(&table))?;
    let what = format!("{THREADS} threads, a name each, in a table, {name}");
    rows.push(Row {
        // The ratio of two rates is that of the times, the other way round.
        value: floor / ours,
        ..Row::times(what, ours, floor, |it| format!("{it:.0}/s"), NONE)
    });
    Ok(rows)
}
