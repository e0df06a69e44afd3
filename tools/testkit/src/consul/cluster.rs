//! A cluster of three servers.

use std::io;
use std::thread;

use super::server::Peers;
use super::{ConsulKind, ConsulOptions, ConsulServer};
use crate::daemon::{START, free_ports};
use crate::until::found_within;

/// Three servers that run until this is dropped. All methods can be called from any thread.
#[derive(Debug)]
pub struct ConsulCluster {
    members: Vec<ConsulServer>,
}

impl ConsulCluster {
    /// Starts three servers and returns when they have a leader.
    ///
    /// # Errors
    /// As [`ConsulServer::start`].
    pub fn start(kind: ConsulKind, options: &ConsulOptions) -> io::Result<Self> {
        let (servers, all): ([u16; 3], [u16; 3]) = (free_ports()?, free_ports()?);
        let start = |number: usize, ports| {
            let peers = Peers {
                name: format!("n{number}"),
                ports,
                all: all.into(),
            };
            ConsulServer::start_among(kind, options, &peers)
        };
        // None of them replies before all of them run.
        let members = thread::scope(|scope| {
            let ports = servers.into_iter().zip(all).enumerate();
            let starting: Vec<_> = ports
                .map(|(number, (server, gossip))| {
                    scope.spawn(move || start(number, [server, gossip]))
                })
                .collect();
            starting.into_iter().map(joined).collect::<io::Result<_>>()
        });
        Ok(Self { members: members? })
    }

    /// Returns the servers.
    #[must_use]
    pub fn members(&self) -> &[ConsulServer] {
        &self.members
    }

    /// Returns `consul://HOST:PORT,HOST:PORT,HOST:PORT`, with the server number `first` first.
    #[must_use]
    pub fn url(&self, first: usize) -> String {
        let members = self.members.iter();
        let mut hosts: Vec<_> = members.map(|it| it.addr().to_string()).collect();
        hosts.rotate_left(first % 3);
        format!("consul://{}", hosts.join(","))
    }

    /// Waits until the servers have a leader, and returns its number. Servers of the numbers `but` are not asked, since
    /// they are stopped.
    ///
    /// # Errors
    /// There is none within 90 s.
    pub fn leader(&self, but: &[usize]) -> io::Result<usize> {
        let leader = found_within(START, || {
            let mut members = self.members.iter().enumerate();
            let leads = |(number, it): &(usize, &ConsulServer)| !but.contains(number) && it.leads();
            Ok(members.find(leads).map(|(number, _)| number))
        })?;
        leader.ok_or_else(|| io::Error::other("the servers elect no leader"))
    }

    /// Kills the servers that run, and starts all on their former ports.
    pub(super) fn restart_all(&self) -> io::Result<()> {
        self.members.iter().for_each(|member| member.kill());
        thread::scope(|scope| {
            // None of them replies before most of them run.
            let members = self.members.iter();
            let starting: Vec<_> = members.map(|it| scope.spawn(|| it.restart())).collect();
            starting.into_iter().try_for_each(joined)
        })
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    let panicked = |_| Err(io::Error::other("a thread has panicked"));
    thread.join().unwrap_or_else(panicked)
}

impl Drop for ConsulCluster {
    fn drop(&mut self) {
        self.members.iter().for_each(|member| member.kill());
    }
}
