//! Leaders and ticks of several keepers on one store.
//!
//! The program has a main of its own: a server that is not on this machine shows as ignored, with the reason.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use lockkeeper::LockKeeper;
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer, suite, with_timeouts};

const KEEPERS: usize = 4;
/// Longer than a busy machine takes for a reply.
const REPLY_LIMIT: Duration = Duration::from_secs(30);

type Keepers = [LockKeeper; KEEPERS];
type Check = fn(&Keepers);

fn open(url: &str) -> Keepers {
    [(); KEEPERS].map(|()| lockkeeper::open(url).unwrap())
}

fn on_memory(check: Check) {
    check(&open("memory:schedules"));
}

fn on_sqlite(check: Check) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    check(&open(&format!("sqlite:{}", path.display())));
}

fn on_redis(check: Check) {
    let server = RedisServer::start(RedisKind::Redis7, &RedisOptions::new()).unwrap();
    check(&open(&with_timeouts(&server.url(), REPLY_LIMIT)));
}

fn main() -> ExitCode {
    type Store = (&'static str, fn(Check), Option<String>);
    let stores: [Store; 3] = [
        ("memory", on_memory, None),
        ("sqlite", on_sqlite, None),
        ("redis", on_redis, RedisKind::Redis7.ignored()),
    ];
    let cases: [(&str, Check); 2] = [
        (
            "one_keeper_leads_at_a_time_and_another_one_follows",
            leaders,
        ),
        ("tick_is_run_by_one_keeper", ticks),
    ];
    let mut trials = Vec::new();
    for (store, on_store, ignored) in stores {
        for (case, check) in cases {
            let (name, ignored) = (format!("{store}::{case}"), ignored.clone());
            trials.push(suite::named_trial(
                name,
                || ignored,
                move || on_store(check),
            ));
        }
    }
    libtest_mimic::run(&suite::arguments(), trials).exit_code()
}

fn leaders(keepers: &Keepers) {
    let (leading, terms) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for keeper in keepers {
            let (leading, terms) = (&leading, &terms);
            scope.spawn(move || {
                let ended = keeper.lead("a", |leader| {
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0);
                    assert!(leader.pause(Duration::from_millis(5)));
                    leading.fetch_sub(1, Ordering::SeqCst);
                    match terms.fetch_add(1, Ordering::SeqCst) {
                        // The first terms end, and their keepers campaign again.
                        0 | 1 => ControlFlow::Continue(()),
                        _ => ControlFlow::Break(()),
                    }
                });
                ended.unwrap();
            });
        }
    });
    assert_eq!(terms.into_inner() as usize, KEEPERS + 2);
}

fn ticks(keepers: &Keepers) {
    let (begin, (sender, asked)) = (Barrier::new(KEEPERS), mpsc::channel());
    thread::scope(|scope| {
        for keeper in keepers {
            let (begin, sender) = (&begin, sender.clone());
            scope.spawn(move || {
                begin.wait();
                // Longer than the test: `close` ends it.
                let at_least = Duration::from_secs(3_600);
                let work = |_: &_| sender.send("begins").unwrap();
                let ran = keeper.run_tick("report@1", at_least, work).unwrap();
                let what = if ran.is_some() { "ended" } else { "taken" };
                sender.send(what).unwrap();
            });
        }
        let mut answers = [(); KEEPERS].map(|()| asked.recv().unwrap());
        answers.sort_unstable();
        assert_eq!(answers, ["begins", "taken", "taken", "taken"]);
        assert!(asked.try_recv().is_err(), "the tick is held");
        for keeper in keepers {
            keeper.close();
        }
        assert_eq!(asked.recv().unwrap(), "ended");
    });
}
