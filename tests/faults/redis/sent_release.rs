//! Releases that are sent and not waited for: their replies are read with the next batch, or lost.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::ErrorKind;
use lockkeeper::backend::{Backend as _, Grant, Operation, ReleaseDispatch, StoreInfo as _};
use lockkeeper::backends::redis::{RedisOptions, RedisProvider};
use lockkeeper_testkit::{
    Fault, Proxy, RedisCluster, RedisKind, RedisOptions as ServerOptions, RedisServer, cases, until,
};

use super::Case;
use super::cluster::{KEY_OF_A, keys_at, start_without_replicas};
use super::operations::Answer::{self, AlreadyLost, Busy, Failed, Granted, Released, Renewed};
use super::operations::{
    Lease, acquire, attempt, names, open, open_with_scripts, release, release_all, renew, request,
    run, sent,
};
use super::store::start;
use crate::common::{Keepers as _, Told, WAIT_LIMIT, with_reply_time};

pub(super) const CASES: &[Case] = cases![
    sent_release_frees_for_its_batch,
    sent_release_by_tls,
    sent_release_gets_its_reply_late_or_never,
    sent_release_finds_no_script,
    sent_release_without_its_script_is_no_outage,
    sent_release_meets_a_replica,
    sent_release_waits_for_no_replica,
    sent_release_needs_an_idle_connection,
    sent_release_follows_its_slot,
    sent_release_goes_to_a_node_that_has_failed_once,
];

/// Sends the release of a lease, and returns the operation that reads its reply.
fn send<'a>(provider: &RedisProvider, lease: &'a mut Lease) -> Operation<'a, Lease> {
    let ReleaseDispatch::Sent(sent) = provider.send_release(lease) else {
        panic!("it is not sent");
    };
    let mut collect = release(lease);
    if let Operation::Release(it) = &mut collect {
        it.sent = Some(sent);
    }
    collect
}

fn is_sent(provider: &RedisProvider, lease: &mut Lease) -> bool {
    matches!(provider.send_release(lease), ReleaseDispatch::Sent(_))
}

/// Sends the release of a lease, and runs an attempt for a name behind it.
fn run_behind(
    provider: &RedisProvider,
    lease: &mut Lease,
    name: &str,
) -> (Vec<Answer>, Vec<Grant<Lease>>) {
    let [name] = names([name]);
    let asked = request(&name);
    let collect = send(provider, lease);
    run(provider, vec![collect, attempt(&asked)])
}

/// The name and other names are granted behind the release, on one connection.
fn frees_for_its_batch(provider: &RedisProvider) {
    let [mut freed, mut alone, mut kept] = acquire(provider, ["a", "b", "k"]);
    let before = provider.usage().unwrap();
    let collect = send(provider, &mut freed);
    let names = names(["a", "b"]);
    let [same, held] = names.each_ref().map(request);
    let batch = vec![collect, attempt(&same), attempt(&held), renew(&mut kept)];
    let (answers, grants) = run(provider, batch);
    assert_eq!(answers, [Released, Granted, Busy, Renewed]);
    let collect = send(provider, &mut alone);
    assert_eq!(run(provider, vec![collect]).0, [Released]);
    let after = provider.usage().unwrap();
    assert_eq!(after.commands, before.commands + 5);
    assert_eq!(after.connections, before.connections);
    // The reply that nobody reads is not that of the next request.
    let mut granted = grants.into_iter().map(|it| it.lease).next().unwrap();
    drop(send(provider, &mut granted));
    let (answers, _) = run(provider, vec![renew(&mut kept), release(&mut granted)]);
    assert_eq!(answers, [Renewed, AlreadyLost]);
    release_all(provider, [kept]);
}

fn sent_release_frees_for_its_batch(kind: RedisKind) {
    let server = start(kind);
    let provider = open_with_scripts(server.addr(), |options| options);
    frees_for_its_batch(&provider);
    drop(provider);
    server.assert_clean();
}

fn sent_release_by_tls(kind: RedisKind) {
    let server = RedisServer::start(kind, &ServerOptions::new().tls()).unwrap();
    let authority = server.certificates().unwrap().authority.clone();
    let port = server.tls_addr().unwrap().port();
    let options = RedisOptions::tcp("localhost", port).tls(Some(authority));
    let options = options.response_timeout(Duration::from_secs(5));
    let provider = RedisProvider::open(&options, "default").unwrap();
    let [mut lease] = acquire(&provider, ["s"]);
    let (answers, _) = run(&provider, vec![renew(&mut lease)]);
    assert_eq!(answers, [Renewed]);
    release_all(&provider, [lease]);
    frees_for_its_batch(&provider);
    drop(provider);
    server.assert_clean();
}

fn sent_release_gets_its_reply_late_or_never(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let provider = open_with_scripts(proxy.addr(), |options| options);
    let late = Fault::DelayReplies(Duration::from_millis(300));
    for (fault, is_late) in [(late, true), (Fault::CutReplyAfter(0), false)] {
        let [mut freed] = acquire(&provider, ["a"]);
        let [a] = names(["a"]);
        let asked = request(&a);
        let before = proxy.counts();
        proxy.once("EVALSHA", fault);
        let collect = send(&provider, &mut freed);
        assert!(proxy.wait_for(WAIT_LIMIT, |counts| match is_late {
            true => counts.held > before.held,
            false => counts.cut > before.cut,
        }));
        let (answers, mut grants) = run(&provider, vec![collect, attempt(&asked)]);
        if is_late {
            assert_eq!(answers, [Released, Granted]);
        } else {
            // If the client has been told of the cut before it sends the attempt, that goes elsewhere.
            let unknown = Failed(ErrorKind::Unknown);
            assert!(
                answers == [unknown, unknown] || answers == [unknown, Granted],
                "{answers:?}"
            );
            let again = run(&provider, vec![release(&mut freed), attempt(&asked)]);
            assert_eq!(again.0, [AlreadyLost, Granted]);
            grants = again.1;
        }
        release_all(&provider, grants.into_iter().map(|it| it.lease));
    }
    drop(provider);
    server.assert_clean();
}

/// What follows it does not find the name free, and the release is made again.
fn sent_release_finds_no_script(kind: RedisKind) {
    let server = start(kind);
    let provider = open_with_scripts(server.addr(), |options| options);
    let [mut freed] = acquire(&provider, ["a"]);
    server.command(&["SCRIPT", "FLUSH", "SYNC"]).unwrap();
    let (answers, _) = run_behind(&provider, &mut freed, "a");
    assert_eq!(answers, [Failed(ErrorKind::Unavailable), Busy]);
    // The next one brings its script with it.
    let before = sent(&provider);
    let (answers, grants) = run_behind(&provider, &mut freed, "a");
    assert_eq!(answers, [Released, Granted]);
    assert_eq!(sent(&provider), before + 2);
    release_all(&provider, grants.into_iter().map(|it| it.lease));
    drop(provider);
    server.assert_clean();
}

/// The keeper itself reads the reply.
fn sent_release_without_its_script_is_no_outage(kind: RedisKind) {
    let server = start(kind);
    let url = with_reply_time(&format!("{}/?ttl=60s", server.url()));
    let (keeper, told) = Told::open(&url);
    let is_done = || keeper.pending_releases() == 0;
    // The first one brings its script with it.
    for flushes in [false, true] {
        let guard = keeper.lock("a").unwrap();
        if flushes {
            server.command(&["SCRIPT", "FLUSH", "SYNC"]).unwrap();
        }
        drop(guard);
        until("it is released", is_done);
    }
    drop(keeper);
    assert_eq!(told.counts(), [0, 0]);
    server.assert_clean();
}

/// The server has become a replica between the release and its reply, as by a fail-over.
fn sent_release_meets_a_replica(kind: RedisKind) {
    let server = start(kind);
    let provider = open_with_scripts(server.addr(), |options| options);
    let [mut freed] = acquire(&provider, ["a"]);
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let (answers, _) = run_behind(&provider, &mut freed, "b");
    let unavailable = Failed(ErrorKind::Unavailable);
    assert_eq!(answers, [Failed(ErrorKind::Unknown), unavailable]);
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    release_all(&provider, [freed]);
    drop(provider);
    server.assert_clean();
}

/// Grants wait for a replica that there is not, and a release does not.
fn sent_release_waits_for_no_replica(kind: RedisKind) {
    let server = start(kind);
    let earlier = open_with_scripts(server.addr(), |options| options);
    let provider = open(&server, |options| {
        // WAIT takes most of it, and a busy server still replies in time.
        options.replicas(1).response_timeout(Duration::from_secs(6))
    });
    let [mut freed, mut kept] = acquire(&earlier, ["a", "k"]);
    let (answers, _) = run(&provider, vec![renew(&mut kept)]);
    assert_eq!(answers, [Failed(ErrorKind::Unavailable)]);
    let (answers, _) = run_behind(&provider, &mut freed, "a");
    assert_eq!(answers, [Released, Failed(ErrorKind::Unavailable)]);
    assert_eq!(server.calls().unwrap().get("wait"), Some(&2));
    release_all(&earlier, [kept]);
    drop((provider, earlier));
    server.assert_clean();
}

fn sent_release_needs_an_idle_connection(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let provider = open_with_scripts(proxy.addr(), |options| options.pool_size(1));
    let [mut one, mut two] = acquire(&provider, ["1", "2"]);
    let collect = send(&provider, &mut one);
    assert!(!is_sent(&provider, &mut two));
    assert_eq!(run(&provider, vec![collect]).0, [Released]);
    proxy.cut();
    let [held] = names(["2"]);
    let asked = request(&held);
    // The connection is replaced by one that is used for the first time.
    assert_eq!(run(&provider, vec![attempt(&asked)]).0, [Busy]);
    let collect = send(&provider, &mut two);
    assert_eq!(run(&provider, vec![collect]).0, [Released]);
    drop(provider);
    server.assert_clean();
}

fn open_cluster(addr: SocketAddr) -> RedisProvider {
    let options = RedisOptions::cluster(addr.ip().to_string(), addr.port());
    let options = options.response_timeout(Duration::from_secs(5));
    RedisProvider::open(&options, "default").unwrap()
}

/// The slot has moved since the map was asked for: the release and the attempt behind it go on at the next node.
fn sent_release_follows_its_slot(kind: RedisKind) {
    let (cluster, owner) = start_without_replicas(kind);
    let next = (owner + 1) % RedisCluster::PRIMARIES;
    let (slot, _) = cluster.owner(KEY_OF_A, None).unwrap();
    let provider = open_cluster(cluster.server(owner).addr());
    let [mut freed] = acquire(&provider, ["a"]);
    cluster.begin_move(slot, owner, next).unwrap();
    for key in [KEY_OF_A, &KEY_OF_A.replace("{a}", ":epoch")] {
        cluster.move_key(key, owner, next).unwrap();
    }
    cluster.end_move(slot, owner, next).unwrap();
    let (answers, mut grants) = run_behind(&provider, &mut freed, "a");
    assert_eq!(answers, [Released, Granted]);
    // Requests for the name go to another part by now than when this lease was asked for.
    let mut granted = grants.remove(0).lease;
    assert!(!is_sent(&provider, &mut granted));
    release_all(&provider, [granted]);
    assert!(keys_at(&cluster, next).is_empty());
}

/// The node has replied since then.
fn sent_release_goes_to_a_node_that_has_failed_once(kind: RedisKind) {
    let (cluster, owner) = start_without_replicas(kind);
    let provider = open_cluster(cluster.proxy(owner).addr());
    let [mut lease] = acquire(&provider, ["a"]);
    cluster
        .proxy(owner)
        .once("EVALSHA", Fault::CutReplyAfter(0));
    // It is repeated.
    assert_eq!(run(&provider, vec![renew(&mut lease)]).0, [Renewed]);
    let collect = send(&provider, &mut lease);
    assert_eq!(run(&provider, vec![collect]).0, [Released]);
}
