//! A cluster of three primaries with a replica each, all of them behind proxies.

use std::io;
use std::time::Duration;

use lockkeeper_testkit::{Proxy, RedisCluster, RedisKind};

use super::redis::keys;
use super::{ServerSettings, Store, StoreFault, WATCHED};
use crate::faults::Lane;
use crate::plan::Plan;

/// A primary that was silent for this long is replaced.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

/// How many buckets the names of a namespace are in.
const BUCKETS: u16 = 1_024;

pub(super) struct Cluster {
    nodes: RedisCluster,
    /// How many names the workers lock.
    names: u32,
    settings: ServerSettings,
}

impl Cluster {
    pub(super) fn start(kind: RedisKind, names: u32, settings: ServerSettings) -> io::Result<Self> {
        Ok(Self {
            nodes: RedisCluster::start(kind, 1, NODE_TIMEOUT)?,
            names,
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

    /// Stops a primary that is not replaced meanwhile, beside which the names of the others must be granted. It forgets
    /// nothing.
    fn stop_beside_healthy(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        let (_, stopped) = self.nodes.owner(&any_key(lane), None)?;
        let mut elsewhere = Vec::new();
        for name in 0..self.names {
            let slot = self.nodes.owner(&Plan::name(name), None)?.0;
            let key = format!("lockkeeper:bucket:{{default:{}}}", slot % BUCKETS);
            if self.nodes.owner(&key, None)?.1 != stopped {
                elsewhere.push(name);
            }
        }
        let set_all = |name: &str, value: &str| {
            let mut servers = self.nodes.servers();
            servers.try_for_each(|it| it.command(&["CONFIG", "SET", name, value]).map(drop))
        };
        set_all("cluster-replica-no-failover", "yes")?;
        // Else all nodes refuse when one is silent.
        set_all("cluster-require-full-coverage", "no")?;
        self.nodes.server(stopped).stop()?;
        if elsewhere.is_empty() {
            lane.pause_for(WATCHED);
        } else {
            lane.watch("a node that is stopped", Some(elsewhere), WATCHED);
        }
        self.nodes.server(stopped).cont()?;
        self.nodes.wait_until_healthy()?;
        set_all("cluster-require-full-coverage", "yes")?;
        set_all("cluster-replica-no-failover", "no")
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
    format!(
        "lockkeeper:bucket:{{default:{}}}",
        lane.choice(BUCKETS.into())
    )
}

impl Store for Cluster {
    fn urls(&self) -> Vec<String> {
        vec![self.settings.with_keys(&format!("{}/", self.nodes.url()))]
    }

    fn proxy(&self) -> Option<&Proxy> {
        self.nodes.proxies().next()
    }

    /// Each node is behind a proxy, and one of the proxies is broken at any time.
    fn telling_url(&self) -> Option<String> {
        None
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
            StoreFault::new("primary stopped beside healthy ones", |lane| {
                self.stop_beside_healthy(lane)
            }),
            StoreFault::new("slot moved", |lane| self.move_slot(lane)),
            StoreFault::new("all keys flushed", |lane| self.flush(lane)),
        ]
    }

    fn entries(&self) -> io::Result<Vec<String>> {
        keys(self.nodes.servers())
    }
}
