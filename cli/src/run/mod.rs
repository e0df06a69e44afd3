//! `lockkeeper run`: a command under a lock.
//!
//! ```text
//! run ─┬─ COMMAND        in a process group of its own; dies with run (Linux)
//!      └─ watchdog       ends the group when run is killed, or when the last deadline that run has
//!                        sent passes
//! ```
//! - `start`: from the command line to the exit status
//! - `opening`: the store, which may come up within --wait
//! - `limits`: --timeout and --stop-after
//! - `plan`: whether the times fit, and the deadlines of the command
//! - `signals`: signals and renewals as one queue of events
//! - `guard`: the lock or permit, as it is requested and as it is held
//! - `claim`: no two commands of this host under one lock
//! - `held`: the lock while it is held, from the wait for the claim to the release
//! - `command`: the command's process
//! - `terminal`: lending the terminal to the command
//! - `supervisor`: what `run` does while the command runs
//! - `watchdog`, with `poll`: the process that ends the command if `run` cannot
//! - `status_file`: by whom the exit status is
//! - `stderr`: writing to standard error without waiting for its reader

// What must never be otherwise:
// - `run` starts no command while an earlier one of this host may still run under the lock, or in the slot.
//   Claims have the modes of locks: shared ones exclude only exclusive ones. A claim counts only if it belongs
//   to the same user or to root.

mod claim;
mod command;
mod guard;
mod held;
mod limits;
mod opening;
mod plan;
mod poll;
mod signals;
mod start;
mod status_file;
mod stderr;
mod supervisor;
mod terminal;
mod watchdog;

pub(crate) use signals::{end_by_signal, end_wait};
pub(crate) use start::{helper, main};
