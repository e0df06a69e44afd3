//! A child process that does not outlive this one.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Reads its standard input, whose other end closes however this process ends; then kills the server and
/// removes the folder. Ignores the terminal's signals, since it has to outlive this process.
const WATCHDOG: &str = r#"trap '' HUP INT TERM
read -r _
kill -9 "$1" 2>/dev/null
rm -rf -- "$2""#;

/// A running server.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    watchdog: Child,
    /// The server's own processes, while they are stopped: they would not notice its end.
    stopped: Vec<Pid>,
}

impl Process {
    /// Starts `command` in `folder`, with its output in the file `log`. When this process is killed, the
    /// watchdog removes the server and the folder.
    pub(crate) fn spawn(command: &mut Command, folder: &Path, log: &Path) -> io::Result<Self> {
        let out = File::options().create(true).append(true).open(log)?;
        // In process groups of their own, so that ^C and a runner's kill of the group reach this process
        // only, which then ends them in order.
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
            Ok(watchdog) => Ok(Self {
                child,
                watchdog,
                stopped: Vec::new(),
            }),
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

    /// Returns the exit status, if the server has ended.
    pub(crate) fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Sends SIGSTOP to the server and to its own processes, and returns when all threads have stopped.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        let id = WaitId::Pid(Pid::from_child(&self.child));
        // NOWAIT leaves the status to `exited`.
        let what = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(id, what)?;
        // It starts no further one now.
        loop {
            let children = children_of(self.child.id())?;
            if children.iter().all(|(_, is_stopped)| *is_stopped) {
                self.stopped = children.into_iter().map(|(pid, _)| pid).collect();
                return Ok(());
            }
            for (pid, _) in children {
                // It may have ended meanwhile; until the server has waited for it, no other process gets its id.
                let _ = kill_process(pid, Signal::STOP);
            }
        }
    }

    /// Sends SIGCONT.
    pub(crate) fn cont(&mut self) -> io::Result<()> {
        for pid in self.stopped.drain(..) {
            let _ = kill_process(pid, Signal::CONT);
        }
        self.signal(Signal::CONT)
    }

    /// Sends a signal to the server. Fails if it has ended, since its process id may have been reused.
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
        // The watchdog first: once the server was waited for, its process id may be reused.
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
        for pid in self.stopped.drain(..) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the processes that `parent` has started and that have not ended, and whether each is stopped.
fn children_of(parent: u32) -> io::Result<Vec<(Pid, bool)>> {
    let out = Command::new("ps")
        .args(["-A", "-o", "pid=,ppid=,stat="])
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let child = |line: &str| {
        let mut fields = line.split_whitespace();
        let pid = Pid::from_raw(fields.next()?.parse().ok()?)?;
        let is_child = fields.next()?.parse() == Ok(parent);
        let state = fields.next()?;
        (is_child && !state.starts_with('Z')).then(|| (pid, state.starts_with('T')))
    };
    Ok(text.lines().filter_map(child).collect())
}
