//! An ensemble of three members.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::thread;

use super::network::Network;
use super::server::Peers;
use super::{ZooKeeperKind, ZooKeeperOptions, ZooKeeperServer};
use crate::daemon::{START, free_ports};
use crate::until::found_within;

/// Three members that run until this is dropped. All methods can be called from any thread.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    members: Vec<ZooKeeperServer>,
    network: Arc<Network>,
}

const MEMBERS: usize = 3;

impl ZooKeeperEnsemble {
    /// Starts three members and returns when they have a leader.
    ///
    /// # Errors
    /// As [`ZooKeeperServer::start`].
    pub fn start(kind: ZooKeeperKind, options: &ZooKeeperOptions) -> io::Result<Self> {
        let network = Arc::<Network>::default();
        let peers = peers(&network).inspect_err(|_| network.close())?;
        let members = together(&peers, |peers| {
            ZooKeeperServer::start_among(kind, options, Some(peers))
        });
        let members = members.inspect_err(|_| network.close())?;
        Ok(Self { members, network })
    }

    /// Returns the members.
    #[must_use]
    pub fn members(&self) -> &[ZooKeeperServer] {
        &self.members
    }

    /// Returns `zookeeper://HOST:PORT,HOST:PORT,HOST:PORT`, with the member number `first` first.
    #[must_use]
    pub fn url(&self, first: usize) -> String {
        let addr = |it: &ZooKeeperServer| it.addr().to_string();
        let mut hosts: Vec<_> = self.members.iter().map(addr).collect();
        hosts.rotate_left(first % MEMBERS);
        format!("zookeeper://{}", hosts.join(","))
    }

    /// Waits until a member leads, and returns its number. Members of the numbers `but` are not asked, since they are
    /// stopped or cut off.
    ///
    /// # Errors
    /// There is none within 90 s.
    pub fn leader(&self, but: &[usize]) -> io::Result<usize> {
        let leads = |it: &ZooKeeperServer| {
            let state = it.state();
            state.is_ok_and(|state| state.contains("Mode: leader"))
        };
        let leader = found_within(START, || {
            let mut asked = (0..MEMBERS).filter(|number| !but.contains(number));
            Ok(asked.find(|number| self.members.get(*number).is_some_and(leads)))
        })?;
        leader.ok_or_else(|| io::Error::other("the members elect no leader"))
    }

    /// Kills the members that run, and starts all on their former ports.
    ///
    /// # Errors
    /// A member did not start: its log is in the error.
    pub fn restart_all(&self) -> io::Result<()> {
        self.members.iter().for_each(|member| member.kill());
        together(&self.members, |member| member.restart()).map(drop)
    }

    /// Cuts a member off from the others; clients still reach it.
    pub fn cut_off(&self, member: usize) {
        self.network.cut_off(member);
    }

    /// Ends [`cut_off`](Self::cut_off).
    pub fn join(&self) {
        self.network.join();
    }
}

impl Drop for ZooKeeperEnsemble {
    fn drop(&mut self) {
        self.members.iter().for_each(|member| member.kill());
        self.network.close();
    }
}

/// Starts all members at once: none of them replies before most of them run.
fn together<M: Sync, T: Send>(
    members: &[M],
    start: impl Fn(&M) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    thread::scope(|scope| {
        let starting: Vec<_> = members
            .iter()
            .map(|member| scope.spawn(|| start(member)))
            .collect();
        let started = starting.into_iter().map(|member| {
            let panicked = |_| Err(io::Error::other("a thread has panicked"));
            member.join().unwrap_or_else(panicked)
        });
        started.collect()
    })
}

/// Makes the network, and the configuration of each member: each knows the others by ways of its own.
fn peers(network: &Arc<Network>) -> io::Result<Vec<Peers>> {
    // Of each member, the ports for followers and for elections.
    let ports: [u16; 2 * MEMBERS] = free_ports()?;
    let ports: Vec<[u16; 2]> = ports.as_chunks().0.to_vec();
    let door = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let port = |door: &TcpListener| Ok::<_, io::Error>(door.local_addr()?.port());
    let mut doors = Vec::new();
    for from in 0..MEMBERS {
        for to in (0..MEMBERS).filter(|to| *to != from) {
            doors.push(((from, to), [door()?, door()?]));
        }
    }
    let mut shown = Vec::new();
    for (way, [follow, elect]) in &doors {
        shown.push((*way, [port(follow)?, port(elect)?]));
    }
    let shown_at = |way| {
        let found = shown.iter().find(|(other, _)| *other == way);
        found.map(|(_, ports)| *ports)
    };
    for ((from, to), [follow, elect]) in doors {
        let back = shown_at((to, from)).map(|[_, elect]| elect);
        let Some([follow_port, elect_port]) = ports.get(to) else {
            continue;
        };
        network.lead(follow, (from, to), *follow_port, None)?;
        network.lead(elect, (from, to), *elect_port, back)?;
    }
    let line = |from, to| {
        let own = || ports.get(to).copied();
        let [follow, elect] = shown_at((from, to)).or_else(own)?;
        Some(format!("server.{}=127.0.0.1:{follow}:{elect}", to + 1))
    };
    Ok((0..MEMBERS)
        .map(|from| Peers {
            id: from + 1,
            lines: (0..MEMBERS).filter_map(|to| line(from, to)).collect(),
        })
        .collect())
}
