//! `lockkeeper run`: a command under a lock.
//!
//! ```text
//! run ─┬─ COMMAND        in a process group of its own; dies with run (Linux)
//!      └─ watchdog       ends the group when run is killed, or when the deadline passes that run
//!                        told it last
//! ```
//! `plan` looks whether the times fit, `signals` listens, `claim` waits for an earlier command of this
//! host, `job` starts and signals the command, `terminal` lends it the terminal, `watch` keeps both
//! while the lock is held, and `voice` says what there is to say.

#[cfg(unix)]
mod claim;
#[cfg(unix)]
mod job;
#[cfg(unix)]
mod plan;
#[cfg(unix)]
mod poll;
#[cfg(unix)]
mod signals;
#[cfg(unix)]
mod start;
#[cfg(unix)]
mod terminal;
#[cfg(unix)]
mod voice;
#[cfg(unix)]
mod watch;
#[cfg(unix)]
mod watchdog;

#[cfg(unix)]
pub(crate) use start::{helper, main};

#[cfg(not(unix))]
mod absent {
    use std::process::ExitCode;

    use crate::args;
    use crate::say;
    use crate::trouble::{SYSTEM, Trouble};

    pub(crate) fn helper() -> Option<ExitCode> {
        None
    }

    pub(crate) fn main(_args: &args::Run) -> ExitCode {
        let text = "`run` needs process groups and signals, which this system has not";
        say::ended(Err(Trouble::new(SYSTEM, text)))
    }
}
#[cfg(not(unix))]
pub(crate) use absent::{helper, main};
