//! Several servers that are one store: the clusters of Consul and etcd, and the ensemble of ZooKeeper.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::thread;

use crate::daemon::{Daemon, START};
use crate::network::Network;
use crate::test_server::{Facts, TestServer};
use crate::until::{found_within, wait_until};

/// A server that is a member of a [`Cluster`].
pub trait Member: TestServer + Deref<Target = Daemon> {
    /// The scheme of the cluster's URL.
    const SCHEME: &'static str;

    /// Returns whether this member leads the others.
    fn leads(&self) -> bool;
}

/// A [`Member`] whose connections to the others lead through a network that a test can cut.
pub trait NetworkedMember: Member {}

/// Three members that run until this is dropped. All methods can be called from any thread.
#[derive(Debug)]
pub struct Cluster<M: Member> {
    members: Vec<M>,
    network: Arc<Network>,
}

impl<M: Member> Cluster<M> {
    /// The number of members.
    pub(crate) const MEMBERS: usize = 3;

    /// Starts a member for each part, all at once: none of them replies before most of them run.
    pub(crate) fn start_on<P: Sync>(
        network: Arc<Network>,
        parts: &[P],
        start: impl Fn(&P) -> io::Result<M> + Sync,
    ) -> io::Result<Self> {
        match together(parts, start) {
            Ok(members) => Ok(Self { members, network }),
            Err(error) => {
                network.close();
                Err(error)
            }
        }
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// Returns the members.
    #[must_use]
    pub fn members(&self) -> &[M] {
        &self.members
    }

    /// Returns a member by its number, which is counted on from the first one after the last.
    ///
    /// # Panics
    /// Never: a cluster has members.
    #[must_use]
    #[allow(clippy::indexing_slicing, reason = "the number is in range")]
    pub fn member(&self, number: usize) -> &M {
        &self.members[number % self.members.len()]
    }

    /// Returns `SCHEME://HOST:PORT,HOST:PORT,HOST:PORT`, with the member number `first` first.
    #[must_use]
    pub fn url(&self, first: usize) -> String {
        let addr = |number| self.member(first + number).addr().to_string();
        let hosts: Vec<_> = (0..self.members.len()).map(addr).collect();
        format!("{}://{}", M::SCHEME, hosts.join(","))
    }

    /// Returns `SCHEME://HOST:PORT` of one member.
    #[must_use]
    pub fn url_of(&self, number: usize) -> String {
        format!("{}://{}", M::SCHEME, self.member(number).addr())
    }

    /// Waits until a member leads, and returns its number. Members of the numbers `but` are not asked, since they are
    /// stopped or cut off.
    ///
    /// # Errors
    /// There is none within 90 s.
    pub fn leader(&self, but: &[usize]) -> io::Result<usize> {
        let leader = found_within(START, || {
            let mut members = self.members.iter().enumerate();
            let leads = |(number, it): &(usize, &M)| !but.contains(number) && it.leads();
            Ok(members.find(leads).map(|(number, _)| number))
        })?;
        leader.ok_or_else(|| io::Error::other("the members elect no leader"))
    }
}

impl<M: NetworkedMember> Cluster<M> {
    /// Cuts a member off from the others; clients still reach it.
    pub fn cut_off(&self, member: usize) {
        self.network.cut_off(member);
    }

    /// Ends [`cut_off`](Self::cut_off).
    pub fn join(&self) {
        self.network.join();
    }
}

impl<M: Member> Drop for Cluster<M> {
    fn drop(&mut self) {
        TestServer::kill(self);
        self.network.close();
    }
}

/// Does something with all members at once.
fn together<P: Sync, T: Send>(
    members: &[P],
    act: impl Fn(&P) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    let act = &act;
    thread::scope(|scope| {
        let acting = members.iter().map(|it| scope.spawn(move || act(it)));
        let acting: Vec<_> = acting.collect();
        let joined = acting.into_iter().map(|thread| {
            let panicked = |_| Err(io::Error::other("a thread has panicked"));
            thread.join().unwrap_or_else(panicked)
        });
        joined.collect()
    })
}

/// The leader is asked what the store contains.
impl<M: Member> TestServer for Cluster<M> {
    fn facts(&self) -> Facts {
        self.member(0).facts()
    }

    fn url(&self) -> String {
        format!("{}/?", self.url(0))
    }

    fn processes(&self) -> Vec<&Daemon> {
        self.members.iter().map(|member| &**member).collect()
    }

    fn restart(&self) -> io::Result<()> {
        TestServer::kill(self);
        together(&self.members, M::restart).map(drop)
    }

    fn wipe(&self) -> io::Result<()> {
        self.member(self.leader(&[])?).wipe()
    }

    /// Waits until all members reply and follow one leader: one that was stopped takes itself for the leader for a moment.
    fn reset(&self) -> io::Result<()> {
        wait_until(|| {
            let leaders = self.members.iter().filter(|it| it.leads()).count();
            Ok(leaders == 1 && self.members.iter().all(|it| it.leftovers().is_ok()))
        })?;
        self.wipe()
    }

    fn end_lease(&self, namespace: &str, name: &str) -> io::Result<()> {
        let leader = self.member(self.leader(&[])?);
        leader.end_lease(namespace, name)
    }

    fn waiters(&self, namespace: &str, name: &str) -> io::Result<usize> {
        let leader = self.member(self.leader(&[])?);
        leader.waiters(namespace, name)
    }

    fn leftovers(&self) -> io::Result<Vec<String>> {
        self.member(self.leader(&[])?).leftovers()
    }
}
