//! A child process that does not outlive this one.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Holds its own standard input open for reading; the other end is this process's, and closes however
/// this process ends. Deaf to the terminal's signals, because it has to come after them.
const WATCHDOG: &str = r#"trap '' HUP INT TERM
read -r _
kill -9 "$1" 2>/dev/null
rm -rf -- "$2""#;

/// A running server.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    watchdog: Child,
}

impl Process {
    /// Starts `command` in `folder`, with its output in the file `log` there. The folder goes with the
    /// server when this process is killed.
    pub(crate) fn spawn(command: &mut Command, folder: &Path, log: &Path) -> io::Result<Self> {
        let out = File::options().create(true).append(true).open(log)?;
        // In groups of their own: the terminal's ^C and a runner's kill of the group reach the test, which
        // then ends them in order.
        let mut child = command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0)
            .spawn()?;
        let watchdog = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "lockkeeper-watchdog"])
            .arg(child.id().to_string())
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        match watchdog {
            Ok(watchdog) => Ok(Self { child, watchdog }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    pub(crate) fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// SIGSTOP. Returns when all its threads stand still, which the signal alone does not wait for.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        let id = WaitId::Pid(Pid::from_child(&self.child));
        // Left for the one who waits for its end.
        let what = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(id, what)?;
        Ok(())
    }

    /// SIGCONT.
    pub(crate) fn cont(&mut self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Signals the server. An error when it has ended: its number may be another's by now.
    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if let Some(status) = self.exited()? {
            return Err(io::Error::other(format!(
                "the server has ended by itself: {status}"
            )));
        }
        let pid = Pid::from_child(&self.child);
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The watchdog first: once the server is waited for, its number may become another process's.
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
