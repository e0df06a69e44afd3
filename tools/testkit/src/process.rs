//! A child process that does not outlive this one.

use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::watchdog::Watchdog;

/// A running server.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    watchdog: Arc<Watchdog>,
    /// The server's own processes, while they are stopped: they would not notice its end.
    stopped: Vec<Pid>,
}

impl Process {
    /// Starts `command` in `folder`, with its output in the file `log`. The watchdog ends it when this process is
    /// killed.
    pub(crate) fn spawn(
        command: &mut Command,
        folder: &Path,
        log: &Path,
        watchdog: &Arc<Watchdog>,
    ) -> io::Result<Self> {
        let out = File::options().create(true).append(true).open(log)?;
        // The server gets a process group of its own. So ^C, and a runner that kills the group, reach
        // only this process, which then ends the server in order.
        let child = command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0)
            .spawn()?;
        let process = Self {
            child,
            watchdog: Arc::clone(watchdog),
            stopped: Vec::new(),
        };
        process.watch()?;
        Ok(process)
    }

    /// Tells the watchdog to end the server, and those of its processes that are stopped.
    fn watch(&self) -> io::Result<()> {
        let mut running = self.stopped.clone();
        running.push(Pid::from_child(&self.child));
        self.watchdog.watch(&running)
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
                return self.watch();
            }
            for (pid, _) in children {
                // It may have ended meanwhile; until the server has waited for it, no other process gets its id.
                let _ = kill_process(pid, Signal::STOP);
            }
        }
    }

    /// Sends SIGTERM, and returns when the server has ended.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.signal(Signal::TERM)?;
        self.child.wait().map(drop)
    }

    /// Sends SIGCONT.
    pub(crate) fn cont(&mut self) -> io::Result<()> {
        for pid in self.stopped.drain(..) {
            let _ = kill_process(pid, Signal::CONT);
        }
        self.watch()?;
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
        for pid in self.stopped.drain(..) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.watchdog.watch(&[]);
        let _ = self.child.wait();
    }
}

/// Returns the processes that `parent` has started and that have not ended, and whether each is stopped. It runs no `ps`, since
/// a server that is slowed down is stopped often.
fn children_of(parent: u32) -> io::Result<Vec<(Pid, bool)>> {
    let child = |entry: DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The command's name may have any characters.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_whitespace();
        let state = fields.next()?;
        let is_child = fields.next()?.parse() == Ok(parent);
        (is_child && state != "Z").then_some((pid, state == "T"))
    };
    let all = fs::read_dir("/proc")?.flatten();
    Ok(all.filter_map(child).collect())
}
