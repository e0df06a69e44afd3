//! With servers that the command starts itself.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer, MySqlSession, RedisKind};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::rig::{rows, trial, until};

pub(crate) fn trials() -> Vec<Trial> {
    let cases: [(&str, fn()); 2] = [
        ("all_of_it_in_one_command", all_of_it_in_one_command),
        (
            "an_interruption_stops_the_servers",
            an_interruption_stops_the_servers,
        ),
    ];
    let trial = |(name, case): (&str, fn())| {
        let missing = MySqlKind::ALL.map(MySqlKind::ignored).into_iter();
        let missing = missing.chain([RedisKind::Redis7.ignored()]).collect();
        trial(name.to_owned(), missing, case)
    };
    cases.into_iter().map(trial).collect()
}

fn lockkeeper(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.arg("compare").args(args).env("TMPDIR", folder);
    command
}

/// Servers have their folder on their command line.
fn nothing_runs_in(folder: &Path) {
    assert_eq!(folder.read_dir().unwrap().count(), 0, "a folder stays");
    let shown = folder.to_str().unwrap();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        assert!(!line.contains(shown), "{line} runs still");
    }
}

fn all_of_it_in_one_command() {
    let rows = rows(&["--servers", "--threads=24"], MySqlServer::PASSWORD);
    assert_eq!(rows.len(), 159);
    for row in rows {
        assert_eq!(row["verdict"], row["expected"], "{row:#}");
        let wrong = row["verdict"] == "wrong";
        match row["scenario"].as_str() {
            Some("gather") if !wrong => assert_eq!(row["admitted"], 5, "{row:#}"),
            Some("seat") if !wrong => assert_eq!(row["admitted"], 1, "{row:#}"),
            _ => {}
        }
    }
}

/// While many sessions wait inside MySQL, and servers of its own run.
fn an_interruption_stops_the_servers() {
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
    let child = lockkeeper(folder.path(), &args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One of the forty holds the lock.
    until("they wait", || waiting(&server) == 39);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["complete"], false);
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
    nothing_runs_in(folder.path());
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
