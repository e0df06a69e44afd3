//! An etcd cluster of three members, and a proxy before one of them.

use std::io;
use std::time::Duration;

use lockkeeper_testkit::{EtcdCluster, EtcdKind, EtcdOptions, EtcdServer, Proxy};

use super::{Store, StoreFault, with_timeouts};
use crate::faults::Lane;

pub(super) struct Etcd {
    proxy: Proxy,
    cluster: EtcdCluster,
}

impl Etcd {
    pub(super) fn start(kind: EtcdKind) -> io::Result<Self> {
        let cluster = EtcdCluster::start(kind, &EtcdOptions::new())?;
        let members = cluster.members().iter();
        let addr = members.map(EtcdServer::addr).next();
        Ok(Self {
            proxy: Proxy::new(addr.ok_or_else(none)?)?,
            cluster,
        })
    }

    /// Returns the number of the leader, and the member.
    fn leader(&self) -> io::Result<(usize, &EtcdServer)> {
        let number = self.cluster.leader(&[])?;
        let leader = self.cluster.members().get(number);
        Ok((number, leader.ok_or_else(none)?))
    }

    /// Deletes the keys of all locks.
    fn delete_all(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        let (_, leader) = self.leader()?;
        lane.journal
            .forget(|| leader.delete("lockkeeper/").map(drop))
    }
}

fn none() -> io::Error {
    io::Error::other("the cluster has no member")
}

impl Store for Etcd {
    fn urls(&self) -> Vec<String> {
        let through = format!("etcd://{}", self.proxy.addr());
        [self.cluster.url(1), through]
            .map(|url| with_timeouts(&format!("{url}/")))
            .into()
    }

    fn proxy(&self) -> Option<&Proxy> {
        Some(&self.proxy)
    }

    /// After an election, which may follow the last fault and takes up to two time-outs of a second, every lease lives for
    /// its ttl and a time-out more.
    fn grace(&self) -> Duration {
        Duration::from_secs(4)
    }

    fn faults(&self) -> Vec<StoreFault<'_>> {
        vec![
            StoreFault::new("leader stopped", |lane| {
                let (_, leader) = self.leader()?;
                leader.stop()?;
                lane.spell();
                leader.cont()
            }),
            StoreFault::new("leader killed", |lane| {
                let (_, leader) = self.leader()?;
                leader.kill();
                lane.spell();
                leader.restart()
            }),
            StoreFault::new("leader cut off", |lane| {
                let (number, _) = self.leader()?;
                self.cluster.cut_off(number);
                lane.spell();
                self.cluster.join();
                Ok(())
            }),
            StoreFault::new("follower cut off", |lane| {
                let (number, _) = self.leader()?;
                self.cluster.cut_off((number + 1) % 3);
                lane.spell();
                self.cluster.join();
                Ok(())
            }),
            StoreFault::new("all keys deleted", |lane| self.delete_all(lane)),
        ]
    }

    /// Returns all keys but those that a namespace has once.
    fn entries(&self) -> io::Result<Vec<String>> {
        let (_, leader) = self.leader()?;
        let keys = leader.keys("lockkeeper/")?.into_iter().map(|it| it.key);
        Ok(keys.filter(|key| key.matches('/').count() > 2).collect())
    }
}
