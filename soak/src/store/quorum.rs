//! A quorum of three Redis servers, each behind a proxy that half of the keepers use.

use std::io;
use std::net::SocketAddr;

use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisServer};

use super::redis::{keys, remove_data, start};
use super::{ServerSettings, Store, StoreFault, with_timeouts};
use crate::faults::Lane;

const MEMBERS: usize = 3;

pub(super) struct Quorum {
    members: Vec<Member>,
    settings: ServerSettings,
}

struct Member {
    proxy: Proxy,
    server: RedisServer,
}

impl Quorum {
    pub(super) fn start(kind: RedisKind, settings: ServerSettings) -> io::Result<Self> {
        let member = |_| {
            let server = start(kind)?;
            let proxy = Proxy::new(server.addr())?;
            Ok(Member { proxy, server })
        };
        let members = (0..MEMBERS).map(member).collect::<io::Result<_>>()?;
        Ok(Self { members, settings })
    }

    /// Returns the URL with the members at these addresses.
    fn url(&self, addr: impl Fn(&Member) -> SocketAddr) -> String {
        let members = self.members.iter().map(|member| {
            let url = with_timeouts(&member.server.url_via(addr(member)));
            // What belongs to the member's URL, and not to that of the quorum.
            format!("member={}", url.trim_end_matches('&').replace('&', "%26"))
        });
        let members: Vec<_> = members.collect();
        self.settings
            .with_grace(format!("quorum:?{}&", members.join("&")))
    }

    /// Returns a random member.
    fn any(&self, lane: &mut Lane<'_>) -> io::Result<&Member> {
        let member = lane.pick(&self.members);
        member.ok_or_else(|| io::Error::other("the quorum has no member"))
    }

    /// Flushes all members. A flush of a majority forgets leases, and so does that of one member of a bare majority.
    fn flush(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        lane.journal.forget(|| {
            let mut members = self.members.iter();
            members.try_for_each(|it| it.server.command(&["FLUSHALL"]).map(drop))
        })
    }
}

impl Store for Quorum {
    fn urls(&self) -> Vec<String> {
        vec![
            self.url(|member| member.server.addr()),
            self.url(|member| member.proxy.addr()),
        ]
    }

    fn proxy(&self) -> Option<&Proxy> {
        self.members.first().map(|member| &member.proxy)
    }

    /// No restart forgets a lease: a member that was started grants nothing for the ttl.
    fn faults(&self) -> Vec<StoreFault<'_>> {
        vec![
            StoreFault::new("member stopped", |lane| {
                let server = &self.any(lane)?.server;
                server.stop()?;
                lane.spell();
                server.cont()
            }),
            StoreFault::new("two members stopped", |lane| {
                let stopped = || self.members.iter().take(2).map(|member| &member.server);
                stopped().try_for_each(|server| server.stop())?;
                lane.spell();
                stopped().try_for_each(|server| server.cont())
            }),
            StoreFault::new("member restarted with its data", |lane| {
                let server = &self.any(lane)?.server;
                server.kill();
                lane.spell();
                server.restart()
            }),
            StoreFault::new("member restarted empty", |lane| {
                let server = &self.any(lane)?.server;
                server.kill();
                remove_data(server)?;
                lane.spell();
                server.restart()
            }),
            StoreFault::new("member cut off", |lane| {
                let proxy = &self.any(lane)?.proxy;
                proxy.set(Fault::Dark);
                lane.spell();
                proxy.set(Fault::Pass);
                Ok(())
            }),
            StoreFault::new("all keys flushed", |lane| self.flush(lane)),
        ]
    }

    fn entries(&self) -> io::Result<Vec<String>> {
        keys(self.members.iter().map(|member| &member.server))
    }
}
