//! Somebody who holds a lock and dies: a process of its own, which is killed, or a thread.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::panic::resume_unwind;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockkeeper::{CancelToken, LeasePolicy};
use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::store::{Reach, Source};
use crate::strategy::{Kind, Strategy, Terms};

/// What the process says on standard output when it has the lock.
const HELD: &str = "held";
/// It waits no longer: nobody else has the lock.
const WAIT: Duration = Duration::from_secs(30);

/// Where the holder lives.
pub(crate) trait Elsewhere: Sync {
    /// Has somebody there take the lock, and returns when they have it.
    fn hold(
        &self,
        name: &str,
        ttl: Duration,
        stop: &CancelToken,
    ) -> Result<Box<dyn Doomed>, Failure>;
}

/// Somebody who holds the lock.
pub(crate) trait Doomed {
    /// Ends them, and returns when they are gone. They release nothing.
    fn die(self: Box<Self>) -> Result<(), Failure>;
}

/// The order to a holder; on its standard input, because a URL may have a password in it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    source: Source,
    redlock: Vec<u16>,
    strategy: Kind,
    name: String,
    ttl_ms: u64,
}

/// In a process.
pub(crate) struct InProcess<'a> {
    /// The store.
    pub(crate) reach: &'a Reach,
    /// With which strategy.
    pub(crate) strategy: Kind,
    /// What the process runs.
    pub(crate) program: &'a Program,
}

impl Elsewhere for InProcess<'_> {
    fn hold(
        &self,
        name: &str,
        ttl: Duration,
        stop: &CancelToken,
    ) -> Result<Box<dyn Doomed>, Failure> {
        let order = Order {
            source: self.reach.source().clone(),
            redlock: self.reach.redlock_ports().to_vec(),
            strategy: self.strategy,
            name: name.to_owned(),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
        };
        let mut holder = Process::spawn(self.program).map_err(|error| not_started(&error))?;
        match holder.send(&order) {
            Ok(true) => Ok(Box::new(holder)),
            Ok(false) | Err(_) if stop.is_cancelled() => Err(Failure::Interrupted),
            Ok(false) => Err(Failure::Failed(holder.complaint())),
            Err(error) => Err(not_started(&error)),
        }
    }
}

fn not_started(error: &io::Error) -> Failure {
    Failure::Failed(format!(
        "the process that was to hold the lock could not be started: {error}"
    ))
}

/// The program, and its arguments, that calls [`main`].
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
}

/// Ends when its standard input does: it outlives nobody.
struct Process(Child);

impl Process {
    fn spawn(program: &Program) -> io::Result<Self> {
        let mut command = Command::new(&program.program);
        command
            .args(&program.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // The terminal's Ctrl-C is for the one who gives the orders.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(Self(command.spawn()?))
    }

    /// Whether it has taken the lock.
    fn send(&mut self, order: &Order) -> io::Result<bool> {
        if let Some(stdin) = self.0.stdin.as_mut() {
            let order = serde_json::to_string(order)?;
            writeln!(stdin, "{order}")?;
        }
        let mut said = String::new();
        if let Some(stdout) = self.0.stdout.as_mut() {
            BufReader::new(stdout).read_line(&mut said)?;
        }
        Ok(said.trim() == HELD)
    }

    /// Its last words.
    fn complaint(&mut self) -> String {
        let _ = self.0.kill();
        let mut said = String::new();
        if let Some(stderr) = self.0.stderr.as_mut() {
            // What was said until an error is all there is.
            let _ = stderr.read_to_string(&mut said);
        }
        let said = said.trim().trim_start_matches("error: ");
        format!("the process that was to hold the lock: {said}")
    }
}

impl Doomed for Process {
    fn die(mut self: Box<Self>) -> Result<(), Failure> {
        let dead = self.0.kill().and_then(|()| self.0.wait());
        dead.map_err(|error| {
            Failure::Failed(format!(
                "the process that holds the lock cannot be killed: {error}"
            ))
        })?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Is the process that `crash` kills: takes the lock, says so, and holds it until it is killed.
pub fn main() -> Result<(), Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::Usage(format!(
            "the holder is what a comparison starts by itself, with an order on standard input: {error}"
        ))
    };
    let mut line = String::new();
    let mut stdin = io::stdin().lock();
    stdin.read_line(&mut line).map_err(|error| wrong(&error))?;
    let order: Order = serde_json::from_str(&line).map_err(|error| wrong(&error))?;
    let reach = Reach::open(order.source, order.redlock)?;
    let stop = CancelToken::new();
    let lock = order.strategy.open_lock(&reach, 1, &stop)?;
    let terms = Terms {
        lease: LeasePolicy::Renewed {
            ttl: Duration::from_millis(order.ttl_ms),
        },
        wait: WAIT,
        again: false,
    };
    let held = lock.take(&order.name, terms)?;
    if held.is_none() {
        return Err(Failure::Failed(format!(
            "it did not get the lock within {WAIT:?}"
        )));
    }
    let mut stdout = io::stdout().lock();
    let said = writeln!(stdout, "{HELD}").and_then(|()| stdout.flush());
    // Until whoever gave the order is gone, should they not come to kill it.
    let ended = said.and_then(|()| stdin.read_line(&mut line));
    ended.map_err(|error| wrong(&error))?;
    Ok(())
}

/// In a thread of this process.
pub(crate) struct InThread<'a> {
    /// Opens the way of locking.
    pub(crate) open: &'a (dyn Fn() -> Result<Box<dyn Strategy>, Failure> + Sync),
}

impl Elsewhere for InThread<'_> {
    fn hold(
        &self,
        name: &str,
        ttl: Duration,
        _stop: &CancelToken,
    ) -> Result<Box<dyn Doomed>, Failure> {
        let (strategy, name) = ((self.open)()?, name.to_owned());
        let (ready, is_ready) = mpsc::channel();
        let (end, is_to_end) = mpsc::channel::<()>();
        let terms = Terms {
            lease: LeasePolicy::Renewed { ttl },
            wait: WAIT,
            again: false,
        };
        let thread = thread::spawn(move || {
            let held = strategy.lock().map(|lock| lock.take(&name, terms));
            let has_it = matches!(held, Some(Ok(Some(_))));
            if ready.send(has_it).is_ok() {
                // Its end is the sign, too.
                let _ = is_to_end.recv();
            }
            // As a panic, without its message: what is held is dropped on the way.
            resume_unwind(Box::new("the holder dies"));
        });
        if is_ready.recv() != Ok(true) {
            return Err(Failure::Failed(
                "the thread that was to hold the lock did not get it".to_owned(),
            ));
        }
        Ok(Box::new(Thread { thread, end }))
    }
}

struct Thread {
    thread: JoinHandle<()>,
    end: mpsc::Sender<()>,
}

impl Doomed for Thread {
    fn die(self: Box<Self>) -> Result<(), Failure> {
        drop(self.end);
        // It ends by a panic: that is what was asked for.
        let _ = self.thread.join();
        Ok(())
    }
}
