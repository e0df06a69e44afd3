//! The command `lockkeeper`: runs commands under a lock, tells those on call who holds what, and
//! shows what a lock is good for by running ways of locking side by side.
//!
//! `args` reads the command line and `settings` finds the store. `run`, `who`, `unlock` and `doctor`
//! do what they are called; what they have in common is in `table` and `trouble`.
//!
//! `compare` runs scenarios (`scenario`) with strategies (`strategy`) on stores (`store`, and
//! `state` for what the lock protects) and makes a `row` of each; only `output` prints.

mod args;
mod compare;
mod config_file;
mod crew;
mod doctor;
mod failure;
mod holder;
mod manual;
mod meter;
mod output;
mod pause;
mod row;
mod run;
mod say;
mod scenario;
#[cfg(unix)]
mod servers;
mod settings;
mod state;
mod stopwatch;
mod store;
mod strategy;
mod trouble;
mod unlock;
mod waits;
mod who;

use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use lockkeeper::CancelToken;

use crate::args::{Args, Command};
use crate::failure::Failure;
use crate::output::Output;

/// Every row was as it must be.
const AS_EXPECTED: u8 = 0;
/// A verdict was not the expected one, or the run failed.
const FAILED: u8 = 1;
/// The command line of `compare` cannot be used.
const USAGE: u8 = 2;
/// Stopped by Ctrl-C, as shells count it: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    if let Some(code) = run::helper() {
        return code;
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return refused(&error),
    };
    match args.command {
        Command::Run(args) => run::main(&args),
        Command::Who(args) => who::main(&args),
        Command::Unlock(args) => unlock::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Completions { shell } => manual::completions(shell),
        Command::Manual { folder } => manual::pages(folder.as_deref()),
        Command::Compare(args) => compare(&args),
    }
}

/// The status of wrong usage differs: `run` has its command's, and for `doctor` 2 says something.
fn refused(error: &clap::Error) -> ExitCode {
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    let command = std::env::args_os().nth(1).unwrap_or_default();
    let command = command.to_string_lossy();
    let is_compare = command == "compare";
    if is_help {
        return say::ended(say::printed(error.print()).map(|()| 0));
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Where it cannot be said, the exit status still tells.
        let _ = error.print();
    } else {
        say::err(&misuse(error, &command));
    }
    ExitCode::from(if is_compare { USAGE } else { trouble::USAGE })
}

/// One line: what clap says first, and where the rest stands.
fn misuse(error: &clap::Error, command: &str) -> String {
    let text = error.to_string();
    let first = text.lines().take_while(|line| !line.is_empty());
    let first = first.map(str::trim).collect::<Vec<_>>().join(" ");
    let first = first.strip_prefix("error: ").unwrap_or(&first);
    let unknown = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(unknown))) => unknown,
        _ => "-",
    };
    let known = <Args as clap::CommandFactory>::command();
    let of = match known.find_subcommand(command) {
        Some(_) => format!(" {command}"),
        None => String::new(),
    };
    if command == "run" && !unknown.starts_with('-') {
        return format!(
            "{first}; the command to run comes after --: lockkeeper run NAME -- {unknown} …"
        );
    }
    let near = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("tip: a similar "));
    let near = near.map_or_else(String::new, |near| format!("; a similar {near}"));
    format!("{first}{near}; see `lockkeeper{of} --help`")
}

fn compare(args: &args::Compare) -> ExitCode {
    let output = Output::new(args.json, args.quiet);
    let result = run_compare(args, &output);
    if let Err(failure) = &result {
        output.failure(failure);
    }
    ExitCode::from(match result {
        Ok(true) => AS_EXPECTED,
        Ok(false) | Err(Failure::Failed(_) | Failure::Starved(_)) => FAILED,
        Err(Failure::Usage(_)) => USAGE,
        Err(Failure::Interrupted) => INTERRUPTED,
    })
}

/// Whether every row is as it must be. What was measured is shown also when the run ends early.
fn run_compare(args: &args::Compare, output: &Output) -> Result<bool, Failure> {
    args.check()?;
    if args.holder {
        return holder::run().map(|()| true);
    }
    let stop = CancelToken::new();
    let on_signal = stop.clone();
    ctrlc::set_handler(move || on_signal.cancel())
        .map_err(|error| Failure::Failed(format!("cannot listen for Ctrl-C: {error}")))?;

    let plan = compare::Plan::new(args, output, &stop)?;
    let mut rows = Vec::new();
    let ended = plan.run(output, &mut rows);
    let report = row::Report::new(args, plan.left_out(), plan.missing(), rows, ended.is_ok());
    output.report(&report)?;
    if let Some(file) = &args.html {
        output.page(&report, file)?;
    }
    ended?;
    Ok(report.rows.iter().all(row::Row::is_as_expected))
}
