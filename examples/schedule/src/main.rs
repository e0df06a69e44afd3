//! One of three processes runs each tick of a cron schedule, and one of them leads. Threads with keepers of
//! their own stand for the processes. Run it with `scripts/examples schedule`.

use std::error::Error;
use std::ops::ControlFlow;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use cron::Schedule;

const TICKS: usize = 3;
/// How far the clock of each process is behind that of the one before.
const CLOCK_DIFFERENCE: TimeDelta = TimeDelta::milliseconds(100);
/// Longer than the clocks differ and than a process may be late, and shorter than the time between two ticks.
const AT_LEAST: Duration = Duration::from_millis(600);
/// A process that comes later than this skips the tick: another one has run it.
const LATEST: TimeDelta = TimeDelta::milliseconds(400);

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let schedule = Schedule::from_str("* * * * * *")?; // each second; with seconds as the first field
    let begin = Utc::now() + TimeDelta::seconds(1);
    let ticks: Vec<_> = schedule.after(&begin).take(TICKS).collect();

    thread::scope(|scope| {
        let processes = [0, 1, 2].map(|process| {
            let (url, ticks) = (&url, &ticks);
            scope.spawn(move || -> Result<(), lockkeeper::Error> {
                let keeper = lockkeeper::open(url)?;
                for tick in ticks {
                    let until = *tick + CLOCK_DIFFERENCE * process - Utc::now();
                    thread::sleep(until.to_std().unwrap_or_default());
                    if Utc::now() - *tick > LATEST {
                        continue;
                    }
                    // The time that the schedule names is the same for all processes.
                    let name = format!("report@{}", tick.format("%FT%TZ"));
                    keeper.run_tick(name, AT_LEAST, |_guard| {
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
