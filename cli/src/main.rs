//! The command `lockkeeper`: runs commands under a lock, lists holders for operators, and compares
//! ways of locking.
//!
//! `args` reads the command line and `settings` finds the store. `run`, `who`, `unlock` and `doctor`
//! do what they are called; `tickets` has locks that outlive the command; `compare` shows what the package `lockkeeper-compare` measures. All of
//! them print with `output`, and fail with a `Failure`.

mod args;
#[cfg(feature = "compare")]
mod compare;
mod doctor;
mod failure;
mod manual;
mod output;
mod program;
mod run;
mod settings;
mod tickets;
mod unlock;
mod who;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use crate::args::{Args, Command};

fn main() -> ExitCode {
    if let Some(code) = run::helper() {
        return code;
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return refused(&error),
    };
    output::exit_code(match args.command {
        Command::Run(args) => return run::main(&args),
        Command::Who(args) => who::main(&args),
        Command::Unlock(args) => unlock::main(&args),
        Command::Acquire(args) => tickets::acquire(&args),
        Command::Renew(args) => tickets::renew(&args),
        Command::Release(args) => tickets::release(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Completions { shell } => return manual::completions(shell),
        Command::Manual { folder } => return manual::pages(folder.as_deref()),
        #[cfg(feature = "compare")]
        Command::Compare(args) => compare::main(&args),
    })
}

/// Prints why the command line was refused, or the help that it asks for.
fn refused(error: &clap::Error) -> ExitCode {
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    if is_help {
        return output::exit_code(output::check_printed(error.print()).map(|()| 0));
    }
    let command = std::env::args_os().nth(1).unwrap_or_default();
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // If standard error is closed, the exit status still shows the failure.
        let _ = error.print();
    } else {
        output::print_error(&misuse(error, &command.to_string_lossy()));
    }
    ExitCode::from(failure::USAGE)
}

/// Returns one line: the first sentence of clap's error, and where to read the rest.
fn misuse(error: &clap::Error, command: &str) -> String {
    let text = error.to_string();
    let first = text.lines().take_while(|line| !line.is_empty());
    let first = first.map(str::trim).collect::<Vec<_>>().join(" ");
    let first = first.strip_prefix("error: ").unwrap_or(&first);
    let unknown = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(unknown))) => unknown,
        _ => "-",
    };
    if command == "run" && !unknown.starts_with('-') {
        return format!(
            "{first}; the command to run comes after --: lockkeeper run NAME -- {unknown} …"
        );
    }
    let mut lines = text.lines().map(str::trim);
    let near = lines.find_map(|line| line.strip_prefix("tip: a similar "));
    let near = near.map_or_else(String::new, |near| format!("; a similar {near}"));
    let is_known = Args::command().find_subcommand(command).is_some();
    let of = if is_known {
        format!(" {command}")
    } else {
        String::new()
    };
    format!("{first}{near}; see `lockkeeper{of} --help`")
}
