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
        every_row_has_its_expected_verdict,
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

/// The other strategies need no server that only the command starts: the tests of the package `compare` run them.
fn every_row_has_its_expected_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let strategies = ["none", "lockkeeper", "redlock"].map(|name| format!("--strategy={name}"));
    let mut command = lockkeeper(folder.path(), &["--json", "--servers", "--threads=24"]);
    command.args(strategies);
    let output = command.output().unwrap();
    assert_nothing_left_in(folder.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for password in [MySqlServer::PASSWORD, PostgresServer::PASSWORD] {
        assert!(!report.to_string().contains(password));
    }
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 180);
    for row in rows {
        assert_eq!(row["verdict"], row["expected"], "{row:#}");
        let wrong = row["verdict"] == "wrong";
        match row["scenario"].as_str() {
            Some("gather") if !wrong => assert_eq!(row["admitted"], 5, "{row:#}"),
            Some("seat") if !wrong => assert_eq!(row["admitted"], 1, "{row:#}"),
            _ => {}
        }
    }
    // The five servers of Redlock are those of the quorum, and all of them count.
    let on_quorum = |scenario: &str, strategy: &str| {
        let of = |row: &&Value| {
            let is = |field: &str, value: &str| row[field] == value;
            is("store", "quorum") && is("scenario", scenario) && is("strategy", strategy)
        };
        rows.iter().find(of).unwrap()
    };
    let late = "the late write was let through";
    assert!(
        on_quorum("slow", "redlock")["faults"]
            .to_string()
            .contains(late)
    );
    assert_eq!(on_quorum("slow", "lockkeeper")["turned_away"], 1);
    let commands = |strategy| {
        on_quorum("gather", strategy)["commands_per_grant"]
            .as_f64()
            .unwrap()
    };
    assert!(
        commands("redlock") >= 10.0,
        "a SET and a script on each of five"
    );
    assert!(commands("lockkeeper") < commands("redlock"));
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
