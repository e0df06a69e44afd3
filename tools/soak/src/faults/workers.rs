//! Starts, stops, kills and restarts the worker processes.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Lane;
use crate::history::ProcessLog;
use crate::log::{self, now};
use crate::plan::{LONGEST_WAIT, Plan};
use crate::worker;

const PAUSE_MS: std::ops::Range<u64> = 100..2000;
const RESTART_MS: std::ops::Range<u64> = 0..500;

/// How long a worker may take to end after its input has ended, in addition to its longest wait.
const END: Duration = Duration::from_secs(20);

/// The worker processes of a round.
///
/// The thread that runs the round starts them, since a worker ends with the thread that started it.
pub(crate) struct Workers<'a> {
    folder: &'a Path,
    /// The plan of all workers. Each worker gets its own log and seed.
    plan: Plan,
    running: Vec<Worker>,
    /// The number of workers started so far.
    started: u32,
    /// The workers that have ended: their log files and logs.
    ended: Vec<(PathBuf, ProcessLog)>,
    /// The texts about workers that ended in a wrong way.
    complaints: Vec<String>,
}

struct Worker {
    /// The process, which ends when its standard input is closed.
    child: Child,
    file: PathBuf,
    /// The records are read at the end.
    log: ProcessLog,
}

impl<'a> Workers<'a> {
    /// Starts this many workers with this plan.
    pub(crate) fn start(
        folder: &'a Path,
        plan: Plan,
        processes: u32,
        lane: &mut Lane<'_>,
    ) -> io::Result<Self> {
        let mut workers = Self {
            folder,
            plan,
            running: Vec::new(),
            started: 0,
            ended: Vec::new(),
            complaints: Vec::new(),
        };
        for _ in 0..processes {
            workers.start_one(lane)?;
        }
        Ok(workers)
    }

    fn start_one(&mut self, lane: &mut Lane<'_>) -> io::Result<()> {
        let number = self.started;
        self.started += 1;
        let file = self.folder.join(format!("process-{number}.log"));
        let plan = Plan {
            log: file.clone(),
            seed: lane.seed(),
            closes: lane.choice(2) == 0,
            ..self.plan.clone()
        };
        // The worker gets a process group of its own, so that Ctrl-C reaches only this process.
        let mut child = Command::new(std::env::current_exe()?)
            .arg(worker::ROLE)
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()?;
        if let Some(input) = &mut child.stdin {
            serde_json::to_writer(&mut *input, &plan)?;
            input.write_all(b"\n")?;
        }
        let log = ProcessLog {
            process: format!("{number} (pid {})", child.id()),
            keepers: u32::try_from(plan.urls.len()).unwrap_or(u32::MAX),
            ..ProcessLog::default()
        };
        self.running.push(Worker { child, file, log });
        Ok(())
    }

    /// Stops and kills workers until the round is over.
    pub(crate) fn run(&mut self, lane: &mut Lane<'_>) -> io::Result<()> {
        while lane.pause(PAUSE_MS) {
            self.restart_ended(lane)?;
            let chosen =
                lane.choice(u32::try_from(self.running.len()).unwrap_or(u32::MAX)) as usize;
            if lane.choice(2) == 0 {
                lane.fault("worker stopped", |lane| self.stop(chosen, lane))?;
            } else {
                lane.fault("worker killed", |lane| {
                    self.kill(chosen)?;
                    lane.pause(RESTART_MS);
                    self.start_one(lane)
                })?;
            }
        }
        Ok(())
    }

    fn stop(&mut self, chosen: usize, lane: &mut Lane<'_>) -> io::Result<()> {
        let Some(worker) = self.running.get_mut(chosen) else {
            return Ok(());
        };
        let pid = Pid::from_child(&worker.child);
        let from = now();
        // No thread has waited for the child, so its process id was not reused.
        kill_process(pid, Signal::STOP)?;
        lane.spell();
        kill_process(pid, Signal::CONT)?;
        worker.log.stops.push((from, now()));
        Ok(())
    }

    fn kill(&mut self, chosen: usize) -> io::Result<()> {
        if chosen >= self.running.len() {
            return Ok(());
        }
        let mut worker = self.running.swap_remove(chosen);
        worker.child.kill()?;
        worker.child.wait()?;
        self.end(worker, None);
        Ok(())
    }

    /// Replaces the workers that have ended by themselves.
    fn restart_ended(&mut self, lane: &mut Lane<'_>) -> io::Result<()> {
        for mut worker in std::mem::take(&mut self.running) {
            match worker.child.try_wait()? {
                None => self.running.push(worker),
                Some(status) => {
                    self.end(worker, Some(format!("it ended by itself: {status}")));
                    self.start_one(lane)?;
                }
            }
        }
        Ok(())
    }

    /// Records that a worker has ended, and a complaint about its end.
    fn end(&mut self, worker: Worker, complaint: Option<String>) {
        let Worker { file, mut log, .. } = worker;
        log.ended = now();
        let complaint = complaint.map(|what| format!("process {}: {what}", log.process));
        self.complaints.extend(complaint);
        self.ended.push((file, log));
    }

    /// Ends all workers. Returns their logs, and the complaints about their ends.
    pub(crate) fn finish(mut self) -> io::Result<(Vec<ProcessLog>, Vec<String>)> {
        let limit = Instant::now() + LONGEST_WAIT + 3 * self.plan.ttl + END;
        let mut running = std::mem::take(&mut self.running);
        // All inputs are closed before the first worker is waited for.
        for worker in &mut running {
            drop(worker.child.stdin.take());
        }
        for mut worker in running {
            let complaint = complaint(wait(&mut worker.child, limit)?);
            self.end(worker, complaint);
        }
        let mut logs = Vec::new();
        for (file, mut log) in self.ended {
            log.records = match log::read(&file) {
                // A worker that was killed at once has no log.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                read => read?,
            };
            logs.push(log);
        }
        Ok((logs, self.complaints))
    }
}

/// Waits for the end of a worker. At the limit, kills it and returns `None`.
fn wait(child: &mut Child, limit: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn complaint(status: Option<ExitStatus>) -> Option<String> {
    match status {
        Some(status) if status.success() => None,
        Some(status) => Some(format!("it ended with {status}")),
        None => Some("it did not end, and was killed".to_owned()),
    }
}
