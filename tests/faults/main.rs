//! Real servers that crash, lose their data or their sessions, refuse or stall, and a network that loses messages.
//! After each fault: exclusion, an answer for every waiter, lost guards, and nothing left on the server.
//!
//! A trial is called `KIND::CASE`, such as `redis-7::reply_dropped`; `cargo test --all-features --test faults -- mysql-9` runs one kind.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

mod common;
#[cfg(feature = "consul")]
mod consul;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::collections::HashMap;
use std::process::ExitCode;

use libtest_mimic::Trial;
use lockkeeper_testkit::{MySqlKind, StoreKind, suite, until};

/// Mixes the trials of all kinds, so that not too many servers of one kind run at a time.
fn mixed(trials: Vec<Trial>) -> Vec<Trial> {
    let mut counts = HashMap::new();
    let number = |trial: Trial| {
        let kind = trial.name().split("::").next().unwrap_or_default();
        let count = counts.entry(kind.to_owned()).or_insert(0);
        *count += 1;
        (*count, trial)
    };
    let mut numbered: Vec<(u32, Trial)> = trials.into_iter().map(number).collect();
    numbered.sort_by_key(|(number, _)| *number);
    numbered.into_iter().map(|(_, trial)| trial).collect()
}

/// Returns the kinds that common cases run on, if their drivers were compiled in. The network decides these cases, or this
/// program: another version of a server would repeat them.
fn kinds() -> Vec<StoreKind> {
    let mut kinds = StoreKind::servers();
    kinds.extend(StoreKind::tables());
    kinds.retain(|kind| match kind {
        StoreKind::Redis(_) => cfg!(feature = "redis"),
        StoreKind::MySql(_) | StoreKind::MySqlTable(_) => cfg!(feature = "mysql"),
        StoreKind::Postgres(_) | StoreKind::PostgresTable(_) => cfg!(feature = "postgres"),
        StoreKind::Consul(_) => cfg!(feature = "consul"),
        StoreKind::ZooKeeper(_) => cfg!(feature = "zookeeper"),
        _ => cfg!(feature = "etcd"),
    });
    kinds
}

/// Returns a trial of each case on each kind.
fn on_each(kinds: &[StoreKind], cases: Vec<common::Case>) -> impl Iterator<Item = Trial> {
    let trials = move |case| kinds.iter().map(move |kind| suite::trial(*kind, case));
    cases.into_iter().flat_map(trials)
}

/// Returns the cases of one kind of server alone.
fn own() -> Vec<Trial> {
    let all: Vec<Vec<Trial>> = vec![
        #[cfg(feature = "consul")]
        consul::trials(),
        #[cfg(feature = "etcd")]
        etcd::trials(),
        #[cfg(feature = "mysql")]
        mysql::trials(),
        #[cfg(feature = "postgres")]
        postgres::trials(),
        #[cfg(feature = "redis")]
        redis::trials(),
        #[cfg(feature = "zookeeper")]
        zookeeper::trials(),
    ];
    all.into_iter().flatten().collect()
}

/// Runs this program as a client of a case, if it was started as one.
fn child() -> Option<ExitCode> {
    #[cfg(feature = "redis")]
    if let Some(exit_code) = redis::child() {
        return Some(exit_code);
    }
    None
}

fn main() -> ExitCode {
    if let Some(exit_code) = child() {
        return exit_code;
    }
    let mut kinds = kinds();
    let mut session_stores = kinds.clone();
    session_stores.retain(|it| matches!(it, StoreKind::MySql(_) | StoreKind::Postgres(_)));
    let mut trials = own();
    trials.extend(on_each(&session_stores, common::sessions::cases()));
    trials.extend(on_each(&session_stores, common::sharing::CASES.to_vec()));
    // On MariaDB alone. Six breaks of the code for the replies of MySQL were tried with them on MySQL, and none was seen.
    kinds.retain(|it| *it != StoreKind::MySql(MySqlKind::MySql9));
    trials.extend(on_each(&kinds, common::cases()));
    let conclusion = libtest_mimic::run(&suite::arguments(), mixed(trials));
    if !conclusion.has_failed() {
        until("the threads of all keepers have ended", || {
            !common::threads_run()
        });
    }
    conclusion.exit_code()
}
