//! The command `lockkeeper`: runs commands under a lock, shows operators which process holds what,
//! and compares ways of locking.
//!
//! `args` reads the command line and `settings` finds the store. `run`, `who`, `unlock` and `doctor`
//! do what they are called; `compare` shows what the package `lockkeeper-compare` measures. All of
//! them print with `say`, and fail with a `Trouble`.

mod args;
#[cfg(feature = "compare")]
mod compare;
mod doctor;
mod manual;
mod run;
mod say;
mod settings;
mod trouble;
mod unlock;
mod who;

use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::{Args, Command};

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
        #[cfg(feature = "compare")]
        Command::Compare(args) => compare::main(&args),
    }
}

/// Prints why the command line was refused, or the help that it asks for. `doctor` and `run` use
/// status 2 for other things, so wrong usage is 64, except for `compare`.
fn refused(error: &clap::Error) -> ExitCode {
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    let command = std::env::args_os().nth(1).unwrap_or_default();
    let command = command.to_string_lossy();
    if is_help {
        return say::ended(say::printed(error.print()).map(|()| 0));
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // If standard error is closed, the exit status still tells.
        let _ = error.print();
    } else {
        say::err(&misuse(error, &command));
    }
    match command.as_ref() {
        #[cfg(feature = "compare")]
        "compare" => ExitCode::from(compare::USAGE),
        _ => ExitCode::from(trouble::USAGE),
    }
}

/// Returns one line: the first sentence of clap, and where to read the rest.
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
