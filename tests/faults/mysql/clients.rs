//! Clients that are stopped. Each is a child process: this program, started again.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use lockkeeper::{ErrorKind, Released};
use lockkeeper_testkit::{MySqlKind, cases, until};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::Case;
use super::store::{assert_clean, holder_of, open, start, waiting_for};
use crate::common::WAIT_LIMIT;

pub(super) const CASES: &[Case] = cases![
    holder_stopped_past_ttl,
    waiter_stopped_while_granted,
    restart_grace_outlasts_a_stopped_holder,
];

/// Makes this program a client of the URL in this variable.
const URL: &str = "MYSQL_FAULTS_CHILD_URL";

pub(super) fn url_of_child() -> Option<String> {
    env::var(URL).ok()
}

/// Runs the commands on standard input until it ends.
pub(super) fn run_child(url: &str) -> ExitCode {
    let keeper = lockkeeper::open(url).unwrap();
    let mut guard = None;
    for line in io::stdin().lines() {
        match (line.unwrap().as_str(), &guard) {
            ("lock", _) => {
                let granted = keeper.lock("a").unwrap();
                println!("{}", granted.token());
                guard = Some(granted);
            }
            ("is_held", Some(held)) => println!("{}", held.is_held()),
            ("release", Some(_)) => {
                let released = guard.take().unwrap().release();
                println!("{released:?}");
            }
            (other, _) => panic!("unknown command {other:?}"),
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

    fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn receive(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.receive()
    }

    /// Returns when the process has stopped.
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

fn holder_stopped_past_ttl(kind: MySqlKind) {
    let server = start(kind);
    let mut client = Client::start(&format!("{}?ttl=6s&response_timeout=10s", server.url()));
    let token: u64 = client.ask("lock").parse().unwrap();
    let session = holder_of(&server, "a");
    assert!(session.is_some());
    client.stop();
    // The server ends the session by its time-out.
    let rival = open(&server.url(), "ttl=20s&wait=30s");
    let next = rival.lock("a").unwrap();
    assert!(next.token().get() > token);
    client.cont();
    assert_eq!(client.ask("is_held"), "false");
    assert_eq!(
        client.ask("release"),
        format!("{:?}", Ok::<_, ()>(Released::AlreadyLost))
    );
    assert!(next.is_held());
    assert_eq!(next.release().unwrap(), Released::Done);
    // The client can lock again.
    let again: u64 = client.ask("lock").parse().unwrap();
    assert!(again > token);
    assert_eq!(client.ask("is_held"), "true");
    drop((client, rival));
    assert_clean(&server);
}

/// A restart frees the name while its holder is stopped. The server grants it to another process only when
/// the holder's lease has ended by the holder's own clock.
fn restart_grace_outlasts_a_stopped_holder(kind: MySqlKind) {
    let server = start(kind);
    let mut client = Client::start(&format!("{}?ttl=3s&response_timeout=10s", server.url()));
    let token: u64 = client.ask("lock").parse().unwrap();
    client.stop();
    server.restart().unwrap();
    // Both can be opened meanwhile.
    let [never, soon] =
        ["1h", "4s"].map(|grace| open(&server.url(), &format!("restart_grace={grace}&wait=60s")));
    for wait in [Duration::ZERO, Duration::from_millis(50)] {
        // A busy machine may leave no time to ask the server.
        until("the grace is the reason", || {
            let error = never.try_lock_for("a", wait).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            format!("{error:?}").contains("`restart_grace`")
        });
    }
    let next = soon.lock("a").unwrap();
    client.cont();
    assert_eq!(client.ask("is_held"), "false");
    assert!(next.token().get() > token);
    assert!(next.is_held());
    assert_eq!(next.release().unwrap(), Released::Done);
    drop((client, never, soon));
    assert_clean(&server);
}

/// The client is stopped while it is granted the lock, and the lease expires before it reads the reply.
fn waiter_stopped_while_granted(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "ttl=20s&wait=30s");
    let held = keeper.lock("a").unwrap();
    let mut client = Client::start(&format!(
        "{}?ttl=6s&wait=60s&response_timeout=10s",
        server.url()
    ));
    client.send("lock");
    until("the waiter is queued", || {
        waiting_for(&server, "a").len() == 1
    });
    let session = waiting_for(&server, "a").first().unwrap().id;
    client.stop();
    assert_eq!(held.release().unwrap(), Released::Done);
    until("the stopped client is granted it", || {
        holder_of(&server, "a") == Some(session)
    });
    let next = keeper
        .try_lock_for("a", WAIT_LIMIT)
        .unwrap()
        .expect("the server ends the silent session");
    client.cont();
    // The client notices that the grant has expired, and waits again.
    until("the client waits again", || {
        waiting_for(&server, "a").len() == 1
    });
    assert!(next.is_held());
    let token = next.token().get();
    assert_eq!(next.release().unwrap(), Released::Done);
    let granted: u64 = client.receive().parse().unwrap();
    assert!(granted > token, "{granted} is older than {token}");
    assert_eq!(client.ask("is_held"), "true");
    drop((client, keeper));
    assert_clean(&server);
}
