//! An ensemble of three members.

use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use super::server::Peers;
use super::{ZooKeeperKind, ZooKeeperOptions, ZooKeeperServer};
use crate::cluster::Cluster;
use crate::daemon::free_ports;
use crate::network::Network;

/// Three members of a ZooKeeper ensemble.
pub type ZooKeeperEnsemble = Cluster<ZooKeeperServer>;

const MEMBERS: usize = ZooKeeperEnsemble::MEMBERS;

impl ZooKeeperEnsemble {
    /// Starts three members and returns when they have a leader.
    ///
    /// # Errors
    /// As [`ZooKeeperServer::start`].
    pub fn start(kind: ZooKeeperKind, options: &ZooKeeperOptions) -> io::Result<Self> {
        let network = Arc::<Network>::default();
        let peers = peers(&network).inspect_err(|_| network.close())?;
        Self::start_on(network, &peers, |peers| {
            ZooKeeperServer::start_among(kind, options, Some(peers))
        })
    }
}

/// A way for elections begins with the protocol's version and the sender's number, and then has the address at which the
/// sender can be reached. That would lead past the network.
const ADDRESS_AT: usize = 20;

/// Reads the beginning of a way for elections, and returns it with the port `back` in the sender's address.
fn election(client: &mut TcpStream, back: u16) -> Option<Vec<u8>> {
    let mut begin = vec![0; ADDRESS_AT];
    client.read_exact(&mut begin).ok()?;
    let (_, length) = begin.split_last_chunk::<4>()?;
    let mut address = vec![0; u32::from_be_bytes(*length).min(1000) as usize];
    client.read_exact(&mut address).ok()?;
    // All ports have five digits.
    let at = address.len().checked_sub(5)?;
    address.truncate(at);
    address.extend(back.to_string().bytes());
    begin.extend(address);
    Some(begin)
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
    network.know((0..MEMBERS).map(|it| it.to_string()).collect());
    for ((from, to), [follow, elect]) in doors {
        let back = shown_at((to, from)).map(|[_, elect]| elect);
        let (Some([follow_port, elect_port]), Some(back)) = (ports.get(to), back) else {
            continue;
        };
        let name = from.to_string();
        let greet = move |_: &mut TcpStream| Some((name.clone(), Vec::new()));
        network.lead(follow, (to, *follow_port), greet)?;
        let name = from.to_string();
        let greet = move |client: &mut TcpStream| Some((name.clone(), election(client, back)?));
        network.lead(elect, (to, *elect_port), greet)?;
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
