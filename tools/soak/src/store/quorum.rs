//! A quorum of three Redis servers, each behind two proxies that half of the keepers use each.

use std::io;
use std::time::Duration;

use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisOptions, RedisServer};

use super::redis::{keys, remove_data, start};
use super::{ServerSettings, Store, StoreFault, WATCHED, with_timeouts};
use crate::faults::Lane;

const MEMBERS: usize = 3;

/// How much later a slow member answers.
const SLOW: Duration = Duration::from_millis(300);

pub(super) struct Quorum {
    members: Vec<Member>,
    settings: ServerSettings,
}

struct Member {
    /// It is only slow at times.
    near: Proxy,
    proxy: Proxy,
    server: RedisServer,
}

impl Quorum {
    pub(super) fn start(kind: RedisKind, settings: ServerSettings) -> io::Result<Self> {
        let member = |_| {
            let server = start(kind, RedisOptions::new())?;
            Ok(Member {
                near: Proxy::new(server.addr())?,
                proxy: Proxy::new(server.addr())?,
                server,
            })
        };
        let members = (0..MEMBERS).map(member).collect::<io::Result<_>>()?;
        Ok(Self { members, settings })
    }

    /// Returns the URL with the members behind these proxies.
    fn url(&self, proxy: impl Fn(&Member) -> &Proxy) -> String {
        let members = self.members.iter().map(|member| {
            let url = with_timeouts(&member.server.url_via(proxy(member).addr()));
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

    /// Makes a member slow, with which the names must be granted all along. The network before the first one is broken at
    /// any time, so that is another one.
    fn slow_down(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        let slow = lane.pick(self.members.get(1..).unwrap_or_default());
        let slow = slow.ok_or_else(|| io::Error::other("the quorum has one member"))?;
        let set = |fault| [&slow.near, &slow.proxy].map(|proxy| proxy.set(fault));
        set(Fault::DelayReplies(SLOW));
        lane.watch("a slow member", None, WATCHED);
        set(Fault::Pass);
        Ok(())
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
            self.url(|member| &member.near),
            self.url(|member| &member.proxy),
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
            StoreFault::new("member slow", |lane| self.slow_down(lane)),
            StoreFault::new("all keys flushed", |lane| self.flush(lane)),
        ]
    }

    fn entries(&self) -> io::Result<Vec<String>> {
        keys(self.members.iter().map(|member| &member.server))
    }
}
