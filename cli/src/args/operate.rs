//! `lockkeeper who`, `unlock` and `doctor`.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use lockkeeper::Mode;
use lockkeeper::admin::HeldName;

use super::{StoreArgs, duration};
use crate::who::plain;

pub(super) const WHO: &str = include_str!("who_about.txt").trim_ascii_end();
pub(super) const WHO_DETAILS: &str = include_str!("who_details.txt").trim_ascii_end();
pub(super) const UNLOCK: &str = include_str!("unlock_about.txt").trim_ascii_end();
pub(super) const UNLOCK_DETAILS: &str = include_str!("unlock_details.txt").trim_ascii_end();
pub(super) const DOCTOR: &str = include_str!("doctor_about.txt").trim_ascii_end();
pub(super) const DOCTOR_DETAILS: &str = include_str!("doctor_details.txt").trim_ascii_end();

/// The options of `who`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Who {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Print one JSON object instead of the table; its fields are below.
    #[arg(long)]
    pub(crate) json: bool,

    /// Show the names of every namespace of the store.
    #[arg(short = 'A', long, conflicts_with = "name")]
    pub(crate) all_namespaces: bool,

    /// Repeat the list until Ctrl-C: in place at a terminal, else whenever it has changed.
    #[arg(long)]
    pub(crate) watch: bool,

    /// How long --watch pauses between two lists: 1m, or a number of seconds such as 0.5; at least 0.1.
    #[arg(long, value_name = "DUR", default_value = "2s", value_parser = interval, requires = "watch")]
    pub(crate) interval: Duration,

    /// How long the store may take to reply.
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Show only names that begin with this text.
    #[arg(long, value_name = "TEXT", conflicts_with = "name")]
    pub(crate) prefix: Option<String>,

    /// Show only this name.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// Parses a pause that leaves the store some time for its locks.
fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        pause if pause >= Duration::from_millis(100) => Ok(pause),
        _ => Err("the store is to be asked at most ten times a second: 100ms or more".to_owned()),
    }
}

/// The options of `unlock`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Unlock {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Confirm that another holder loses the lock. Required.
    #[arg(long, required = true)]
    pub(crate) force: bool,

    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// How long the store may take to reply.
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration)]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) choice: Choice,

    /// Free the names that begin with this text, in place of NAME.
    #[arg(long, value_name = "TEXT", conflicts_with = "name")]
    pub(crate) prefix: Option<String>,

    /// The lock's name.
    #[arg(value_name = "NAME", required_unless_present = "prefix")]
    pub(crate) name: Option<String>,
}

/// Which holders of a name are meant.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Choice {
    /// Choose the permit in this slot, from 0.
    #[arg(long, value_name = "K")]
    slot: Option<u32>,

    /// Choose the holder with this process id.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// Choose the holders on this host.
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// Choose the holder with this session, where the store knows no process.
    #[arg(long, value_name = "ID")]
    session: Option<String>,

    /// Choose the holders in this mode.
    #[arg(long, value_name = "MODE", value_parser = PossibleValuesParser::new(MODES))]
    mode: Option<String>,

    /// Free all holders, or all that the other options choose.
    #[arg(long)]
    pub(crate) all: bool,
}

/// The texts of [`Mode`].
const MODES: [&str; 3] = ["exclusive", "shared", "permit"];

impl Choice {
    pub(crate) fn includes(&self, held: &HeldName) -> bool {
        fn is<T: PartialEq>(wanted: Option<&T>, found: Option<&T>) -> bool {
            wanted.is_none() || wanted == found
        }
        is(self.slot.as_ref(), held.slot.as_ref())
            && is(self.pid.as_ref(), held.holder.pid.as_ref())
            && is(self.host.as_ref(), held.holder.host.as_ref())
            && is(self.session.as_ref(), held.holder.session.as_ref())
            && is(self.mode.as_ref(), Some(&held.mode.to_string()))
    }

    /// Returns the options that choose this holder, if options can distinguish it from others.
    pub(crate) fn of(held: &HeldName) -> Option<String> {
        let holder = &held.holder;
        match (held.mode, held.slot) {
            (_, Some(slot)) => Some(format!("--slot {slot}")),
            (Mode::Exclusive, None) => Some("--mode exclusive".to_owned()),
            (mode, None) => {
                let pid = holder.pid.map(|pid| format!("--pid {pid}"));
                let session = || Some(format!("--session {}", plain(holder.session.as_ref()?)));
                let process = pid.or_else(session)?;
                let host = holder.host.as_ref().filter(|_| holder.pid.is_some());
                let host = host.map_or_else(String::new, |host| format!(" --host {}", plain(host)));
                Some(format!("--mode {mode} {process}{host}"))
            }
        }
    }
}

/// The options of `doctor`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Print one JSON object instead of text; its fields are below.
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_from_the_store_are_escaped_in_the_choice() {
        let mut held = HeldName::new("prices", "mark");
        held.mode = Mode::Shared;
        held.holder.session = Some("7\r".to_owned());
        let shown = Choice::of(&held).unwrap();
        assert_eq!(shown, "--mode shared --session 7\\r");
        held.holder.pid = Some(42);
        held.holder.host = Some("web\u{1b}[2J".to_owned());
        let shown = Choice::of(&held).unwrap();
        assert_eq!(shown, "--mode shared --pid 42 --host web\\u{1b}[2J");
    }
}
