//! What the cases have in common.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use lockkeeper_core::{Config, Drivers, Error, LockKeeper};
use lockkeeper_mysql::MySqlDriver;
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer};

/// Far longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A case, and its name.
pub(crate) type Case = (&'static str, fn(MySqlKind));

pub(crate) fn main<'a>(cases: impl Iterator<Item = &'a Case>) -> ExitCode {
    let mut trials = Vec::new();
    for &(name, run) in cases {
        for kind in MySqlKind::ALL {
            let trial = Trial::test(format!("{kind}::{name}"), move || {
                run(kind);
                Ok(())
            });
            if let Some(reason) = kind.ignored() {
                eprintln!("{}: ignored: {reason}", trial.name());
                trials.push(trial.with_ignored_flag(true));
            } else {
                trials.push(trial);
            }
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

pub(crate) fn start(kind: MySqlKind) -> MySqlServer {
    MySqlServer::start(kind, &MySqlOptions::new().show_locks()).unwrap()
}

pub(crate) fn try_open(url: &str) -> Result<LockKeeper, Error> {
    Drivers::new()
        .with(MySqlDriver)
        .open(&Config::from_url(url)?)
}

/// A keeper on a server, with more keys.
pub(crate) fn open(server: &MySqlServer, keys: &str) -> LockKeeper {
    try_open(&format!("{}?{keys}", server.url())).unwrap()
}

#[track_caller]
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happened() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
