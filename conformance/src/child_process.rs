//! Another process of this program, told line by line what to do.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::child::{Remoted, clear};

/// Killed when dropped, stopped or not; and it ends by itself when this process does.
pub(crate) struct Remote {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    patience: Duration,
}

impl Remote {
    pub(crate) fn start(what: &Remoted, patience: Duration) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        clear(&mut command);
        what.tell(&mut command);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.expect("this program can be started again");
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("it is piped");
        let (tell, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let remote = Self {
            child,
            stdin,
            lines,
            patience,
        };
        remote.expect("ready");
        remote
    }

    /// Tells the process to do something.
    pub(crate) fn say(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{command}").expect("the other process listens");
        stdin.flush().expect("the other process listens");
    }

    /// The next line that it says.
    pub(crate) fn hear(&self) -> String {
        match self.lines.recv_timeout(self.patience) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the other process says nothing"),
            Err(RecvTimeoutError::Disconnected) => panic!("the other process has ended"),
        }
    }

    /// The next line must begin with `word`; the rest of it.
    pub(crate) fn expect(&self, word: &str) -> String {
        let line = self.hear();
        let rest = line.strip_prefix(word);
        let rest = rest.unwrap_or_else(|| panic!("the other process says {line:?}, not {word:?}"));
        rest.trim().to_owned()
    }

    /// Has it take a name that is free; the token.
    pub(crate) fn take(&mut self, name: &str) -> u64 {
        self.say(&format!("lock {name}"));
        self.expect_token()
    }

    pub(crate) fn expect_token(&self) -> u64 {
        let token = self.expect("held");
        token.parse().expect("a token is a number")
    }

    /// Has it wait for a name that is busy; returns when it does.
    pub(crate) fn wait_for(&mut self, name: &str) {
        self.say(&format!("lock {name}"));
        self.expect("contended");
    }

    pub(crate) fn release(&mut self) {
        self.say("release");
        self.expect("Done");
    }

    /// Has it clean up and end.
    pub(crate) fn end(mut self) {
        self.say("end");
        self.child.wait().expect("it is our child");
    }

    /// SIGKILL, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.kill_only();
        self.child.wait().expect("it is our child");
    }

    /// SIGKILL; nobody asks how it ended, so the system keeps a zombie.
    pub(crate) fn kill_only(&mut self) {
        self.child.kill().expect("it is our child");
    }

    /// SIGSTOP.
    #[cfg(unix)]
    pub(crate) fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// SIGCONT.
    #[cfg(unix)]
    pub(crate) fn resume(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    #[cfg(unix)]
    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it is our child");
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
