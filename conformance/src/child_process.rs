//! The handle of a child process of the suite: sends commands and reads replies, line by line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{Mode, Ticket};

use crate::child::{self, ChildSpec};
use crate::history::History;
use crate::mode_text;
use crate::rig::Skip;

/// How long a child process may take to start, with the server that it may start for itself. If that server does not
/// start, the child process ends by itself.
const START: Duration = Duration::from_secs(300);

/// A running child process. Dropping the handle kills the process, even a stopped one; the process
/// also ends by itself when the suite's process ends.
pub(crate) struct ChildProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    timeout: Duration,
}

impl ChildProcess {
    /// Starts this program again in the role that `spec` describes.
    pub(crate) fn start(spec: &ChildSpec, timeout: Duration) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        child::clear_environment(&mut command);
        spec.set_environment(&mut command);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.expect("this program can be started again");
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("stdout is piped");
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut process = Self {
            child,
            stdin,
            lines,
            timeout: START,
        };
        process.expect("ready");
        process.timeout = timeout;
        process
    }

    /// Sends a command.
    pub(crate) fn send(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{command}").expect("the child process reads its commands");
        stdin.flush().expect("the child process reads its commands");
    }

    /// Returns the next line of the child process's output.
    pub(crate) fn next_line(&self) -> String {
        match self.lines.recv_timeout(self.timeout) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the child process does not reply"),
            Err(RecvTimeoutError::Disconnected) => panic!("the child process has ended"),
        }
    }

    /// Reads the next line, which must begin with `word`, and returns the rest of the line.
    pub(crate) fn expect(&self, word: &str) -> String {
        let line = self.next_line();
        let rest = line.strip_prefix(word);
        let rest =
            rest.unwrap_or_else(|| panic!("the child process replied {line:?}; expected {word:?}"));
        rest.trim().to_owned()
    }

    /// Makes the child process acquire a free name exclusively, and returns the token.
    pub(crate) fn acquire(&mut self, name: &str) -> u64 {
        self.acquire_in(name, Mode::Exclusive)
    }

    /// Makes the child process acquire a name that is free for this mode, and returns the token.
    pub(crate) fn acquire_in(&mut self, name: &str, mode: Mode) -> u64 {
        self.send_acquire(name, mode);
        self.expect_token()
    }

    /// Returns the token of the name that the child process acquires. On a busy machine a short lease may end before it is
    /// of use, and the child waits for the end of its own then.
    pub(crate) fn expect_token(&self) -> u64 {
        let mut line = self.next_line();
        while line == "contended" {
            line = self.next_line();
        }
        let token = line.strip_prefix("held ").and_then(|it| it.parse().ok());
        token.unwrap_or_else(|| panic!("the child process replied {line:?}; expected a token"))
    }

    /// Makes the child process wait for a busy name. Returns when the wait has begun.
    pub(crate) fn wait_for(&mut self, name: &str) {
        self.wait_for_in(name, Mode::Exclusive);
    }

    /// Makes the child process wait for a name that is busy for this mode. Returns when the wait has begun.
    pub(crate) fn wait_for_in(&mut self, name: &str, mode: Mode) {
        self.send_acquire(name, mode);
        self.expect("contended");
    }

    fn send_acquire(&mut self, name: &str, mode: Mode) {
        self.send(&format!("acquire {} {name}", mode_text::text(mode)));
    }

    /// Makes each of `threads` threads of the child process hold a name `rounds` times, with these modes in
    /// turn, and append that to a history. Returns at once; the reply is `ended`.
    pub(crate) fn hold(
        &mut self,
        name: &str,
        modes: &[Mode],
        (threads, rounds): (usize, usize),
        history: &History,
    ) {
        let modes: Vec<_> = modes.iter().copied().map(mode_text::text).collect();
        let (path, modes) = (history.path().display(), modes.join(" "));
        self.send(&format!("hold {name} {threads} {rounds} {path} {modes}"));
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn release(&mut self) {
        self.send("release");
        self.expect("Done");
    }

    /// Makes the child process detach the lock that it holds.
    pub(crate) fn detach(&mut self) -> Ticket {
        self.send("detach");
        self.expect("ticket").parse().expect("a ticket is sent")
    }

    /// Makes the child process go on with the lock of a ticket.
    pub(crate) fn resume_ticket(&mut self, ticket: &Ticket) {
        self.send(&format!("resume {ticket}"));
        self.expect_token();
    }

    /// Lets the child process drop what it has, and waits for its end.
    pub(crate) fn end(mut self) {
        self.send("end");
        self.child.wait().expect("the child process is ours");
    }

    /// Closes the standard input of the child process, and waits for its end.
    pub(crate) fn close(mut self) {
        self.stdin = None;
        self.child.wait().expect("the child process is ours");
    }

    /// Sends SIGKILL, and waits until the process is gone.
    pub(crate) fn kill(&mut self) {
        self.kill_without_wait();
        self.child.wait().expect("the child process is ours");
    }

    /// Sends SIGKILL without reading the exit status, so that the system keeps a zombie.
    pub(crate) fn kill_without_wait(&mut self) {
        self.child.kill().expect("the child process is ours");
    }

    /// Sends SIGSTOP.
    pub(crate) fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Sends SIGCONT.
    pub(crate) fn resume(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// Repeatedly interrupts the system calls of all threads of the child process, until the returned handle is
    /// dropped. It sends SIGUSR1, which the child process handles.
    #[cfg(target_os = "linux")]
    pub(crate) fn interrupt(&self) -> Result<Interruption, Skip> {
        let folder = format!("/proc/{}/task", self.pid());
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let interrupt = move || {
            while !seen.load(Ordering::Relaxed) {
                let tasks = std::fs::read_dir(&folder).into_iter().flatten().flatten();
                let ids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
                for id in ids.filter_map(rustix::process::Pid::from_raw) {
                    // Linux interrupts the thread with this id. If the thread has just ended, no other one has its id yet.
                    let _ = rustix::process::kill_process(id, rustix::process::Signal::USR1);
                }
                thread::park_timeout(Duration::from_micros(200));
            }
        };
        let thread = Some(thread::spawn(interrupt));
        Ok(Interruption { is_over, thread })
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn interrupt(&self) -> Result<Interruption, Skip> {
        let text = "one thread of many is interrupted on Linux only";
        Err(Skip(text.to_owned()))
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the child process is ours");
    }
}

/// Ends what [`ChildProcess::interrupt`] began. Drop it before the child process ends: another process could get that id.
pub(crate) struct Interruption {
    is_over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for Interruption {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Errors here mean that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
