//! The command line.

#[cfg(feature = "compare")]
mod compare;
mod operate;
mod run;
mod wait;

use std::time::Duration;

use clap::{Parser, Subcommand};
use lockkeeper::admin::set_process_label;
use lockkeeper::backend::KeyValue as _;

#[cfg(feature = "compare")]
pub(crate) use compare::Compare;
pub(crate) use operate::{Choice, Doctor, Unlock, Who};
pub(crate) use run::{OnLost, Run};
pub(crate) use wait::WaitArgs;

use crate::failure::Failure;
use crate::tickets;

/// How to begin.
const AFTER_HELP: &str = "\
Store:
  --url URL, --config FILE, LOCKKEEPER_URL, ~/.config/lockkeeper.toml or
  /etc/lockkeeper.toml; `lockkeeper run --help` says which one counts.

Examples:
  export LOCKKEEPER_URL=redis://127.0.0.1 # or sqlite:/var/lib/app/locks.db
  lockkeeper doctor                       # whether the store is fit for locks
  lockkeeper run -n report -- report.sh   # status 75 if another one runs it
  lockkeeper who                          # who holds what
  lockkeeper unlock --force report        # takes the lock away
  t=$(lockkeeper acquire deploy --ttl 1h) # a lock that no process has
  lockkeeper release --ticket \"$t\"";

/// Locks by name on the store of a URL, for shell scripts, cron and operators.
#[derive(Debug, Parser)]
#[command(
    name = "lockkeeper",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = AFTER_HELP
)]
pub(crate) struct Args {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a command while it holds a lock.
    #[command(long_about = run::ABOUT, after_long_help = run::DETAILS, override_usage = run::USAGE)]
    Run(Run),

    /// Lists the held locks and their holders.
    #[command(long_about = operate::WHO, after_long_help = operate::WHO_DETAILS)]
    Who(Who),

    /// Takes a lock away from its holder.
    #[command(long_about = operate::UNLOCK, after_long_help = operate::UNLOCK_DETAILS)]
    Unlock(Unlock),

    /// Acquires a lock that outlives this command, and prints its ticket.
    #[command(long_about = tickets::ACQUIRE, after_long_help = tickets::ACQUIRE_STATUS)]
    Acquire(tickets::Acquire),

    /// Gives the lock of a ticket another ttl.
    #[command(long_about = tickets::RENEW, after_long_help = tickets::STATUS)]
    Renew(tickets::Renew),

    /// Frees the lock of a ticket.
    #[command(long_about = tickets::RELEASE, after_long_help = tickets::STATUS)]
    Release(tickets::Release),

    /// Checks whether a store is fit for locks.
    #[command(long_about = operate::DOCTOR, after_long_help = operate::DOCTOR_DETAILS)]
    Doctor(Doctor),

    /// Compares ways of locking, and none, on several stores: which are right, and what they cost.
    #[cfg(feature = "compare")]
    #[command(long_about = compare::ABOUT, after_long_help = compare::DETAILS)]
    Compare(Compare),

    /// Prints the completions for a shell.
    #[command(long_about = "\
Prints the completions for a shell.

  bash  lockkeeper completions bash > ~/.local/share/bash-completion/completions/lockkeeper
  zsh   lockkeeper completions zsh > a folder of $fpath, as _lockkeeper
  fish  lockkeeper completions fish > ~/.config/fish/completions/lockkeeper.fish")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },

    /// Prints the manual pages, or writes them to a folder.
    #[command(long_about = "\
Prints the manual pages, or writes them to a folder.

  lockkeeper manual | man -l -
  lockkeeper manual --folder ~/.local/share/man/man1")]
    Manual {
        /// Writes lockkeeper.1, lockkeeper-run.1 and so on to this folder.
        #[arg(long, value_name = "FOLDER")]
        folder: Option<std::path::PathBuf>,
    },
}

/// The options that name the store; see [`crate::settings`].
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct StoreArgs {
    /// The store, such as redis://127.0.0.1/?namespace=shop or sqlite:/var/lib/shop/locks.db. Default: that of --config,
    /// LOCKKEEPER_URL, ~/.config/lockkeeper.toml or /etc/lockkeeper.toml.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// A TOML file with the store's `url` and further keys, at its top or in a table. If several tables
    /// have a `url`, name one, as in app.toml:locks.
    #[arg(long, value_name = "FILE[:TABLE]", conflicts_with = "url")]
    pub(crate) config: Option<std::path::PathBuf>,
}

/// The option `--label`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LabelArgs {
    /// What `who` shows beside the process, such as the name of the job: up to 40 characters of ASCII.
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
}

impl LabelArgs {
    /// Makes the label that of this process.
    pub(crate) fn apply(&self) -> Result<(), Failure> {
        let label = self.label.as_deref();
        label
            .map_or(Ok(()), set_process_label)
            .map_err(Failure::usage)
    }
}

/// Parses a duration as people write it, or a number of seconds, as `flock` and `watch` take it.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    }
    Duration::from_text(text)
        .ok_or_else(|| "not a duration; write it like 500ms, 10s or 2m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_sound() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }
}
