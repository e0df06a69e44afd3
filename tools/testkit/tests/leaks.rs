//! A server leaves nothing behind: no process, no folder and no memory, however its owner ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "that is how a test fails"
)]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;

use libtest_mimic::Trial;
use lockkeeper_testkit::suite::{self, ServerKind};
use lockkeeper_testkit::{
    Daemon, EtcdKind, EtcdOptions, EtcdServer, MySqlKind, MySqlOptions, MySqlServer, PostgresKind,
    PostgresOptions, PostgresServer, RedisKind, RedisOptions, RedisServer, until,
};

/// Makes this program the owner of a server: its value is the kind of server and what happens to the server.
const OWNER: &str = "TESTKIT_OWNER";

type Server = Box<dyn Deref<Target = Daemon>>;

trait Start: ServerKind {
    fn start(self) -> Server;
}

impl Start for EtcdKind {
    fn start(self) -> Server {
        Box::new(EtcdServer::start(self, &EtcdOptions::new()).unwrap())
    }
}

impl Start for MySqlKind {
    fn start(self) -> Server {
        Box::new(MySqlServer::start(self, &MySqlOptions::new()).unwrap())
    }
}

impl Start for PostgresKind {
    fn start(self) -> Server {
        Box::new(PostgresServer::start(self, &PostgresOptions::new()).unwrap())
    }
}

impl Start for RedisKind {
    fn start(self) -> Server {
        Box::new(RedisServer::start(self, &RedisOptions::new()).unwrap())
    }
}

fn main() -> ExitCode {
    if let Ok(role) = env::var(OWNER) {
        let owns = [
            own::<EtcdKind>,
            own::<MySqlKind>,
            own::<PostgresKind>,
            own::<RedisKind>,
        ];
        return owns.into_iter().find_map(|own| own(&role)).unwrap();
    }
    let trials = [
        trials::<EtcdKind>(),
        trials::<MySqlKind>(),
        trials::<PostgresKind>(),
        trials::<RedisKind>(),
    ];
    libtest_mimic::run(&suite::arguments(), trials.into_iter().flatten().collect()).exit_code()
}

fn trials<K: Start>() -> Vec<Trial> {
    let cases: [suite::Case<K>; 5] = [
        ("dropped", dropped),
        ("dropped_by_a_panic", dropped_by_a_panic),
        ("owner_killed", |kind| owner_killed(kind, "running")),
        ("owner_of_stopped_server_killed", |kind| {
            owner_killed(kind, "stopped");
        }),
        ("owner_of_killed_server_killed", |kind| {
            owner_killed(kind, "killed");
        }),
    ];
    suite::trials(cases)
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

fn dropped<K: Start>(kind: K) {
    let server = kind.start();
    let traces = Traces::of(&server);
    assert!(traces.is_used());
    drop(server);
    assert!(!traces.folder.exists());
    traces.assert_gone();
}

fn dropped_by_a_panic<K: Start>(kind: K) {
    let (sender, receiver) = mpsc::channel();
    let panicked = thread::spawn(move || {
        let server = kind.start();
        sender.send(Traces::of(&server)).unwrap();
        std::panic::resume_unwind(Box::new("as a test does"));
    });
    panicked.join().unwrap_err();
    receiver.recv().unwrap().assert_gone();
}

/// Owns a server of the kind that `role` names: prints its traces, and waits to be killed.
fn own<K: Start>(role: &str) -> Option<ExitCode> {
    let (name, state) = role.split_once(' ')?;
    let kind = K::all().iter().find(|kind| kind.to_string() == name)?;
    let server = kind.start();
    let Traces { folder, segments } = Traces::of(&server);
    match state {
        "stopped" => server.stop().unwrap(),
        "killed" => server.kill(),
        _ => {}
    }
    println!("{} {}", folder.display(), segments.join(" "));
    let _ = std::io::stdin().read(&mut [0]);
    Some(ExitCode::SUCCESS)
}

/// Starts this program as the owner of a server, and kills it.
fn owner_killed<K: Start>(kind: K, state: &str) {
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
