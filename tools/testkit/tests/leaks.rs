//! A server leaves nothing behind: no process, no folder and no memory, however its owner ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;

use lockkeeper_testkit::suite::{self, ServerKind as _};
use lockkeeper_testkit::{Daemon, PostgresKind, StoreKind, until};

/// Makes this program the owner of a server: its value is the kind of server and what happens to the server.
const OWNER: &str = "TESTKIT_OWNER";

fn main() -> ExitCode {
    if let Ok(role) = env::var(OWNER) {
        return own(&role);
    }
    let cases: [suite::Case<StoreKind>; 2] = [
        ("dropped", dropped),
        ("owner_killed", |kind| owner_killed(kind, "running")),
    ];
    let mut trials = suite::trials(cases);
    // It has children, and a segment of memory.
    let kind = StoreKind::Postgres(PostgresKind::Postgres15);
    let cases: [suite::Case<StoreKind>; 3] = [
        ("dropped_by_a_panic", dropped_by_a_panic),
        ("owner_of_stopped_server_killed", |kind| {
            owner_killed(kind, "stopped");
        }),
        ("owner_of_killed_server_killed", |kind| {
            owner_killed(kind, "killed");
        }),
    ];
    trials.extend(cases.map(|case| suite::trial(kind, case)));
    libtest_mimic::run(&suite::arguments(), trials).exit_code()
}

/// What a server has outside of its owner.
struct Traces {
    folder: PathBuf,
    /// The ids of its System V memory segments.
    segments: Vec<String>,
}

impl Traces {
    fn of(server: &Daemon) -> Self {
        let folder = server.folder().to_owned();
        let maps = format!("/proc/{}/maps", server.pid().unwrap());
        let maps = fs::read_to_string(maps).unwrap_or_default();
        let is_shared = |line: &&str| line.contains("/dev/shm/");
        let mut shared = maps.lines().filter(is_shared);
        let other = shared.find(|line| !line.contains(folder.to_str().unwrap()));
        assert_eq!(other, None, "no folder goes with it");
        let segments = maps.lines().filter(|line| line.contains("/SYSV"));
        let ids = segments.filter_map(|line| line.split_whitespace().nth(4));
        Self {
            segments: ids.map(str::to_owned).collect(),
            folder,
        }
    }

    /// Waits until nothing of the server is left.
    fn assert_gone(&self) {
        until("its folder goes", || !self.folder.exists());
        until("its processes end", || !self.is_used());
        let all = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        let ids = all
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1));
        let left: Vec<_> = ids
            .filter(|id| self.segments.iter().any(|it| it == id))
            .collect();
        assert_eq!(left, [""; 0]);
    }

    /// Returns whether a process runs in the folder.
    fn is_used(&self) -> bool {
        let Ok(processes) = fs::read_dir("/proc") else {
            return false;
        };
        let folders = processes
            .flatten()
            .filter_map(|it| fs::read_link(it.path().join("cwd")).ok());
        let mut folders = folders.map(|folder| folder.display().to_string());
        let folder = self.folder.display().to_string();
        folders.any(|it| it.starts_with(&folder))
    }
}

fn dropped(kind: StoreKind) {
    let server = kind.start().unwrap();
    let traces = Traces::of(server.processes()[0]);
    assert!(traces.is_used());
    drop(server);
    assert!(!traces.folder.exists());
    traces.assert_gone();
}

fn dropped_by_a_panic(kind: StoreKind) {
    let (sender, receiver) = mpsc::channel();
    let panicked = thread::spawn(move || {
        let server = kind.start().unwrap();
        sender.send(Traces::of(server.processes()[0])).unwrap();
        std::panic::resume_unwind(Box::new("as a test does"));
    });
    panicked.join().unwrap_err();
    receiver.recv().unwrap().assert_gone();
}

/// Owns a server of the kind that `role` names: prints its traces, and waits to be killed.
fn own(role: &str) -> ExitCode {
    let (name, state) = role.split_once(' ').unwrap();
    let mut kinds = StoreKind::all().iter();
    let kind = kinds.find(|kind| kind.name() == name).unwrap();
    let server = kind.start().unwrap();
    let Traces { folder, segments } = Traces::of(server.processes()[0]);
    match state {
        "stopped" => server.stop().unwrap(),
        "killed" => server.kill(),
        _ => {}
    }
    println!("{} {}", folder.display(), segments.join(" "));
    let _ = std::io::stdin().read(&mut [0]);
    ExitCode::SUCCESS
}

/// Starts this program as the owner of a server, and kills it.
fn owner_killed(kind: StoreKind, state: &str) {
    let mut owner = Command::new(env::current_exe().unwrap())
        .env(OWNER, format!("{kind} {state}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(owner.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    let traces = Traces {
        folder: words.next().unwrap().into(),
        segments: words.collect(),
    };
    assert!(traces.folder.exists());
    owner.kill().unwrap();
    owner.wait().unwrap();
    traces.assert_gone();
}
