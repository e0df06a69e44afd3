//! A quorum of three Redis servers, each behind two proxies that half of the keepers use each.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockkeeper_testkit::{Fault, Proxy, RedisOptions, RedisServer, TestServer};

use super::redis::{remove_data, start_server};
use super::{Network, POLL, ServerSettings, Store, StoreFault, WATCHED, with_timeouts};
use crate::faults::Lane;

const MEMBERS: usize = 3;

/// How much later a slow member answers.
const SLOW: Duration = Duration::from_millis(300);

struct Member {
    /// It is only slow at times.
    near: Arc<Proxy>,
    proxy: Arc<Proxy>,
    server: Arc<RedisServer>,
}

impl Member {
    fn start() -> io::Result<Self> {
        let server = start_server(RedisOptions::new())?;
        Ok(Self {
            near: Arc::new(Proxy::new(server.addr())?),
            proxy: Arc::new(Proxy::new(server.addr())?),
            server,
        })
    }
}

/// No restart forgets a lease: a member that was started grants nothing for the ttl.
pub(super) fn start(settings: &ServerSettings) -> io::Result<Store> {
    let members = (0..MEMBERS).map(|_| Member::start());
    let members: Arc<[Member]> = members.collect::<io::Result<_>>()?;
    let urls = [
        url(&members, settings, |member| &member.near),
        url(&members, settings, |member| &member.proxy),
    ];
    let [several, slow, flushed] = [(); 3].map(|()| Arc::clone(&members));
    let faults = vec![
        on_any("member stopped", &members, |member, lane| {
            member.server.stop()?;
            lane.spell();
            member.server.cont()
        }),
        StoreFault::new("two members stopped", move |lane| {
            let stopped = || several.iter().take(2).map(|member| &member.server);
            stopped().try_for_each(|server| server.stop())?;
            lane.spell();
            stopped().try_for_each(|server| server.cont())
        }),
        on_any(
            "member restarted with its data",
            &members,
            |member, lane| {
                member.server.kill();
                lane.spell();
                member.server.restart()
            },
        ),
        on_any("member restarted empty", &members, |member, lane| {
            member.server.kill();
            remove_data(&member.server)?;
            lane.spell();
            member.server.restart()
        }),
        on_any("member cut off", &members, |member, lane| {
            member.proxy.set(Fault::Dark);
            lane.spell();
            member.proxy.set(Fault::Pass);
            Ok(())
        }),
        StoreFault::new("member slow", move |lane| slow_down(&slow, lane)),
        StoreFault::new("all keys flushed", move |lane| flush(&flushed, lane)),
    ];
    let servers = members
        .iter()
        .map(|member| -> Arc<dyn TestServer> { member.server.clone() });
    Ok(Store {
        faults,
        network: match members.first() {
            Some(member) => Network::Proxy(Arc::clone(&member.proxy)),
            None => Network::None,
        },
        ..Store::new(urls.into(), servers.collect())
    })
}

/// Returns the URL with the members behind these proxies.
fn url(members: &[Member], settings: &ServerSettings, proxy: fn(&Member) -> &Proxy) -> String {
    let members = members.iter().map(|member| {
        let url = TestServer::url_via(&*member.server, proxy(member).addr());
        let url = with_timeouts(&url);
        // What belongs to the member's URL, and not to that of the quorum.
        format!("member={}&", url.trim_end_matches('&').replace('&', "%26"))
    });
    settings.with_grace(format!("quorum:?{}", members.collect::<String>()))
}

/// Breaks a random member.
fn on_any(
    kind: &'static str,
    members: &Arc<[Member]>,
    act: fn(&Member, &mut Lane<'_>) -> io::Result<()>,
) -> StoreFault {
    let members = Arc::clone(members);
    StoreFault::new(kind, move |lane| match lane.pick(&members) {
        Some(member) => act(member, lane),
        None => Ok(()),
    })
}

/// Makes a member slow, with which the names must be granted all along. The network before the first one is broken at
/// any time, so that is another one.
fn slow_down(members: &[Member], lane: &mut Lane<'_>) -> io::Result<()> {
    let slow = lane.pick(members.get(1..).unwrap_or_default());
    let slow = slow.ok_or_else(|| io::Error::other("the quorum has one member"))?;
    let set = |fault| [&slow.near, &slow.proxy].map(|proxy| proxy.set(fault));
    set(Fault::DelayReplies(SLOW));
    lane.watch("a slow member", None, WATCHED);
    set(Fault::Pass);
    Ok(())
}

/// How long a flush waits for the clocks.
const CAUGHT_UP: Duration = Duration::from_secs(10);

/// Flushes all members. A flush of a majority forgets leases, and so does that of one member of a bare majority.
///
/// Tokens are ahead of the clocks by what messages were late shortly before. They would fall back with the members, which
/// docs/stores/quorum.md says. So the flush waits until the clocks have caught up.
fn flush(members: &[Member], lane: &mut Lane<'_>) -> io::Result<()> {
    let limit = Instant::now() + CAUGHT_UP;
    while is_ahead(members)? {
        if Instant::now() >= limit || !lane.pause_for(POLL) {
            return Ok(());
        }
    }
    let flush = || members.iter().try_for_each(|member| member.server.wipe());
    lane.journal.forget(flush)
}

/// Returns whether the last epoch of a member is later than now. It is in microseconds.
fn is_ahead(members: &[Member]) -> io::Result<bool> {
    for member in members {
        let last = member
            .server
            .command(&["GET", "lockkeeper:{default}:epoch"])?;
        let last = last.text().and_then(|text| text.parse().ok());
        let last = Duration::from_micros(last.unwrap_or_default());
        if UNIX_EPOCH + last > SystemTime::now() {
            return Ok(true);
        }
    }
    Ok(false)
}
