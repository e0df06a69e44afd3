//! Refuses members of two clusters. Otherwise two programs could hold one lock, each in its own cluster.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind};

use super::Connection;
use super::connector::{Connector, EtcdMember};

impl Connector {
    /// Compares the clusters of all members that are in reach, within `limit`.
    pub(crate) fn compare_clusters(&self, limit: Duration) -> Result<(), Error> {
        if self.members().len() == 1 {
            return Ok(());
        }
        let is_unknown = |member: &&EtcdMember| member.learned.load(Ordering::Relaxed) == 0;
        // All members are asked at the same time, so that several silent members take the time of one.
        let answers: Vec<_> = thread::scope(|scope| {
            let unknown = self.members().iter().filter(is_unknown);
            let asked: Vec<_> = unknown
                .map(|member| {
                    let ask = move || self.cluster_of(member, limit);
                    (member, thread::Builder::new().spawn_scoped(scope, ask))
                })
                .collect();
            let told = asked
                .into_iter()
                .map(|(member, thread)| Some((member, thread.ok()?.join().ok()?.ok()?)));
            told.flatten().collect()
        });
        let mut answers = answers.into_iter();
        answers.try_for_each(|(member, cluster)| self.check_cluster(member, cluster))
    }

    fn cluster_of(&self, member: &EtcdMember, limit: Duration) -> Result<u64, Error> {
        let told = self.ask(member, None, limit, Connection::cluster);
        Ok(told?.1)
    }

    /// Refuses a member that is not in the cluster of the other listed members.
    ///
    /// A new cluster may have replaced the former one at its addresses. So a silent member of the former cluster is
    /// ignored if this member was in that cluster as well.
    pub(super) fn check_cluster(&self, member: &EtcdMember, cluster: u64) -> Result<(), Error> {
        let order = Ordering::Relaxed;
        let former = member.learned.load(order);
        let mut told = vec![(member, cluster)];
        for other in self.members() {
            let known = other.learned.load(order);
            if std::ptr::eq(other, member) || [0, cluster].contains(&known) {
                continue;
            }
            match self.cluster_of(other, self.limit / 4) {
                Ok(now) if now == cluster => told.push((other, now)),
                Err(error) if former == known && error.is_retryable() => told.push((other, 0)),
                _ => return Err(other_cluster(member, other)),
            }
        }
        for (member, cluster) in told {
            member.learned.store(cluster, order);
        }
        Ok(())
    }
}

fn other_cluster(member: &EtcdMember, other: &EtcdMember) -> Error {
    let [host, other] = [member, other].map(|it| it.server().address());
    let text = format!(
        "the etcd servers at {host} and {other} are of two clusters; name the members of one cluster in the URL, and restart the program if the cluster was replaced"
    );
    Error::new(ErrorKind::Incompatible, text)
}
