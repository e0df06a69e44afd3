//! How long after its loss a guard knows of it, and for how long two guards can call themselves held.

use std::error::Error;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{LockGuard, LockKeeper, LockName};
use lockkeeper_testkit::{EtcdCluster, EtcdKind, EtcdOptions, Proxy};

use crate::raw::Done;
use crate::row::{NONE, Row, Rows, millis};
use crate::store::{Kind, Store};

const LIMIT: Duration = Duration::from_secs(60);
/// DESIGN.md: from the moment at which the holder's host can know it.
const BUDGET_MS: f64 = 100.0;

/// Returns when the guard is lost.
fn lost_at(guard: &LockGuard) -> Instant {
    guard.lost_signal().wait(LIMIT);
    Instant::now()
}

fn ms(later: Instant, earlier: Instant) -> f64 {
    later.saturating_duration_since(earlier).as_secs_f64() * 1e3
}

fn row(what: impl Into<String>, value: f64, budget: f64) -> Row {
    Row::plain(what, value, 1, " ms", budget)
}

/// Takes a name with one keeper and waits for it with another, while `fault` takes it from the first.
/// Returns the milliseconds from the end of `fault` to the loss of the former guard, and those for which
/// both guards call themselves held.
fn take_over(
    former: &LockKeeper,
    next: &LockKeeper,
    fault: impl FnOnce() -> io::Result<()>,
) -> Done<(f64, f64)> {
    let guard = former.lock("seat")?;
    thread::scope(|scope| {
        let next = scope.spawn(|| next.lock("seat").map(|guard| (guard, Instant::now())));
        // A session may have ended long before `fault` returns.
        let lost = scope.spawn(|| lost_at(&guard));
        fault()?;
        let taken = Instant::now();
        let lost_at = lost.join().map_err(|_| "a thread panicked")?;
        let (_held, granted_at) = next.join().map_err(|_| "a thread panicked")??;
        Ok((ms(lost_at, taken), ms(lost_at, granted_at)))
    })
}

/// Returns the rows of a guard whose lock `fault` takes away.
fn rows_of(
    what: String,
    [former, next]: [LockKeeper; 2],
    fault: impl FnOnce() -> io::Result<()>,
) -> Rows {
    let (until_lost, both) = take_over(&former, &next, fault)?;
    Ok(vec![
        row(what, until_lost, BUDGET_MS),
        row("  two guards held meanwhile", both, BUDGET_MS),
    ])
}

/// Takes 30 locks away, one every 60 ms, and returns the row of the longest time to guard lost.
fn in_a_row(store: &Store, mut fault: impl FnMut(&str) -> io::Result<()>) -> Done<Row> {
    const GAP: Duration = Duration::from_millis(60);
    let keeper = store.open("")?;
    let began = Instant::now();
    let longest = thread::scope(|scope| {
        let mut losses = Vec::new();
        for number in 0..30 {
            let name = format!("seat:{number}");
            let guard = keeper.lock(&name)?;
            thread::sleep((GAP * number).saturating_sub(began.elapsed()));
            fault(&name)?;
            let taken = Instant::now();
            losses.push(scope.spawn(move || ms(lost_at(&guard), taken)));
        }
        let mut longest: f64 = 0.0;
        for loss in losses {
            longest = longest.max(loss.join().map_err(|_| "a thread panicked")?);
        }
        Ok::<_, Box<dyn Error>>(longest)
    })?;
    Ok(row(
        format!("longest of 30 losses 60 ms apart, {}", store.name()),
        longest,
        BUDGET_MS,
    ))
}

/// Takes the lock of a name away by `unlock`.
fn unlock(asker: &LockKeeper, name: &str) -> io::Result<()> {
    let admin = asker.admin().ok_or(io::ErrorKind::Unsupported)?;
    let deadline = SystemClock.now() + LIMIT;
    let name = LockName::new(name).map_err(io::Error::other)?;
    let held = admin
        .held(Some(&name), deadline)
        .map_err(io::Error::other)?;
    let mut freed = held.iter().map(|held| admin.force_release(held, deadline));
    freed.try_for_each(|freed| freed.map(drop).map_err(io::Error::other))
}

/// Takes the lock of a name away on the server: with all other keys, or by the end of the session that holds it.
fn take_away(store: &Store, name: &str) -> io::Result<()> {
    let server = store.test_server().ok_or(io::ErrorKind::Unsupported)?;
    if !server.facts().ends_with_connection {
        return server.wipe();
    }
    let holders = server.holding_sessions("default", &[name])?;
    if holders.is_empty() {
        return Err(io::Error::other(format!("no session holds {name:?}")));
    }
    let mut holders = holders.into_iter();
    holders.try_for_each(|holder| server.kill_session(holder))
}

pub(crate) fn rows(kind: Kind) -> Rows {
    let store = Store::start_to_list(kind)?;
    let what = match kind {
        Kind::Redis => "FLUSHALL",
        Kind::Etcd | Kind::Consul => "keys deleted",
        Kind::ZooKeeper => "nodes deleted",
        _ => "session killed",
    };
    let what = format!("{what} to guard lost, {}", store.name());
    let mut rows = rows_of(what, [store.open("")?, store.open("")?], || {
        take_away(&store, "seat")
    })?;
    let asker = store.open("")?;
    rows.push(in_a_row(&store, |name| match kind {
        Kind::Redis | Kind::Etcd | Kind::Consul | Kind::ZooKeeper => unlock(&asker, name),
        _ => take_away(&store, name),
    })?);
    match kind {
        // A restart forgets nothing, so there are no rows of one.
        Kind::Etcd => rows.push(election()?),
        Kind::Consul | Kind::ZooKeeper => {}
        _ => rows.extend(restart_rows(&store)?),
    }
    Ok(rows)
}

/// The rows of a server that forgets everything while the former holder can reach it, and while it cannot.
fn restart_rows(store: &Store) -> Rows {
    let server = store.test_server().ok_or("no server")?;
    let target = server.single_addr().ok_or("no address")?;
    let keepers = [store.open("wait=60s")?, store.open("wait=60s")?];
    let what = format!("empty server answers to guard lost, {}", store.name());
    let mut rows = rows_of(what, keepers, || server.restart())?;
    // The second ttl is what the former guard still has at most.
    for (ttl, budget) in [("ttl=3s", 3_000.0), ("ttl=3s&restart_grace=4s", 0.0)] {
        let proxy = Proxy::new(target)?;
        let open = |addr| lockkeeper::open(&format!("{}wait=60s&{ttl}", server.url_via(addr)));
        let (former, next) = (open(proxy.addr())?, open(target)?);
        let (_, both) = take_over(&former, &next, || {
            proxy.refuse();
            server.restart()
        })?;
        let what = format!("  two guards held, former cut off, {ttl}");
        rows.push(row(what, both, budget));
    }
    Ok(rows)
}

/// The leader by which a keeper reaches its cluster is killed, three times. The floor is the time until the next leader
/// carries out a write.
fn election() -> Done<Row> {
    let cluster = EtcdCluster::start(EtcdKind::Etcd3_4, &EtcdOptions::new())?;
    let (mut ours, mut floor) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..3 {
        let leader = cluster.leader(&[])?;
        let member = |number: usize| cluster.members().get(number).ok_or("no such member");
        let keeper = lockkeeper::open(&format!("{}/?wait=60s", cluster.url(leader)))?;
        drop(keeper.lock("before")?);
        member(leader)?.kill();
        let killed = Instant::now();
        let granted = thread::scope(|scope| {
            let granted = scope.spawn(|| keeper.lock("after").map(|_| killed.elapsed()));
            let next = cluster.leader(&[leader])?;
            while member(next)?.put("raw", "").is_err() {}
            floor += killed.elapsed();
            let granted = granted.join().map_err(|_| "a thread panicked")?;
            Ok::<_, Box<dyn Error>>(granted?)
        })?;
        ours += granted;
        member(leader)?.restart()?;
    }
    let what = "leader killed to next grant, 3 members, etcd";
    let [ours, floor] = [ours, floor].map(|sum| sum.as_secs_f64() / 3.0);
    Ok(Row::times(what, ours, floor, millis, NONE))
}
