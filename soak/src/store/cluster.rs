//! A cluster of three primaries with a replica each, all of them behind proxies.

use std::io;
use std::time::Duration;

use lockkeeper_testkit::{Proxy, RedisCluster, RedisKind};

use super::redis::keys;
use super::{ServerSettings, Store, StoreFault};
use crate::faults::Lane;

/// A primary that was silent for this long is replaced.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Cluster {
    nodes: RedisCluster,
    settings: ServerSettings,
}

impl Cluster {
    pub(super) fn start(kind: RedisKind, settings: ServerSettings) -> io::Result<Self> {
        Ok(Self {
            nodes: RedisCluster::start(kind, 1, NODE_TIMEOUT)?,
            settings,
        })
    }

    /// Breaks a primary, and waits until the cluster is whole again. A primary that takes over may not have heard of a
    /// grant, and one that was replaced may grant until it hears of that.
    fn break_primary(
        &self,
        lane: &mut Lane<'_>,
        act: impl FnOnce(&mut Lane<'_>, &str, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let key = any_key(lane);
        let (_, primary) = self.nodes.owner(&key, None)?;
        let journal = lane.journal;
        journal.forget(|| {
            act(lane, &key, primary)?;
            self.nodes.wait_until_healthy()
        })
    }

    /// Moves a slot to another primary, if the next key is at one.
    fn move_slot(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        let (slot, from) = self.nodes.owner(&any_key(lane), None)?;
        let (_, to) = self.nodes.owner(&any_key(lane), None)?;
        if from == to {
            return Ok(());
        }
        self.nodes.begin_move(slot, from, to)?;
        lane.spell();
        self.nodes.end_move(slot, from, to)
    }

    fn flush(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        lane.journal.forget(|| {
            for server in self.nodes.servers() {
                // Replicas refuse, and follow their primary.
                let _ = server.command(&["FLUSHALL"]);
            }
            Ok(())
        })
    }
}

/// Returns a key in the slot of some locks.
fn any_key(lane: &mut Lane<'_>) -> String {
    format!("lockkeeper:bucket:{{default:{}}}", lane.choice(1_024))
}

impl Store for Cluster {
    fn urls(&self) -> Vec<String> {
        vec![self.settings.with_keys(&format!("{}/", self.nodes.url()))]
    }

    fn proxy(&self) -> Option<&Proxy> {
        self.nodes.proxies().next()
    }

    fn faults(&self) -> Vec<StoreFault<'_>> {
        vec![
            StoreFault::new("primary stopped", |lane| {
                self.break_primary(lane, |lane, _, primary| {
                    self.nodes.server(primary).stop()?;
                    lane.spell();
                    self.nodes.server(primary).cont()
                })
            }),
            StoreFault::new("primary killed", |lane| {
                self.break_primary(lane, |_, key, primary| {
                    self.nodes.server(primary).kill();
                    self.nodes.wait_for_fail_over(key, primary)?;
                    self.nodes.server(primary).restart()
                })
            }),
            StoreFault::new("slot moved", |lane| self.move_slot(lane)),
            StoreFault::new("all keys flushed", |lane| self.flush(lane)),
        ]
    }

    fn entries(&self) -> io::Result<Vec<String>> {
        keys(self.nodes.servers())
    }
}
