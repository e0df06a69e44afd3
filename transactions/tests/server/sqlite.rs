//! The crate `rusqlite`, with locks in a file of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libtest_mimic::Trial;
use lockkeeper::transactions::CommitError;
use lockkeeper::{FencingToken, LockKeeper, LockName, ObservedLock, Observer};
use lockkeeper_testkit::until;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::application::{Application, Proved, sell, take_away};
use crate::cases::{self, Case};

impl Application for Connection {
    const PROVED: Proved = Proved::ByRenewal;
    const SELL: &'static str = "INSERT INTO sold DEFAULT VALUES";

    fn run_outside(&mut self, sql: &str) {
        self.execute_batch(sql).unwrap();
    }
}

/// Makes a file for data and returns it, open, and the URL of locks beside it.
fn start() -> (TempDir, String, Connection) {
    let folder = tempfile::tempdir().unwrap();
    let data = Connection::open(folder.path().join("data.db")).unwrap();
    data.execute_batch(
        "PRAGMA foreign_keys = ON;
         CREATE TABLE seat (id INTEGER PRIMARY KEY);
         CREATE TABLE sold (id INTEGER PRIMARY KEY, seat INTEGER DEFAULT NULL
             REFERENCES seat DEFERRABLE INITIALLY DEFERRED)",
    )
    .unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    (folder, url, data)
}

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |(name, case): Case<Connection>| {
        Trial::test(format!("sqlite::{name}"), move || {
            let (_folder, url, mut data) = start();
            case(&url, &mut data);
            Ok(())
        })
    };
    let own: &[Case<Connection>] = lockkeeper_testkit::cases![
        loss_while_another_name_is_proved_is_rolled_back,
        transaction_begins_as_a_writer,
        refused_commit_is_rolled_back,
        work_that_sets_a_commit_as_drop_behaviour_is_rolled_back,
    ];
    cases::all::<(), _>()
        .into_iter()
        .chain(own.iter().copied())
        .map(trial)
        .collect()
}

fn transaction_begins_as_a_writer(url: &str, data: &mut Connection) {
    use lockkeeper::transactions::CommitIn as _;

    let keeper = lockkeeper::open(url).unwrap();
    let guard = keeper.lock("seat:42").unwrap();
    let other = Connection::open(data.path().unwrap()).unwrap();
    other.busy_timeout(std::time::Duration::ZERO).unwrap();
    // Before the transaction has written anything.
    let ended = guard.commit_in(data, |_| {
        Ok::<_, ()>(other.execute_batch("BEGIN IMMEDIATE"))
    });
    ended.unwrap().unwrap_err();
}

/// An operator that takes the first lock away when the second one is renewed, and waits until the first guard
/// is lost.
struct TakesFirst {
    operator: LockKeeper,
    is_taken: AtomicBool,
    is_lost: AtomicBool,
}

impl Observer for TakesFirst {
    fn renewed(&self, lock: &ObservedLock<'_>, _: FencingToken) {
        if lock.name.as_str() == "seat:43" && !self.is_taken.swap(true, Ordering::SeqCst) {
            take_away(&self.operator, &LockName::new("seat:42").unwrap());
            until("the guard is lost", || self.is_lost.load(Ordering::SeqCst));
        }
    }

    fn lost(&self, _: &ObservedLock<'_>, _: FencingToken) {
        self.is_lost.store(true, Ordering::SeqCst);
    }
}

fn loss_while_another_name_is_proved_is_rolled_back(url: &str, data: &mut Connection) {
    let observer = Arc::new(TakesFirst {
        operator: lockkeeper::open(url).unwrap(),
        is_taken: AtomicBool::new(false),
        is_lost: AtomicBool::new(false),
    });
    let config = lockkeeper::Config::from_url(url).unwrap();
    let keeper = lockkeeper::open_config(&config.observer(observer)).unwrap();
    let guards = keeper.lock_all(["seat:42", "seat:43"]).unwrap();
    let ended = sell(&guards, data, || {});
    assert!(matches!(ended, Err(CommitError::Lock(_))), "{ended:?}");
    assert_eq!(data.sold(), 0);
}

/// So `rusqlite` would commit a transaction that is dropped.
fn work_that_sets_a_commit_as_drop_behaviour_is_rolled_back(url: &str, data: &mut Connection) {
    use lockkeeper::transactions::CommitIn as _;
    use rusqlite::DropBehavior;

    let [keeper, operator] = [(); 2].map(|()| lockkeeper::open(url).unwrap());
    let guard = keeper.lock("seat:42").unwrap();
    let ended = guard.commit_in(data, |transaction| {
        transaction.execute_batch(Connection::SELL)?;
        transaction.set_drop_behavior(DropBehavior::Commit);
        take_away(&operator, guard.name());
        Ok::<_, rusqlite::Error>(())
    });
    assert!(matches!(ended, Err(CommitError::Lock(_))), "{ended:?}");
    assert_eq!(data.sold(), 0);
}

fn refused_commit_is_rolled_back(url: &str, data: &mut Connection) {
    use lockkeeper::transactions::CommitIn as _;

    let keeper = lockkeeper::open(url).unwrap();
    let guard = keeper.lock("seat:42").unwrap();
    let ended = guard.commit_in(data, |transaction| {
        transaction.execute("INSERT INTO sold (seat) VALUES (42)", ())
    });
    assert!(matches!(ended, Err(CommitError::Database(_))), "{ended:?}");
    assert_eq!(data.sold(), 0);
    assert_eq!(sell(&guard, data, || {}).unwrap(), 7);
}
