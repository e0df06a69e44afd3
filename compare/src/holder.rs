//! The holder of the scenarios `crash` and `limit`: a process that is killed while it holds a lock or permits.
//!
//! The process is killed by its handle, and ends by itself when its standard input ends. On `memory:`,
//! which no other process can see, the holder is a thread that panics.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::panic::resume_unwind;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use lockkeeper::{CancelToken, LeasePolicy, Mode};
use serde::{Deserialize, Serialize};

use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::StoreHandle;
use crate::store::spec::StoreSettings;
use crate::strategy::Strategy;
use crate::strategy::lock::{Held, Lock, LockRequest};
use crate::strategy::transaction::Transactor;

/// What the process prints when it has the lock.
const HELD: &str = "held";
/// How long a holder waits for the lock, which no other program has.
const WAIT: Duration = Duration::from_secs(30);

/// A holder of a lock.
pub(crate) enum Holder {
    /// Another process.
    Process(HolderProcess),
    /// A thread of this program, for stores that only one process can see. It holds the lock until
    /// `alive` is dropped.
    Thread {
        thread: JoinHandle<()>,
        alive: Sender<()>,
    },
}

/// The program that calls [`main`], and its arguments.
#[derive(Clone, Debug)]
pub(crate) struct HolderCommand {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
}

/// What the holder's process has to do. It is sent through standard input, since a URL may contain
/// a password.
#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) store: StoreSettings,
    pub(crate) strategy: Strategy,
    pub(crate) hold: Hold,
}

/// What a holder acquires.
#[derive(Serialize, Deserialize)]
pub(crate) struct Hold {
    name: String,
    ttl: Duration,
    /// The number of leases.
    count: u32,
    /// The limit of the semaphore, if the leases are permits.
    limit: Option<u32>,
}

impl Hold {
    /// Makes a hold of an exclusive lock.
    pub(crate) fn lock(name: String, ttl: Duration) -> Self {
        Self {
            name,
            ttl,
            count: 1,
            limit: None,
        }
    }

    /// Makes a hold of `count` permits of `limit`.
    pub(crate) fn permits(name: String, ttl: Duration, count: u32, limit: u32) -> Self {
        let limit = Some(limit);
        Self {
            count,
            limit,
            ..Self::lock(name, ttl)
        }
    }

    /// Acquires each lease by another one of `locks`. `None` if one was busy until the end of the wait.
    fn acquire<'a>(
        &self,
        locks: impl IntoIterator<Item = &'a dyn Lock>,
    ) -> Result<Option<Vec<Held>>, Error> {
        let request = LockRequest {
            mode: match self.limit {
                Some(limit) => Mode::Permit { limit },
                None => Mode::Exclusive,
            },
            ..LockRequest::new(LeasePolicy::Renewed { ttl: self.ttl }, WAIT)
        };
        let locks = locks.into_iter();
        locks
            .map(|lock| lock.acquire(&self.name, request))
            .collect()
    }
}

impl Holder {
    /// Starts a process that acquires what `order` says, and returns after the grant.
    pub(crate) fn process(
        command: &HolderCommand,
        order: &Order,
        cancel: &Cancellation,
    ) -> Result<Self, Error> {
        let started = HolderProcess::spawn(command).and_then(|mut holder| {
            let is_held = holder.send(order)?;
            Ok((holder, is_held))
        });
        let why = match started {
            Ok((holder, true)) => return Ok(Self::Process(holder)),
            Ok((mut holder, false)) => {
                let error = holder.error_output();
                format!("the process that is to hold the lock: {error}")
            }
            Err(error) => format!("cannot start the process that is to hold the lock: {error}"),
        };
        cancel.check()?;
        Err(Error::failed(why))
    }

    /// Starts a thread that acquires `hold` with `strategy`, and returns after the grant.
    pub(crate) fn thread(strategy: Box<dyn Transactor>, hold: Hold) -> Result<Self, Error> {
        let (ready, is_ready) = bounded(1);
        let (alive, killed) = bounded::<()>(0);
        let thread = thread::spawn(move || {
            let locks = (0..hold.count).filter_map(|_| strategy.lock());
            let held = hold.acquire(locks);
            let is_held = matches!(held, Ok(Some(_)));
            if ready.send(is_held).is_ok() {
                // Ends when the sender is dropped.
                let _ = killed.recv();
            }
            // Panics without a message. Unwinding drops what is held.
            resume_unwind(Box::new("the holder dies"));
        });
        match is_ready.recv() {
            Ok(true) => Ok(Self::Thread { thread, alive }),
            _ => Err(Error::failed(
                "the thread that is to hold the lock did not get it",
            )),
        }
    }

    /// Kills the holder, and returns when it has ended. The holder releases nothing.
    pub(crate) fn kill(self) -> Result<(), Error> {
        match self {
            Self::Process(mut process) => process.kill().map_err(|error| {
                Error::failed(format!(
                    "the process that holds the lock cannot be killed: {error}"
                ))
            }),
            Self::Thread { thread, alive } => {
                drop(alive);
                // The thread ends by a panic, as it should.
                let _ = thread.join();
                Ok(())
            }
        }
    }
}

/// A holder's process. It ends when its standard input ends, so it does not outlive its parent.
pub(crate) struct HolderProcess(Child);

impl HolderProcess {
    fn spawn(holder: &HolderCommand) -> io::Result<Self> {
        let mut command = Command::new(&holder.program);
        command
            .args(&holder.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Ctrl-C at the terminal reaches only the parent, which then ends the holder.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(Self(command.spawn()?))
    }

    /// Sends the order, and returns whether the process got the lock.
    fn send(&mut self, order: &Order) -> io::Result<bool> {
        if let Some(stdin) = self.0.stdin.as_mut() {
            let order = serde_json::to_string(order)?;
            writeln!(stdin, "{order}")?;
        }
        let mut reply = String::new();
        if let Some(stdout) = self.0.stdout.as_mut() {
            BufReader::new(stdout).read_line(&mut reply)?;
        }
        Ok(reply.trim() == HELD)
    }

    fn error_output(&mut self) -> String {
        let _ = self.0.kill();
        let mut text = String::new();
        if let Some(stderr) = self.0.stderr.as_mut() {
            // After an error, the text that was read so far is used.
            let _ = stderr.read_to_string(&mut text);
        }
        text.trim().to_owned()
    }

    fn kill(&mut self) -> io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }
}

impl Drop for HolderProcess {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.kill();
    }
}

/// Acquires a lock and holds it until this process is killed.
///
/// [`Comparison::holder`](crate::Comparison::holder) names the program that calls this. The process
/// reads an order from standard input, and ends by itself when standard input ends.
///
/// # Errors
/// Standard input has no order, or the lock cannot be acquired.
pub fn main() -> Result<(), Error> {
    let invalid = |error: &dyn fmt::Display| {
        Error::invalid(format!(
            "a comparison starts its holder by itself, with an order on standard input: {error}"
        ))
    };
    let mut line = String::new();
    let mut stdin = io::stdin().lock();
    let read = stdin.read_line(&mut line);
    read.map_err(|error| invalid(&error))?;
    let order: Order = serde_json::from_str(&line).map_err(|error| invalid(&error))?;
    let handle = StoreHandle::open(order.store)?;
    let cancel = Cancellation::new(&CancelToken::new());
    // Each lease has its own lock object: some recipes give a thread that asks again the same lease.
    let locks = (0..order.hold.count).map(|_| order.strategy.open_lock(&handle, 1, &cancel));
    let locks = locks.collect::<Result<Vec<_>, _>>()?;
    let held = order.hold.acquire(locks.iter().map(AsRef::as_ref))?;
    if held.is_none() {
        return Err(Error::failed(format!(
            "the lock was not granted within {WAIT:?}; is the store overloaded?"
        )));
    }
    let mut stdout = io::stdout().lock();
    let printed = writeln!(stdout, "{HELD}").and_then(|()| stdout.flush());
    // Ends when the parent has ended without killing this process.
    let ended = printed.and_then(|()| stdin.read_line(&mut line));
    ended.map_err(|error| invalid(&error))?;
    Ok(())
}
