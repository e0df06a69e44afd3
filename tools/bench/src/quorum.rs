//! A quorum of three servers beside one of them: what the majority costs, which has no budget.

use std::time::{Duration, Instant};

use lockkeeper::{LockKeeper, LockName};

use crate::free::{alternately, pair, row};
use crate::raw::Done;
use crate::row::{NONE, Row, Rows, median};
use crate::store::{Kind, Store};

/// The pairs of which the releases are timed, and the commands counted.
const PAIRS: u32 = 5_000;

/// What one pair costs.
struct Cost {
    release: f64,
    commands: f64,
}

pub(crate) fn rows(kind: Kind) -> Rows {
    let servers = [
        Store::start(kind)?,
        Store::start(kind)?,
        Store::start(kind)?,
    ];
    let members = servers.iter().map(|it| format!("member={}&", it.url("")));
    let [first, ..] = &servers;
    let one = first.open("")?;
    let url = format!("quorum:?{}ttl=2s&wait=30s", members.collect::<String>());
    let quorum = lockkeeper::open(&url)?;
    let name = LockName::new("seat:42")?;
    let pairs = alternately(kind.pairs(), || pair(&one, &name), || pair(&quorum, &name))?;
    let [low, high] = [measure(&one, &name)?, measure(&quorum, &name)?];
    let micros = |seconds: f64| format!("{:.1} µs", seconds * 1e6);
    let commands = Row::plain(
        "  commands of a pair, quorum of 3 redis",
        high.commands,
        2,
        "",
        NONE,
    );
    Ok(vec![
        row("acquire + release, quorum of 3 redis", pairs, NONE),
        Row::times(
            "  release, quorum of 3 redis",
            high.release,
            low.release,
            micros,
            NONE,
        ),
        Row {
            floor: format!("{:.2}", low.commands),
            ..commands
        },
    ])
}

fn measure(keeper: &LockKeeper, name: &LockName) -> Done<Cost> {
    let sent = || keeper.usage().map(|usage| usage.commands);
    let (before, mut releases) = (sent(), Vec::new());
    for _ in 0..PAIRS {
        let guard = keeper.lock(name)?;
        let began = Instant::now();
        guard.release()?;
        releases.push(Duration::as_secs_f64(&began.elapsed()));
    }
    let commands = sent().zip(before).map_or(0, |(now, before)| now - before);
    Ok(Cost {
        release: median(releases),
        commands: commands as f64 / f64::from(PAIRS),
    })
}
