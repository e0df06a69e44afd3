//! `lockkeeper run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use lockkeeper::{MAX_PERMITS, Mode};

use super::{LabelArgs, StoreArgs, WaitArgs, duration};

pub(super) const ABOUT: &str = include_str!("run_about.txt").trim_ascii_end();
pub(super) const DETAILS: &str = include_str!("run_details.txt").trim_ascii_end();

pub(super) const USAGE: &str = "\
lockkeeper run [OPTIONS] <NAME> -- <COMMAND>...
       lockkeeper run [OPTIONS] <NAME> -c <LINE>";

/// The options of `run`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    /// Acquire a shared lock: beside any number of others that are shared, and beside none that is not.
    /// See below.
    #[arg(short, long)]
    shared: bool,

    /// Acquire one of N permits of NAME, so that up to N commands run at the same time. See below.
    #[arg(long, value_name = "N", conflicts_with = "shared",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PERMITS)))]
    slots: Option<u32>,

    /// Hold the lock of this name, too; can be repeated. All are acquired, or none. See below.
    #[arg(long, value_name = "NAME", conflicts_with = "slots")]
    also: Vec<String>,

    /// How long the lock outlives its last renewal. Default: the store's `ttl`, or 30s.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    /// Hold the lock at most this long, without renewals. The command is ended before the time is
    /// over.
    #[arg(long, value_name = "DUR", value_parser = duration, conflicts_with = "ttl")]
    pub(crate) lease: Option<Duration>,

    /// What to do with the command if the lock is lost.
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub(crate) on_lost: OnLost,

    /// How long a command that is being ended may take, from TERM to KILL. Default: 5s, or what
    /// half of --ttl or --lease leaves beside the margin, if that is less.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,

    /// How long the command may run. Then it gets TERM, and KILL after --stop-after, or else --kill-after. The
    /// exit status is 124, as that of timeout(1).
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,

    /// How long the command may go on after a signal that asks for an end, --timeout or a loss. Then it gets KILL.
    /// Default: no limit after a signal, and --kill-after in the other cases.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) stop_after: Option<Duration>,

    /// The exit status if the lock was not acquired in time: 0 to 255. With 0, no message is printed
    /// either.
    #[arg(short = 'E', long, value_name = "N", default_value_t = 75)]
    pub(crate) conflict_exit_code: u8,

    /// Hold the lock at least this long, even if the command ends earlier, fails or cannot be run. A
    /// signal that asks for an end cuts it short. Must be shorter than --lease less the margin.
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "0s", hide_default_value = true)]
    pub(crate) hold_at_least: Duration,

    #[command(flatten)]
    pub(crate) label: LabelArgs,

    /// Write to this file by whom the exit status is: `command 1` or `lockkeeper 79`. Without it, 75 may be
    /// either. The file is emptied at the start.
    #[arg(long, value_name = "FILE")]
    pub(crate) status_file: Option<PathBuf>,

    /// Let the command see the store, as LOCKKEEPER_URL and its keys, or as LOCKKEEPER_CONFIG, so that
    /// another lockkeeper in it finds the same store. The URL's password goes along. If the command
    /// changes its folder, a SQLite file in a config file, a fallback or a member needs an absolute path.
    #[arg(long)]
    pub(crate) pass_url: bool,

    /// Print on standard error what happens.
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Print no message, not even why the command was not run. Wrong usage is still reported.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Run this line with `/bin/sh -c`, in place of COMMAND.
    #[arg(
        short = 'c',
        long = "command",
        value_name = "LINE",
        conflicts_with = "command"
    )]
    line: Option<OsString>,

    /// The lock's name.
    #[arg(value_name = "NAME")]
    name: String,

    /// The command, after `--`.
    #[arg(value_name = "COMMAND", last = true, required_unless_present = "line", num_args = 1..)]
    command: Vec<OsString>,
}

impl Run {
    /// Returns NAME and those of --also.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        [&self.name]
            .into_iter()
            .chain(&self.also)
            .map(String::as_str)
    }

    pub(crate) fn mode(&self) -> Mode {
        match (self.slots, self.shared) {
            (Some(limit), _) => Mode::Permit { limit },
            (None, true) => Mode::Shared,
            (None, false) => Mode::Exclusive,
        }
    }

    /// Returns the command and its arguments.
    pub(crate) fn command(&self) -> Vec<OsString> {
        match &self.line {
            Some(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
            None => self.command.clone(),
        }
    }
}

/// What happens to the command of a lost lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// End it: TERM, then KILL.
    Term,
    /// Print a warning, and let it go on.
    Warn,
}
