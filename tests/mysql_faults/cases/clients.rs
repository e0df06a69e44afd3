//! A client that stops is a process of its own: this program, started once more.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use lockkeeper::Released;
use lockkeeper_testkit::MySqlKind;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::store::{holder_of, open, settled, start, waiting_for};
use crate::rig::{PATIENCE, until};

/// Makes this program the client.
const URL: &str = "LOCKKEEPER_FAULTS_CLIENT";

pub(super) fn url_of_the_child() -> Option<String> {
    env::var(URL).ok()
}

/// Obeys lines on its standard input, and ends with it.
pub(super) fn be_the_child(url: &str) -> ExitCode {
    let keeper = lockkeeper::open(url).unwrap();
    let mut guard = None;
    for line in io::stdin().lines() {
        match (line.unwrap().as_str(), &guard) {
            ("lock", _) => {
                let granted = keeper.lock("a").unwrap();
                println!("{}", granted.token());
                guard = Some(granted);
            }
            ("look", Some(held)) => println!("{}", held.is_held()),
            ("release", Some(_)) => {
                let released = guard.take().unwrap().release();
                println!("{released:?}");
            }
            (other, _) => panic!("what is {other:?}?"),
        }
    }
    ExitCode::SUCCESS
}

struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn start(url: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    /// Returns when it stands still.
    fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        let what = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(pid), what).unwrap().unwrap();
        assert!(status.stopped());
    }

    fn cont(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn holder_stopped(kind: MySqlKind) {
    let server = start(kind);
    let mut client = Client::start(&format!("{}?ttl=2s&response_timeout=10s", server.url()));
    let token: u64 = client.ask("lock").parse().unwrap();
    let session = holder_of(&server, "a");
    assert!(session.is_some());
    client.stop();
    // The server itself ends the session, as nobody else can.
    let rival = open(&server.url(), "ttl=20s&wait=30s");
    let next = rival.lock("a").unwrap();
    assert!(next.token().get() > token);
    client.cont();
    assert_eq!(client.ask("look"), "false");
    assert_eq!(
        client.ask("release"),
        format!("{:?}", Ok::<_, ()>(Released::AlreadyLost))
    );
    assert!(next.is_held());
    assert_eq!(next.release().unwrap(), Released::Done);
    // It goes on as if nothing had been.
    let again: u64 = client.ask("lock").parse().unwrap();
    assert!(again > token);
    assert_eq!(client.ask("look"), "true");
    drop((client, rival));
    settled(&server);
}

/// It was granted while it was stopped, and its time was over before it read that.
pub(super) fn waiter_stopped_with_its_grant(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "ttl=20s&wait=30s");
    let held = keeper.lock("a").unwrap();
    let mut client = Client::start(&format!(
        "{}?ttl=2s&wait=60s&response_timeout=10s",
        server.url()
    ));
    client.say("lock");
    until("it waits", || waiting_for(&server, "a").len() == 1);
    let theirs = waiting_for(&server, "a").first().unwrap().id;
    client.stop();
    assert_eq!(held.release().unwrap(), Released::Done);
    until("it is granted", || holder_of(&server, "a") == Some(theirs));
    let next = keeper
        .try_lock_for("a", PATIENCE)
        .unwrap()
        .expect("the server ends the session that says nothing");
    client.cont();
    // It sees through its grant, and stands in line again.
    until("it waits again", || waiting_for(&server, "a").len() == 1);
    assert!(next.is_held());
    let token = next.token().get();
    assert_eq!(next.release().unwrap(), Released::Done);
    let granted: u64 = client.hear().parse().unwrap();
    assert!(granted > token, "{granted} is older than {token}");
    assert_eq!(client.ask("look"), "true");
    drop((client, keeper));
    settled(&server);
}
