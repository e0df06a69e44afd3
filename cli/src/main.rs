//! The command `lockkeeper`: shows what a lock is good for by running ways of locking side by
//! side.
//!
//! `args` reads the command line, `compare` runs scenarios (`scenario`) with strategies
//! (`strategy`) on stores (`store`, and `state` for what the lock protects) and makes a `row` of
//! each; only `output` prints.

mod args;
mod compare;
mod crew;
mod failure;
mod output;
mod row;
mod scenario;
mod state;
mod stopwatch;
mod store;
mod strategy;
mod waits;

use std::process::ExitCode;

use clap::Parser;
use lockkeeper::CancelToken;

use crate::args::{Args, Command};
use crate::failure::Failure;
use crate::output::Output;

/// Every row was as it must be.
const AS_EXPECTED: u8 = 0;
/// A verdict was not the expected one, or the run failed.
const FAILED: u8 = 1;
/// The command line cannot be used; clap exits with the same.
const USAGE: u8 = 2;
/// Stopped by Ctrl-C, as shells count it: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let Command::Compare(args) = Args::parse().command;
    let output = Output::new(args.json, args.quiet);
    let result = run(&args, &output);
    if let Err(failure) = &result {
        output.failure(failure);
    }
    ExitCode::from(match result {
        Ok(true) => AS_EXPECTED,
        Ok(false) | Err(Failure::Failed(_)) => FAILED,
        Err(Failure::Usage(_)) => USAGE,
        Err(Failure::Interrupted) => INTERRUPTED,
    })
}

/// Whether every row is as it must be. What was measured is shown also when the run ends early.
fn run(args: &args::Compare, output: &Output) -> Result<bool, Failure> {
    args.check()?;
    let stop = CancelToken::new();
    let on_signal = stop.clone();
    ctrlc::set_handler(move || on_signal.cancel())
        .map_err(|error| Failure::Failed(format!("cannot listen for Ctrl-C: {error}")))?;

    let plan = compare::Plan::new(args, &stop)?;
    let mut rows = Vec::new();
    let ended = plan.run(output, &mut rows);
    let report = row::Report::new(args, rows, ended.is_ok());
    output.report(&report)?;
    ended?;
    Ok(report.rows.iter().all(row::Row::is_as_expected))
}
