//! How long a command waits for its lock, and for the store.

use std::time::Duration;

use lockkeeper::backend::OpenOptions;
use lockkeeper::clock::{Clock, HostInstant, SystemClock};
use lockkeeper::{AcquireOptions, Wait};

use super::duration;

/// The options `--wait` and `--no-wait`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct WaitArgs {
    /// How long to wait for the lock, and for the store to come up: 10m, a number of seconds such as
    /// 1.5, or `forever`. Default: forever for the lock, and the config's `open_wait`, or not at all, for the store.
    #[arg(short, long, value_name = "DUR", value_parser = wait)]
    pub(crate) wait: Option<Wait>,

    /// Make one attempt, and do not wait.
    #[arg(short, long, conflicts_with = "wait")]
    no_wait: bool,
}

impl WaitArgs {
    /// Returns how long to wait for the store; `None` leaves that to its config.
    fn chosen(self) -> Option<Wait> {
        match self.no_wait {
            true => Some(Wait::AtMost(Duration::ZERO)),
            false => self.wait,
        }
    }

    /// Returns the options that open the store.
    pub(crate) fn opening(self) -> OpenOptions {
        let options = OpenOptions::new();
        match self.chosen() {
            Some(Wait::AtMost(wait)) => options.wait(wait),
            Some(Wait::Forever) => options.wait_forever(),
            None => options,
        }
    }

    /// Returns the options that acquire the lock in what is left of a wait that began at `began`.
    pub(crate) fn acquisition(self, began: HostInstant) -> AcquireOptions {
        let options = AcquireOptions::new();
        match self.chosen() {
            Some(Wait::AtMost(wait)) => {
                options.wait(wait.saturating_sub(SystemClock.now().saturating_since(began)))
            }
            Some(Wait::Forever) | None => options.wait_forever(),
        }
    }
}

fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::Forever),
        text => duration(text).map(Wait::AtMost),
    }
}
