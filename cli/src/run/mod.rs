//! `lockkeeper run`: a command under a lock.
//!
//! ```text
//! run ─┬─ COMMAND        in a process group of its own; dies with run (Linux)
//!      └─ watchdog       ends the group when run is killed, or when the last deadline that run has
//!                        sent passes
//! ```
//! - `start`: from the command line to the exit status
//! - `plan`: whether the times fit, and the deadlines of the command
//! - `signals`: signals and renewals as one queue of events
//! - `claim`, with `claim_wait`: no two commands of this host under one name
//! - `command`: the command's process
//! - `terminal`: lending the terminal to the command
//! - `supervisor`: what `run` does while the command runs
//! - `watchdog`, with `poll`: the process that ends the command if `run` cannot
//! - `stderr`: writing to standard error without waiting for its reader

#[cfg(unix)]
mod claim;
#[cfg(unix)]
mod claim_wait;
#[cfg(unix)]
mod command;
#[cfg(unix)]
mod plan;
#[cfg(unix)]
mod poll;
#[cfg(unix)]
mod signals;
#[cfg(unix)]
mod start;
#[cfg(unix)]
mod stderr;
#[cfg(unix)]
mod supervisor;
#[cfg(unix)]
mod terminal;
#[cfg(unix)]
mod watchdog;

#[cfg(unix)]
pub(crate) use start::{helper, main};

#[cfg(not(unix))]
mod absent {
    use std::process::ExitCode;

    use crate::args;
    use crate::failure::{Failure, SYSTEM};
    use crate::output;

    pub(crate) fn helper() -> Option<ExitCode> {
        None
    }

    pub(crate) fn main(_args: &args::Run) -> ExitCode {
        let text = "`run` needs process groups and signals, which this system does not have";
        output::exit_code(Err(Failure::new(SYSTEM, text)))
    }
}
#[cfg(not(unix))]
pub(crate) use absent::{helper, main};
