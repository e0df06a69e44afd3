//! One of three processes runs each tick of a cron schedule, and one of them leads. Threads with keepers of
//! their own stand for the processes. Run it with `scripts/examples schedule`.

use std::error::Error;
use std::ops::ControlFlow;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use cron::Schedule;

const TICKS: usize = 3;
/// How far the clock of each process is behind that of the one before.
const CLOCK_DIFFERENCE: TimeDelta = TimeDelta::milliseconds(100);
/// Longer than the clocks differ and than a process may be late, and shorter than the time between two ticks.
const AT_LEAST: Duration = Duration::from_millis(600);
/// A process that comes later than this by its own clock skips the tick: another one may have run it. It is shorter than
/// `AT_LEAST`, less the difference between the first clock and the last.
const LATEST: TimeDelta = TimeDelta::milliseconds(300);

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let schedule = Schedule::from_str("* * * * * *")?; // each second; with seconds as the first field
    let begin = Utc::now() + TimeDelta::seconds(1);
    let ticks: Vec<_> = schedule.after(&begin).take(TICKS).collect();
    let runs = [const { AtomicUsize::new(0) }; TICKS];

    thread::scope(|scope| {
        let processes = [0, 1, 2].map(|process| {
            let (url, ticks, runs) = (&url, &ticks, &runs);
            scope.spawn(move || -> Result<(), lockkeeper::Error> {
                let keeper = lockkeeper::open(url)?;
                let clock = || Utc::now() - CLOCK_DIFFERENCE * process;
                for (tick, runs) in ticks.iter().zip(runs) {
                    thread::sleep((*tick - clock()).to_std().unwrap_or_default());
                    // The time that the schedule names is the same for all processes.
                    let name = format!("report@{}", tick.format("%FT%TZ"));
                    keeper.run_tick(name, AT_LEAST, |_guard| {
                        // Under the lock, since the process can also be stopped just before the grant.
                        if clock() - *tick > LATEST {
                            return;
                        }
                        runs.fetch_add(1, Ordering::Relaxed);
                        println!("{tick}: run by process {process}");
                    })?;
                }
                Ok(())
            })
        });
        for process in processes {
            process.join().map_err(|_| "a process panicked")??;
        }
        Ok::<_, Box<dyn Error>>(())
    })?;
    for (tick, runs) in ticks.iter().zip(&runs) {
        let runs = runs.load(Ordering::Relaxed);
        assert!(runs <= 1, "{tick} was run {runs} times");
    }

    // A leader works for as long as it holds the lock, and the next one follows when it steps down.
    let keepers = [lockkeeper::open(&url)?, lockkeeper::open(&url)?];
    let lead = |keeper: &lockkeeper::LockKeeper| {
        keeper.lead("mailer", |leader| {
            let mut mails = 0;
            while leader.pause(Duration::from_millis(10)) {
                mails += 1;
                if mails == 3 {
                    return ControlFlow::Break(leader.token()); // else: until the lock is lost
                }
            }
            ControlFlow::Continue(())
        })
    };
    let terms = thread::scope(|scope| {
        let leaders = keepers
            .each_ref()
            .map(|keeper| scope.spawn(move || lead(keeper)));
        leaders.map(|leader| leader.join())
    });
    for term in terms {
        let token = term.map_err(|_| "a leader panicked")??;
        println!("a term of the mailer, with the token {token}");
    }
    Ok(())
}
