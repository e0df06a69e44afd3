//! A server that crashes, loses its data or its clients, or stalls.

use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, Released};
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer, until};

use super::Case;
use super::store::{listening, open, start};
use crate::common::{Keepers as _, Memory, contend_during};

pub(super) const CASES: &[Case] = &[
    ("restarted_before_release", restarted_before_release),
    (
        "killed_while_connections_are_pooled",
        killed_while_connections_are_pooled,
    ),
    ("flushed_while_waiting", |kind| {
        contend_during_command(kind, Memory::Lost, &["FLUSHALL"]);
    }),
    ("subscribers_killed", subscribers_killed),
    ("pooled_connections_killed", |kind| {
        contend_during_command(kind, Memory::Kept, &["CLIENT", "KILL", "TYPE", "normal"]);
    }),
    ("clients_paused", |kind| {
        contend_during_command(kind, Memory::Kept, &["CLIENT", "PAUSE", "2500"]);
    }),
    ("server_asleep", |kind| {
        contend_during_command(kind, Memory::Kept, &["DEBUG", "SLEEP", "2.5"]);
    }),
    ("scripts_flushed", scripts_flushed),
];

fn contend_during_command(kind: RedisKind, memory: Memory, command: &[&str]) {
    let server = start(kind);
    contend_during(&server, memory, || {
        server.command(command).unwrap();
    });
}

/// Starts a server that listens on TCP, with TLS and on a unix socket; returns the URL of each, ready for
/// `key=value`.
fn start_on_all_transports(kind: RedisKind) -> (RedisServer, [String; 3]) {
    let server = RedisServer::start(kind, &RedisOptions::new().tls()).unwrap();
    let authority = server.certificates().unwrap().authority.display();
    let urls = [
        format!("{}/?", server.url()),
        format!("{}/?ca_file={authority}&", server.tls_url().unwrap()),
        format!("unix:{}?", server.socket().display()),
    ];
    let urls = urls.map(|url| format!("{url}response_timeout=5s&"));
    (server, urls)
}

/// The restart closes the pooled connection that the release uses.
fn restarted_before_release(kind: RedisKind) {
    let (server, urls) = start_on_all_transports(kind);
    for url in urls {
        // No renewal takes place before the release.
        let keeper = lockkeeper::open(&format!("{url}ttl=60s")).unwrap();
        let held = keeper.lock("a").unwrap();
        server.restart().unwrap();
        let rival = lockkeeper::open(&url).unwrap();
        let next = rival.lock("a").unwrap();
        assert_eq!(held.release().unwrap(), Released::AlreadyLost, "{url}");
        assert!(next.is_held());
        assert_eq!(next.release().unwrap(), Released::Done);
    }
    server.assert_clean();
}

/// A request that was never sent fails at once as unavailable, and not as unknown.
fn killed_while_connections_are_pooled(kind: RedisKind) {
    let (server, urls) = start_on_all_transports(kind);
    for url in urls {
        let keeper = lockkeeper::open(&url).unwrap();
        let unavailable = |error: lockkeeper::Error| {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error:?}");
        };
        server.kill();
        unavailable(keeper.try_lock("a").unwrap_err());
        server.restart().unwrap();
        let held = keeper.lock("a").unwrap();
        server.kill();
        unavailable(held.renew().unwrap_err());
        server.restart().unwrap();
        let held = keeper.lock("b").unwrap();
        server.kill();
        unavailable(held.release().unwrap_err());
        server.restart().unwrap();
    }
    server.assert_clean();
}

fn subscribers_killed(kind: RedisKind) {
    let server = start(kind);
    contend_during(&server, Memory::Kept, || {
        // The holder, and three waiters.
        until("all are subscribed", || listening(&server) == 4);
        let killed = server
            .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
            .unwrap();
        assert_eq!(killed.int(), Some(4));
        until("all are subscribed again", || listening(&server) == 4);
    });
}

fn scripts_flushed(kind: RedisKind) {
    let server = start(kind);
    let flush = || {
        server.command(&["SCRIPT", "FLUSH", "SYNC"]).unwrap();
    };
    let keeper = open(&server.url(), "ttl=6s");
    flush();
    let guards = ["a", "b", "c"].map(|name| {
        let guard = keeper.lock(name).unwrap();
        flush();
        guard
    });
    // After the first ttl, the keeper's own renewals have met the flush, too.
    let renewed = Instant::now();
    until("the first ttl is over", || {
        flush();
        renewed.elapsed() > Duration::from_secs(7)
    });
    for guard in guards {
        assert!(guard.is_held());
        guard.renew().unwrap();
        flush();
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keeper);
    contend_during(&server, Memory::Kept, flush);
}
