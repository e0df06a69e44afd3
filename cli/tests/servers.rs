//! `lockkeeper compare --servers`, with the servers that the command starts itself: what it prints and leaves behind.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use libtest_mimic::Arguments;
use lockkeeper_testkit::{
    ConsulKind, EtcdKind, MySqlKind, MySqlOptions, MySqlServer, MySqlSession, PostgresKind,
    PostgresServer, RedisKind, ZooKeeperKind, cases, suite, until,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn main() -> ExitCode {
    let ignored = || {
        let mysql = MySqlKind::ALL.into_iter().find_map(MySqlKind::ignored);
        let postgres = || PostgresKind::Postgres15.ignored();
        let all = mysql
            .or_else(|| RedisKind::Redis7.ignored())
            .or_else(postgres);
        let all = all.or_else(|| EtcdKind::Etcd3_4.ignored());
        let all = all.or_else(|| ConsulKind::Consul1_8.ignored());
        all.or_else(|| ZooKeeperKind::ZooKeeper3_8.ignored())
    };
    let cases: &[(&str, fn())] = cases![
        redlock_has_its_expected_verdicts,
        every_started_server_is_compared,
        interruption_stops_the_servers,
    ];
    let trial = |&(name, case)| suite::named_trial(name, ignored, case);
    let trials = cases.iter().map(trial).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn lockkeeper(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.arg("compare").args(args).env("TMPDIR", folder);
    command
}

/// Asserts that no file and no server is left. Servers have their folder on their command line.
fn assert_nothing_left_in(folder: &Path) {
    assert_eq!(folder.read_dir().unwrap().count(), 0, "a folder is left");
    let shown = folder.to_str().unwrap();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        assert!(!line.contains(shown), "{line} still runs");
    }
}

/// Runs `compare` on the servers that the command starts. Returns the rows, each with its expected verdict.
fn rows(args: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = lockkeeper(folder.path(), &["--json", "--servers", "--threads=24"]);
    let output = command.args(args).output().unwrap();
    assert_nothing_left_in(folder.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for password in [MySqlServer::PASSWORD, PostgresServer::PASSWORD] {
        assert!(!report.to_string().contains(password));
    }
    let rows = report["rows"].as_array().unwrap().clone();
    for row in &rows {
        assert_eq!(row["verdict"], row["expected"], "{row:#}");
    }
    rows
}

fn find<'a>(rows: &'a [Value], scenario: &str, store: &str) -> &'a Value {
    let is_it = |row: &&Value| row["scenario"] == scenario && row["store"] == store;
    rows.iter().find(is_it).unwrap()
}

/// The five servers of Redlock are those of the quorum, and all of them count.
fn redlock_has_its_expected_verdicts() {
    let rows = rows(&["--strategy=redlock"]);
    assert_eq!(rows.len(), 7);
    let late = "the late write was let through";
    let faults = &find(&rows, "slow", "quorum")["faults"];
    assert!(faults.to_string().contains(late));
    let commands = find(&rows, "gather", "quorum")["commands_per_grant"].as_f64();
    assert!(
        commands.unwrap() >= 10.0,
        "a SET and a script on each of five"
    );
}

/// The tests of the package `compare` run all scenarios and strategies on each server. Two of the five servers of the quorum
/// are dead in `crash`.
fn every_started_server_is_compared() {
    let scenarios = ["--scenario=gather", "--scenario=slow", "--scenario=crash"];
    let rows = rows(&[&["--strategy=lockkeeper"], &scenarios[..]].concat());
    let stores = [
        "memory",
        "sqlite",
        "redis",
        "mariadb",
        "mysql",
        "postgres",
        "etcd",
        "consul",
        "zookeeper",
        "quorum",
    ];
    assert_eq!(rows.len(), scenarios.len() * stores.len());
    for store in stores {
        assert_eq!(find(&rows, "gather", store)["admitted"], 5);
    }
    let on_quorum = |scenario| find(&rows, scenario, "quorum");
    assert_eq!(on_quorum("slow")["turned_away"], 1);
    let commands = on_quorum("gather")["commands_per_grant"].as_f64();
    assert!(commands.unwrap() < 10.0, "fewer than Redlock");
}

/// The signal comes while sessions wait inside MySQL and servers of the command's own run.
fn interruption_stops_the_servers() {
    let server = MySqlServer::start(MySqlKind::MariaDb10, &MySqlOptions::new()).unwrap();
    let (folder, url) = (tempfile::tempdir().unwrap(), server.url());
    let args = [
        "--servers",
        "--json",
        "--scenario=gather",
        "--strategy=named-lock",
        "--threads=40",
        "--held=10s",
        "--url",
        &url,
    ];
    let mut child = lockkeeper(folder.path(), &args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One holds the lock, and some have had it where a busy machine was slow to connect. Before that, the command starts
    // a server of each kind.
    while waiting(&server) < 20 {
        assert_eq!(child.try_wait().unwrap(), None, "it has ended");
        thread::sleep(Duration::from_millis(50));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["complete"], false);
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
    assert_nothing_left_in(folder.path());
    until("they are gone", || server.sessions().unwrap().is_empty());
    let left = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'shop'";
    assert_eq!(server.value(left).unwrap().as_deref(), Some("0"));
}

fn waiting(server: &MySqlServer) -> usize {
    let sessions = server.sessions().unwrap().into_iter();
    let waiting = |session: &MySqlSession| {
        let query = session.statement.as_deref().unwrap_or_default();
        query.contains("GET_LOCK")
    };
    sessions.filter(waiting).count()
}
