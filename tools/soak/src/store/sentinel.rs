//! A primary with two replicas behind proxies, and three sentinels. The sentinels reach the servers by the proxies, too,
//! so a network that is broken at random would start a fail-over at random.

use std::io;
use std::time::Duration;

use lockkeeper_testkit::{Fault, RedisKind, SentinelSet};

use super::redis::keys;
use super::{ServerSettings, Store, StoreFault};
use crate::faults::Lane;

const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
/// A primary that was silent for this long is replaced.
const DOWN_AFTER: Duration = Duration::from_secs(1);

pub(super) struct Sentinel {
    set: SentinelSet,
    settings: ServerSettings,
}

impl Sentinel {
    pub(super) fn start(kind: RedisKind, settings: ServerSettings) -> io::Result<Self> {
        Ok(Self {
            set: SentinelSet::start(kind, REPLICAS, SENTINELS, DOWN_AFTER)?,
            settings,
        })
    }

    fn primary(&self) -> io::Result<usize> {
        let named = self.set.named_by(self.set.sentinel(0))?;
        named.ok_or_else(|| io::Error::other("the sentinel names no primary"))
    }

    /// Breaks the primary, and waits until all servers are in touch again. A replica that takes over may not have heard
    /// of a grant, and a primary that was replaced may grant until it hears of that.
    fn break_primary(
        &self,
        lane: &mut Lane<'_>,
        act: impl FnOnce(&mut Lane<'_>, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let primary = self.primary()?;
        let journal = lane.journal;
        journal.forget(|| {
            act(lane, primary)?;
            self.set.wait_until_healthy()
        })
    }
}

impl Store for Sentinel {
    fn urls(&self) -> Vec<String> {
        vec![self.settings.with_keys(&self.set.url())]
    }

    fn faults(&self) -> Vec<StoreFault<'_>> {
        vec![
            StoreFault::new("primary stopped", |lane| {
                self.break_primary(lane, |lane, primary| {
                    self.set.server(primary).stop()?;
                    lane.spell();
                    self.set.server(primary).cont()
                })
            }),
            StoreFault::new("primary killed", |lane| {
                self.break_primary(lane, |_, primary| {
                    self.set.server(primary).kill();
                    self.set.wait_for_fail_over(primary)?;
                    self.set.server(primary).restart()
                })
            }),
            StoreFault::new("primary cut off", |lane| {
                self.break_primary(lane, |_, primary| {
                    let proxy = self.set.proxy(primary);
                    proxy.set(Fault::Dark);
                    self.set.wait_for_fail_over(primary)?;
                    proxy.set(Fault::Pass);
                    Ok(())
                })
            }),
            StoreFault::new("sentinel stopped", |lane| {
                let sentinel = self.set.sentinel(SENTINELS - 1);
                sentinel.stop()?;
                lane.spell();
                sentinel.cont()
            }),
            StoreFault::new("all keys flushed", |lane| {
                let primary = self.primary()?;
                let flush = || self.set.server(primary).command(&["FLUSHALL"]).map(drop);
                lane.journal.forget(flush)
            }),
        ]
    }

    fn entries(&self) -> io::Result<Vec<String>> {
        keys(self.set.servers())
    }
}
