//! `lockkeeper compare` on MySQL and MariaDB, and with servers that it starts itself.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
mod common;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    #[cfg(unix)]
    let trials = on_servers::trials();
    #[cfg(not(unix))]
    let trials = Vec::new();
    libtest_mimic::run(&args, trials).exit_code()
}

#[cfg(unix)]
mod on_servers {
    use std::fs;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use libtest_mimic::{Completion, Failed, Trial};
    use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer, MySqlSession, RedisKind};
    use rustix::process::{Pid, Signal, kill_process};
    use serde_json::Value;

    use crate::common::{compare, of, rows};

    pub(super) fn trials() -> Vec<Trial> {
        let mut trials = Vec::new();
        for kind in MySqlKind::ALL {
            let run = move || ran(&[kind.ignored()], || who_oversells_and_who_starves(kind));
            let name = format!("who_oversells_and_who_starves::{kind}");
            trials.push(Trial::ignorable_test(name, run));
        }
        let cases: [(_, fn()); 2] = [
            ("all_of_it_in_one_command", all_of_it_in_one_command),
            (
                "an_interruption_stops_the_servers",
                an_interruption_stops_the_servers,
            ),
        ];
        for (name, case) in cases {
            let needed = || MySqlKind::ALL.map(MySqlKind::ignored).into_iter();
            let run = move || {
                let needed: Vec<_> = needed().chain([RedisKind::Redis7.ignored()]).collect();
                ran(&needed, case)
            };
            trials.push(Trial::ignorable_test(name, run));
        }
        trials
    }

    fn ran(missing: &[Option<String>], case: impl FnOnce()) -> Result<Completion, Failed> {
        if let Some(why) = missing.iter().flatten().next() {
            return Ok(Completion::ignored_with(why));
        }
        case();
        Ok(Completion::Completed)
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

    fn who_oversells_and_who_starves(kind: MySqlKind) {
        let server = MySqlServer::start(kind, &MySqlOptions::new()).unwrap();
        let url = server.url();
        let gather = rows(&["--scenario=gather", "--url", &url], MySqlServer::PASSWORD);
        assert_eq!(gather.len(), 5);
        for row in &gather {
            assert_eq!(row["verdict"], row["expected"], "{row:#}");
            let is_right = row["verdict"] == "right";
            assert!(!is_right || row["admitted"] == 5, "{row:#}");
        }
        let (dry, ours) = (
            of(&gather, "named-lock-shared-pool"),
            of(&gather, "lockkeeper"),
        );
        assert!(of(&gather, "named-lock")["connections"].as_u64() > Some(20));
        assert_eq!(dry["connections"], 10, "{dry:#}");
        assert!(dry["faults"].to_string().contains("requests failed"));
        assert_eq!(ours["connections"], 1, "{ours:#}");
        assert!(ours["commands_per_grant"].as_f64() < Some(0.5), "{ours:#}");

        let seat = rows(&["--scenario=seat", "--url", &url], MySqlServer::PASSWORD);
        assert_eq!(seat.len(), 6);
        for row in &seat {
            assert_eq!(row["verdict"], row["expected"], "{row:#}");
            let is_right = row["verdict"] == "right";
            assert_eq!(row["admitted"] == 1, is_right, "{row:#}");
        }

        let without = url.trim_end_matches(MySqlServer::DATABASE);
        let output = compare(&["--url", without], MySqlServer::PASSWORD);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("names no database"));
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

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "not seen: {what}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}
