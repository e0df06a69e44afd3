//! A quorum of three servers beside one of them: what the majority costs, which has no budget.

use std::error::Error;
use std::time::{Duration, Instant};

use lockkeeper::{LockKeeper, LockName};

use crate::free::{alternately, pair, row};
use crate::{Row, Rows, median, server};

/// The pairs of which the releases are timed, and the commands counted.
const PAIRS: u32 = 5_000;

/// What one pair costs.
struct Cost {
    release: f64,
    commands: f64,
}

pub(crate) fn rows() -> Rows {
    let servers = [server::start()?, server::start()?, server::start()?];
    let members = servers.iter().map(|it| format!("member={}", it.url()));
    let members: Vec<_> = members.collect();
    let [first, ..] = &servers;
    let one = lockkeeper::open(&first.url())?;
    let url = format!("quorum:?{}&ttl=2s&wait=30s", members.join("&"));
    let quorum = lockkeeper::open(&url)?;
    let name = LockName::new("seat:42")?;
    let times = alternately(100, || pair(&one, &name), || pair(&quorum, &name))?;
    let [low, high] = [measure(&one, &name)?, measure(&quorum, &name)?];
    let releases = (low.release, high.release, high.release / low.release);
    let no_budget = f64::INFINITY;
    Ok(vec![
        row("acquire + release, quorum of 3 redis", times, no_budget),
        row("  release, quorum of 3 redis", releases, no_budget),
        Row {
            floor: format!("{:.2}", low.commands),
            ..Row::plain(
                "  commands of a pair, quorum of 3 redis".to_owned(),
                high.commands,
                2,
                "",
                no_budget,
            )
        },
    ])
}

fn measure(keeper: &LockKeeper, name: &LockName) -> Result<Cost, Box<dyn Error>> {
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
