//! A cluster of three members.

use std::io;
use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};

use super::client::number;
use super::network::Network;
use super::server::Peers;
use super::{EtcdKind, EtcdOptions, EtcdServer};
use crate::daemon::{START, free_ports};
use crate::until::found_within;

/// Three members that run until this is dropped. All methods can be called from any thread.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
    network: Arc<Network>,
    /// How the members reach each other: `NAME=URL,NAME=URL`.
    all: String,
}

impl EtcdCluster {
    /// Starts three members and returns when they have a leader.
    ///
    /// # Errors
    /// As [`EtcdServer::start`].
    pub fn start(kind: EtcdKind, options: &EtcdOptions) -> io::Result<Self> {
        let network = Arc::<Network>::default();
        let ports: [u16; 3] = free_ports()?;
        let mut doors = Vec::new();
        for (number, port) in ports.into_iter().enumerate() {
            let door = network.lead_to(number, port)?;
            doors.push(format!("m{number}=http://{door}"));
        }
        let all = doors.join(",");
        let start = |number: usize, port| {
            let peers = Peers {
                name: format!("m{number}"),
                port,
                all: all.clone(),
            };
            EtcdServer::start_among(kind, options, Some(&peers))
        };
        // None of them replies before most of them run.
        let members = thread::scope(|scope| {
            let numbered = ports.into_iter().enumerate();
            let starting: Vec<_> = numbered
                .map(|(number, port)| scope.spawn(move || start(number, port)))
                .collect();
            let members = starting.into_iter().map(|member| {
                let panicked = |_| Err(io::Error::other("a thread has panicked"));
                member.join().unwrap_or_else(panicked)
            });
            members.collect::<io::Result<Vec<_>>>()
        });
        let cluster = Self {
            members: members.inspect_err(|_| network.close())?,
            network,
            all,
        };
        let ids = cluster
            .members
            .iter()
            .map(|member| Ok(format!("{:x}", id(member)?)));
        cluster.network.know(ids.collect::<io::Result<_>>()?);
        Ok(cluster)
    }

    /// Returns the members.
    #[must_use]
    pub fn members(&self) -> &[EtcdServer] {
        &self.members
    }

    /// Returns `etcd://HOST:PORT,HOST:PORT,HOST:PORT`, with the member number `first` first.
    #[must_use]
    pub fn url(&self, first: usize) -> String {
        let mut hosts: Vec<_> = self
            .members
            .iter()
            .map(|it| it.addr().to_string())
            .collect();
        hosts.rotate_left(first % 3);
        format!("etcd://{}", hosts.join(","))
    }

    /// Waits until the members have a leader, and returns its number. Members of the numbers `but` are not asked,
    /// since they are stopped or cut off.
    ///
    /// # Errors
    /// There is none within 90 s.
    pub fn leader(&self, but: &[usize]) -> io::Result<usize> {
        let leader = found_within(START, || {
            let mut others = (0..self.members.len()).filter(|number| !but.contains(number));
            let leads = |number: &usize| self.members.get(*number).is_some_and(is_leader);
            Ok(others.find(leads))
        })?;
        leader.ok_or_else(|| io::Error::other("the members elect no leader"))
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
        let leader = self.member(self.leader(&[])?)?;
        leader.call("/v3/cluster/member/add", &added)?;
        let peers = Peers {
            name: "learner".to_owned(),
            port,
            all: format!("{},learner={url}", self.all),
        };
        let options = options.clone().arg("--initial-cluster-state=existing");
        EtcdServer::start_among(leader.kind(), &options, Some(&peers))
    }

    /// Makes the leader hand over to the next member, and returns when that is the leader.
    ///
    /// # Errors
    /// The member number `leader` is not the leader, or it hands over to none.
    pub fn move_leadership(&self, leader: usize) -> io::Result<()> {
        let next = id(self.member((leader + 1) % self.members.len())?)?;
        let to = json!({ "targetID": next.to_string() });
        let leader = self.member(leader)?;
        leader
            .call("/v3/maintenance/transfer-leadership", &to)
            .map(drop)
    }

    fn member(&self, number: usize) -> io::Result<&EtcdServer> {
        let none = || io::Error::other("there is no such member");
        self.members.get(number).ok_or_else(none)
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

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        self.members.iter().for_each(|member| member.kill());
        self.network.close();
    }
}

fn id(member: &EtcdServer) -> io::Result<u64> {
    let status = member.call("/v3/maintenance/status", &json!({}))?;
    Ok(number(&status, "/header/member_id"))
}

fn is_leader(member: &EtcdServer) -> bool {
    let status = member.call("/v3/maintenance/status", &json!({}));
    let leads = |status: Value| number(&status, "/leader") == number(&status, "/header/member_id");
    status.is_ok_and(leads)
}
