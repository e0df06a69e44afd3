//! The plan of a worker process.

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper::{Capability, LockKeeper};
use serde::{Deserialize, Serialize};

/// The plan of a worker process, in one line of JSON on its standard input. The worker works until that input
/// ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The URLs of one store. The worker opens a keeper on each, and its threads use them in turn.
    pub(crate) urls: Vec<String>,
    /// The log that the worker creates.
    pub(crate) log: PathBuf,
    /// Decides what the threads do.
    pub(crate) seed: u64,
    /// The number of threads.
    pub(crate) threads: u32,
    /// The number of names.
    pub(crate) names: u32,
    /// The longest time that guards are held, apart from those that are held for long.
    pub(crate) hold: Duration,
    /// The ttl of the URLs.
    pub(crate) ttl: Duration,
    /// Whether the worker closes its keepers when its input ends, so that waits are cancelled.
    pub(crate) closes: bool,
    /// Whether the worker looks at its end for names that are still held: no other process can see them.
    pub(crate) is_alone: bool,
}

/// The limit of each semaphore.
const PERMITS: u32 = 3;

/// The longest wait of a worker.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(3);

impl Plan {
    /// Reads the plan of this process.
    pub(crate) fn read(mut from: impl BufRead) -> io::Result<Self> {
        let mut line = String::new();
        from.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Returns whether guards of this name are held for up to twice the ttl: each fault should meet some of them.
    /// These are the last quarter of the names.
    pub(crate) fn is_held_long(&self, name: u32) -> bool {
        name >= self.names - self.names / 4
    }

    /// Returns the limit of a semaphore: every fourth name is one, and the others are locks.
    pub(crate) fn permits(name: u32) -> Option<u32> {
        (name % 4 == 2).then_some(PERMITS)
    }

    /// Returns whether the store of a keeper has such a name: some have no semaphores.
    pub(crate) fn is_on(name: u32, keeper: &LockKeeper) -> bool {
        Self::permits(name).is_none() || keeper.capabilities().has(Capability::Permits)
    }

    /// Returns the name with this number.
    pub(crate) fn name(number: u32) -> String {
        format!("seat:{number}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(names: u32) -> Plan {
        Plan {
            urls: vec!["memory:".to_owned()],
            log: PathBuf::from("/tmp/log"),
            seed: u64::MAX,
            threads: 8,
            names,
            hold: Duration::from_millis(20),
            ttl: Duration::from_secs(2),
            closes: true,
            is_alone: false,
        }
    }

    #[test]
    fn worker_reads_the_plan_that_was_written() {
        let written = plan(20);
        let mut line = serde_json::to_vec(&written).unwrap();
        line.extend(b"\nmore input");
        assert_eq!(Plan::read(&*line).unwrap(), written);
        assert!(Plan::read(&b"{}\n"[..]).is_err());
    }

    #[test]
    fn last_quarter_of_the_names_is_held_for_long() {
        let long = |names| (0..names).filter(move |it| plan(names).is_held_long(*it));
        assert_eq!(long(20).collect::<Vec<_>>(), [15, 16, 17, 18, 19]);
        assert_eq!(long(3).count(), 0);
    }
}
