//! A cluster of three members.

use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::json;

use super::client::number;
use super::server::Peers;
use super::{EtcdKind, EtcdOptions, EtcdServer};
use crate::cluster::Cluster;
use crate::daemon::free_ports;
use crate::network::{Greeting, Network};

/// Three members of an etcd cluster.
pub type EtcdCluster = Cluster<EtcdServer>;

impl EtcdCluster {
    /// Starts three members and returns when they have a leader.
    ///
    /// # Errors
    /// As [`EtcdServer::start`].
    pub fn start(kind: EtcdKind, options: &EtcdOptions) -> io::Result<Self> {
        let network = Arc::<Network>::default();
        let ports: [u16; Self::MEMBERS] = free_ports()?;
        let mut doors = Vec::new();
        for (number, port) in ports.into_iter().enumerate() {
            let door = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            doors.push(format!("m{number}=http://{}", door.local_addr()?));
            network.lead(door, (number, port), greeting)?;
        }
        let peers = ports.into_iter().enumerate().map(|(number, port)| Peers {
            name: format!("m{number}"),
            port,
            all: doors.join(","),
        });
        let cluster = Self::start_on(network, &Vec::from_iter(peers), |peers| {
            EtcdServer::start_among(kind, options, Some(peers))
        })?;
        let ids = cluster.members().iter();
        let ids = ids.map(|member| Ok(format!("{:x}", id(member)?)));
        cluster.network().know(ids.collect::<io::Result<_>>()?);
        Ok(cluster)
    }

    /// Adds a member that learns, and starts it: it serves no client until it is promoted. For the first five seconds, the
    /// members add one only if they were started with `--strict-reconfig-check=false`.
    ///
    /// # Errors
    /// As [`EtcdServer::start`], or the cluster does not add it.
    pub fn add_learner(&self, options: &EtcdOptions) -> io::Result<EtcdServer> {
        let [port] = free_ports()?;
        let url = format!("http://127.0.0.1:{port}");
        let added = json!({ "peerURLs": [url], "isLearner": true });
        let leader = self.member(self.leader(&[])?);
        leader.call("/v3/cluster/member/add", &added)?;
        let all = leader.peers.as_ref().map_or("", |peers| &peers.all);
        let peers = Peers {
            name: "learner".to_owned(),
            port,
            all: format!("{all},learner={url}"),
        };
        let options = options.clone().arg("--initial-cluster-state=existing");
        EtcdServer::start_among(leader.kind(), &options, Some(&peers))
    }

    /// Makes the leader hand over to the next member, and returns when that is the leader.
    ///
    /// # Errors
    /// The member number `leader` is not the leader, or it hands over to none.
    pub fn move_leadership(&self, leader: usize) -> io::Result<()> {
        let next = id(self.member(leader + 1))?;
        let to = json!({ "targetID": next.to_string() });
        let leader = self.member(leader);
        leader
            .call("/v3/maintenance/transfer-leadership", &to)
            .map(drop)
    }
}

fn id(member: &EtcdServer) -> io::Result<u64> {
    let status = member.call("/v3/maintenance/status", &json!({}))?;
    Ok(number(&status, "/header/member_id"))
}

/// Reads the head of a connection's first request, which has the id of the member that has opened it.
fn greeting(client: &mut TcpStream) -> Option<Greeting> {
    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = client.read(&mut buffer).ok().filter(|count| *count > 0)?;
        head.extend(buffer.get(..count)?);
    }
    let text = String::from_utf8_lossy(&head);
    let mut lines = text.lines().filter_map(|line| line.split_once(": "));
    let from = lines.find(|(name, _)| name.eq_ignore_ascii_case("x-server-from"));
    let from = from.map_or("", |(_, id)| id).trim().to_owned();
    Some((from, head))
}
