//! Crates that lock by async functions.

use std::error::Error;
use std::time::{Duration, Instant};

use rslock::{LockError, LockManager};
use tokio::runtime::{Builder, Runtime};

use super::{Ran, Run, Tally, Work};

const TTL: Duration = Duration::from_secs(30);

/// rslock with its defaults: 3 attempts with up to 200 ms between them, as often as the name is busy. The
/// threads are tasks of a runtime with one thread, which share a manager and its connection.
pub(super) fn rslock(url: &str) -> Result<impl Fn(&Work) -> Ran + use<>, Box<dyn Error>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let manager = LockManager::new(vec![url]);
    Ok(move |work: &Work| run(&runtime, &manager, *work))
}

fn run(runtime: &Runtime, manager: &LockManager, work: Work) -> Ran {
    runtime.block_on(async {
        let began = Instant::now();
        let tasks: Vec<_> = (0..work.threads)
            .map(|number| tokio::spawn(lock(manager.clone(), work, number)))
            .collect();
        let mut tallies = Vec::new();
        for task in tasks {
            tallies.push(task.await??);
        }
        Ok(Run::new(&tallies, began.elapsed()))
    })
}

async fn lock(manager: LockManager, work: Work, number: usize) -> Result<Tally, LockError> {
    let name = format!("rslock:{}", work.name(number));
    let mut tally = Tally::new();
    while !work.is_done(&tally) {
        let asked = Instant::now();
        let guard = manager.acquire(name.as_str(), TTL).await?;
        tally.add(asked);
        if !work.held.is_zero() {
            tokio::time::sleep(work.held).await;
        }
        guard.release().await;
        if !work.between.is_zero() {
            tally.pause(work.between);
        }
    }
    Ok(tally)
}
