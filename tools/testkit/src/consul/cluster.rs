//! A cluster of three servers.

use std::io;

use super::server::Peers;
use super::{ConsulKind, ConsulOptions, ConsulServer};
use crate::cluster::Cluster;
use crate::daemon::free_ports;
use crate::network::Network;

/// Three servers of a Consul cluster.
pub type ConsulCluster = Cluster<ConsulServer>;

impl ConsulCluster {
    /// Starts three servers and returns when they have a leader.
    ///
    /// # Errors
    /// As [`ConsulServer::start`].
    pub fn start(kind: ConsulKind, options: &ConsulOptions) -> io::Result<Self> {
        let (servers, all): ([u16; Self::MEMBERS], [u16; Self::MEMBERS]) =
            (free_ports()?, free_ports()?);
        let ports = servers.into_iter().zip(all).enumerate();
        let peers = ports.map(|(number, (server, gossip))| Peers {
            name: format!("n{number}"),
            ports: [server, gossip],
            all: all.into(),
        });
        Self::start_on(Network::default().into(), &Vec::from_iter(peers), |peers| {
            ConsulServer::start_among(kind, options, peers)
        })
    }
}
