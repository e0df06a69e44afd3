//! Users, certificates and other servers.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper::admin::{Finding, Severity};
use lockkeeper::backends::etcd;
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{ErrorKind, Released, WaitOutcome};
use lockkeeper_testkit::{
    EtcdKind, EtcdOptions, EtcdServer, Fault, Proxy, RedisKind, RedisServer, cases, until,
    with_timeouts,
};
use serde_json::{Value, json};

use super::Case;
use super::relay::{Held, relay};
use crate::common::{WAIT_LIMIT, fake_server, lock_by_tls, opened, refused};

pub(super) const CASES: &[Case] = cases![
    users_and_roles,
    login_is_renewed,
    login_that_ended_is_renewed_by_one_request,
    token_is_checked,
    proxy_may_close_after_each_reply,
    certificates,
    client_certificates,
    handshakes_that_are_cut_are_an_outage,
    other_servers_are_refused,
    members_are_tried_in_turn,
    many_locks_are_listed,
    least_ttl_follows_the_election_time_out,
    servers_of_two_clusters_are_refused,
    servers_of_two_clusters_with_users_are_refused,
    cluster_that_is_made_anew_is_followed,
    cluster_with_users_that_is_made_anew_is_followed,
];

/// Adds the users root and me (`open-sesame`), of whom me may use the keys of locks alone, and turns logins on.
fn add_users(server: &EtcdServer) {
    let call = |path: &str, body: Value| server.call(path, &body).unwrap();
    let user = |name, roles: &[&str]| {
        call(
            "/v3/auth/user/add",
            json!({ "name": name, "password": "open-sesame" }),
        );
        for role in roles {
            call("/v3/auth/role/add", json!({ "name": role }));
            call("/v3/auth/user/grant", json!({ "user": name, "role": role }));
        }
    };
    user("root", &["root"]);
    user("me", &["locks"]);
    user("other", &[]);
    // `lockkeeper/` to `lockkeeper0`, in base64.
    let perm = json!({ "permType": "READWRITE", "key": "bG9ja2tlZXBlci8=", "range_end": "bG9ja2tlZXBlcjA=" });
    call(
        "/v3/auth/role/grant",
        json!({ "name": "locks", "perm": perm }),
    );
    call("/v3/auth/enable", json!({}));
}

fn with_login(server: &EtcdServer, login: &str, keys: &str) -> String {
    let url = format!("etcd://{login}@{}/?{keys}", server.addr());
    with_timeouts(&url, Duration::from_secs(10))
}

fn users_and_roles(kind: EtcdKind) {
    let server = EtcdServer::start(kind, &EtcdOptions::new()).unwrap();
    let denied = ErrorKind::PermissionDenied;
    let refuses = |login, kind, text| refused(&with_login(&server, login, ""), kind, &[text]);
    refuses("me:open-sesame", denied, "no authentication");
    add_users(&server);
    let anonymous = format!("{}/", server.url());
    refused(&anonymous, denied, &["user and a password"]);
    refuses("me:s3cret", denied, "`password`");
    refuses("other:open-sesame", denied, "lockkeeper/");
    refuses("me", ErrorKind::InvalidValue, "`password`");
    let [keeper, rival] =
        ["", "wait=20s"].map(|keys| opened(&with_login(&server, "me:open-sesame", keys)));
    let held = keeper.lock("a").unwrap();
    assert!(rival.try_lock("a").unwrap().is_none());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| rival.lock("a").unwrap());
        assert_eq!(held.release().unwrap(), Released::Done);
        drop(waiting.join().unwrap());
    });
    // What an operator asks as this user.
    let held = keeper.lock("a").unwrap();
    let (admin, deadline) = (rival.admin().unwrap(), SystemClock.now() + WAIT_LIMIT);
    let shown = admin.held(None, deadline).unwrap();
    let [shown] = &shown[..] else {
        panic!("it is held once: {shown:?}");
    };
    assert_eq!(shown.token(), Some(held.token()));
    let found = admin.examine(deadline).unwrap();
    let fit = |it: &Finding| it.severity != Severity::Unusable;
    assert!(found.iter().all(fit), "{found:?}");
    assert!(admin.force_release(shown, deadline).unwrap());
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
}

/// etcd forgets logins after a time.
fn login_is_renewed(kind: EtcdKind) {
    let options = EtcdOptions::new().arg("--auth-token-ttl=1");
    let server = EtcdServer::start(kind, &options).unwrap();
    add_users(&server);
    let keeper = opened(&with_login(&server, "me:open-sesame", "wait=20s"));
    let held = keeper.lock("a").unwrap();
    // A restarted server knows no login.
    server.restart().unwrap();
    until("the server knows its leader again", || held.renew().is_ok());
    drop(held);
    drop(keeper.lock("a").unwrap());
}

/// A change of the password ends logins, and a new connection finds that.
fn login_that_ended_is_renewed_by_one_request(kind: EtcdKind) {
    let server = EtcdServer::start(kind, &EtcdOptions::new()).unwrap();
    add_users(&server);
    let proxy = Proxy::new(server.addr()).unwrap();
    let addr = server.addr().to_string();
    let url = with_login(&server, "me:open-sesame", "");
    let keeper = opened(&url.replace(&addr, &proxy.addr().to_string()));
    let options = etcd::EtcdOptions::tcp("127.0.0.1", server.addr().port());
    let options = options.user("root").password("open-sesame");
    let options = options.connect_timeout(WAIT_LIMIT);
    let mut root = etcd::PlainClient::connect(&options).unwrap();
    let changed = json!({ "name": "me", "password": "open-sesame" });
    root.call("/v3/auth/user/changepw", &changed, WAIT_LIMIT)
        .unwrap();
    proxy.cut();
    // An operator's question is asked once.
    let deadline = SystemClock.now() + WAIT_LIMIT;
    let shown = keeper.admin().unwrap().held(None, deadline).unwrap();
    assert!(shown.is_empty());
}

/// A token of the server goes into the head of each request.
fn token_is_checked(kind: EtcdKind) {
    let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{\"header\":{},\"token\":\"a\\r\\nInjected: b\"}";
    let server = fake_server(b"", reply, 1);
    let incompatible = ErrorKind::Incompatible;
    refused(
        &format!("etcd://me:s3cret@{server}"),
        incompatible,
        &["makes no sense"],
    );
    let _ = kind;
}

/// A connection that has logged in is closed, too, and the one that watches.
fn proxy_may_close_after_each_reply(kind: EtcdKind) {
    let server = EtcdServer::start(kind, &EtcdOptions::new()).unwrap();
    add_users(&server);
    let held = Arc::<Mutex<Held>>::default();
    held.lock().unwrap().closes = true;
    let [one, other] = [(); 2].map(|()| relay(&held, server.addr()).to_string());
    let hosts = format!("{one},{other}");
    let url = with_login(&server, "me:open-sesame", "ttl=10m");
    let rival = opened(&url);
    let keeper = opened(&url.replace(&server.addr().to_string(), &hosts));
    let taken = rival.lock("a").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_for("a", WAIT_LIMIT).unwrap().is_some());
        until("all watches are confirmed", || {
            held.lock().unwrap().is_watched()
        });
        taken.release().unwrap();
        assert!(waiting.join().unwrap());
    });
}

fn certificates(kind: EtcdKind) {
    let server = EtcdServer::start(kind, &EtcdOptions::new().tls()).unwrap();
    let url = server.tls_url().unwrap();
    lock_by_tls(&url, &server.certificates().unwrap().authority);
    let (plain, incompatible) = (server.url(), ErrorKind::Incompatible);
    refused(&plain.replace("etcd:", "etcds:"), incompatible, &["TLS"]);
    refused(&url.replace("etcds:", "etcd:"), incompatible, &["etcds:"]);
    let key = format!("{plain}/?tls=on");
    refused(&key, ErrorKind::UnknownKey, &["etcds:"]);
}

fn client_certificates(kind: EtcdKind) {
    let server = EtcdServer::start(kind, &EtcdOptions::new().client_certificates()).unwrap();
    let files = server.certificates().unwrap().clone();
    let url = format!(
        "{}?ca_file={}",
        server.tls_url().unwrap(),
        files.authority.display()
    );
    let own = format!(
        "&cert_file={}&key_file={}",
        files.certificate.display(),
        files.key.display()
    );
    let keeper = opened(&format!("{url}{own}"));
    drop(keeper.lock("a").unwrap());
    refused(&url, ErrorKind::PermissionDenied, &["`cert_file`"]);
    let invalid = ErrorKind::InvalidValue;
    refused(&format!("{url}&cert_file=/x"), invalid, &["`key_file`"]);
    refused(&format!("{url}&cert_file=/x&key_file=/y"), invalid, &["/x"]);
    refused(
        &format!("{}?cert_file=/x&key_file=/y", server.url()),
        invalid,
        &["etcds"],
    );
}

/// So it is with a proxy whose servers are being started.
fn handshakes_that_are_cut_are_an_outage(kind: EtcdKind) {
    let server = EtcdServer::start(kind, &EtcdOptions::new().tls()).unwrap();
    let url = server.tls_url().unwrap();
    let (host, port) = url.rsplit_once(':').unwrap();
    let port: u16 = port.parse().unwrap();
    let proxy = Proxy::new((Ipv4Addr::LOCALHOST, port).into()).unwrap();
    let trusted = server.certificates().unwrap().authority.display();
    let keys = format!("ca_file={trusted}&wait=20s&ttl=20s&response_timeout=5s");
    let url = format!("{host}:{}/?{keys}", proxy.addr().port());
    let keeper = lockkeeper::open(&url).unwrap();
    let held = keeper.lock("a").unwrap();
    proxy.cut();
    proxy.set(Fault::CutReplyAfter(0));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.lock("b").unwrap());
        let before = proxy.counts().cut;
        assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.cut > before + 2));
        proxy.set(Fault::Pass);
        drop(waiting.join().unwrap());
    });
    held.renew().unwrap();
    proxy.set(Fault::CutReplyAfter(0));
    proxy.cut();
    let error = keeper.try_lock("b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

fn other_servers_are_refused(kind: EtcdKind) {
    let garbage = fake_server(b"", b"hello\r\n", 1);
    let page = fake_server(b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 9);
    for other in [garbage, page] {
        let url = format!("etcd://{other}");
        refused(&url, ErrorKind::Incompatible, &["etcd"]);
    }
    let silent = fake_server(b"", b"", 0);
    let url = format!("etcd://{silent}/?response_timeout=300ms&connect_timeout=300ms");
    refused(&url, ErrorKind::Unavailable, &["did not answer"]);
    if RedisKind::Redis7.ignored().is_none() {
        let redis = RedisServer::start(RedisKind::Redis7, &lockkeeper_testkit::RedisOptions::new());
        let url = redis.unwrap().url().replace("redis:", "etcd:");
        let error = lockkeeper::open(&url).unwrap_err();
        assert!(
            error.to_string().contains("etcd") || error.is_unreachable(),
            "{error:?}"
        );
    }
    let _ = kind;
}

fn members_are_tried_in_turn(kind: EtcdKind) {
    let server = EtcdServer::start(kind, &EtcdOptions::new()).unwrap();
    // Nothing listens there, and no packet returns from the other address (RFC 5737).
    let hosts = format!("127.0.0.1:1,192.0.2.1,{}", server.addr());
    let keeper = lockkeeper::open(&format!("etcd://{hosts}/?connect_timeout=2s&ttl=10s")).unwrap();
    let held = keeper.try_lock_for("a", Duration::from_secs(10)).unwrap();
    drop(held.expect("it is free"));
}

/// Two programs could hold one name if each served itself from another cluster.
fn servers_of_two_clusters_are_refused(kind: EtcdKind) {
    let [one, other] = [(); 2].map(|()| EtcdServer::start(kind, &EtcdOptions::new()).unwrap());
    let hosts = format!("{},{}", one.addr(), other.addr());
    let url = format!("etcd://{hosts}/?ttl=10m&response_timeout=4s&connect_timeout=4s");
    let incompatible = ErrorKind::Incompatible;
    let addr = other.addr().to_string();
    refused(&url, incompatible, &["two clusters", &addr]);
    other.kill();
    let keeper = lockkeeper::open(&url).unwrap();
    let held = keeper.lock("a").unwrap();
    other.restart().unwrap();
    one.kill();
    until("the other cluster is refused", || {
        let error = keeper.try_lock("b").unwrap_err();
        error.kind() == incompatible
    });
    assert_eq!(other.keys("lockkeeper/").unwrap(), []);
    one.restart().unwrap();
    until("the first cluster serves again", || held.renew().is_ok());
    drop(keeper.try_lock("b").unwrap().expect("it is free"));
}

/// A login is one of a cluster, and every program may be a user of both.
fn servers_of_two_clusters_with_users_are_refused(kind: EtcdKind) {
    let servers = [(); 2].map(|()| EtcdServer::start(kind, &EtcdOptions::new()).unwrap());
    servers.iter().for_each(add_users);
    let [one, other] = servers.map(|it| (it.addr(), it));
    for hosts in [[one.0, other.0], [other.0, one.0]] {
        let hosts = hosts.map(|it| it.to_string()).join(",");
        // A member that does not reply in half of that is not compared.
        let long = "response_timeout=20s&connect_timeout=20s";
        let url = format!("etcd://me:open-sesame@{hosts}/?{long}");
        refused(&url, ErrorKind::Incompatible, &["two clusters"]);
    }
}

/// All members have another id then, and one that is still down does not hold up the others.
fn cluster_that_is_made_anew_is_followed(kind: EtcdKind) {
    let server = EtcdServer::start(kind, &EtcdOptions::new()).unwrap();
    let proxy = Proxy::new(server.addr()).unwrap();
    let port = server.addr().port();
    let hosts = format!("127.0.0.1:{port},localhost:{port},{}", proxy.addr());
    let keys = "ttl=10m&wait=20s&response_timeout=4s&connect_timeout=4s";
    let keeper = lockkeeper::open(&format!("etcd://{hosts}/?{keys}")).unwrap();
    let held = keeper.lock("a").unwrap();
    proxy.refuse();
    server.restart_empty().unwrap();
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert!(keeper.lock("a").unwrap().token() > held.token());
}

/// etcd waits with a request until its log is as long as when the request's token was made.
fn cluster_with_users_that_is_made_anew_is_followed(kind: EtcdKind) {
    let server = EtcdServer::start(kind, &EtcdOptions::new()).unwrap();
    add_users(&server);
    let keys = "response_timeout=4s&connect_timeout=4s";
    let url = with_login(&server, "me:open-sesame", keys);
    let first = opened(&url);
    for _ in 0..100 {
        drop(first.lock("a").unwrap());
    }
    let keeper = opened(&url);
    drop(first);
    server.restart_empty().unwrap();
    add_users(&server);
    // A busy machine takes long for a login, and each attempt waits for its replies.
    let mut attempts = (0..20).map(|_| keeper.try_lock_for("a", Duration::from_secs(10)));
    let granted = attempts.find_map(|it| it.ok().flatten());
    assert!(granted.is_some(), "the keeper logs in anew");
}

fn least_ttl_follows_the_election_time_out(kind: EtcdKind) {
    for (timeout, least) in [("1000", 2), ("2000", 3)] {
        let options = EtcdOptions::new().arg(&format!("--election-timeout={timeout}"));
        let server = EtcdServer::start(kind, &options).unwrap();
        let long = "response_timeout=4s&connect_timeout=4s";
        let url = |ttl: u64| format!("{}/?ttl={ttl}s&{long}", server.url());
        let short = [&format!("{least}s")[..]];
        refused(&url(least - 1), ErrorKind::TtlTooShort, &short);
        let keeper = lockkeeper::open(&url(least)).unwrap();
        drop(keeper.lock("a").unwrap());
        let min_ttl = keeper.capabilities().min_ttl();
        assert_eq!(min_ttl, Duration::from_secs(least));
    }
}

/// The keys have more bytes together than a reply may have.
fn many_locks_are_listed(kind: EtcdKind) {
    const LOCKS: usize = 8_000;
    let server = EtcdServer::start(kind, &EtcdOptions::new()).unwrap();
    let keeper = opened(&format!("etcd://{}?response_timeout=60s", server.addr()));
    let guard = keeper.lock("a").unwrap();
    let held = server.keys("lockkeeper/default/l/a/").unwrap().remove(0);
    thread::scope(|scope| {
        for part in 0..8 {
            let (server, held) = (&server, &held);
            scope.spawn(move || {
                for number in (part..LOCKS).step_by(8) {
                    let name = format!("{number}{}", "%2F".repeat(500));
                    let key = format!("lockkeeper/default/l/{name}/w/1");
                    server.put(&key, &held.value).unwrap();
                }
            });
        }
    });
    let deadline = SystemClock.now() + WAIT_LIMIT;
    let listed = keeper.admin().unwrap().held(None, deadline).unwrap();
    assert_eq!(listed.len(), LOCKS + 1);
    assert_eq!(guard.release().unwrap(), Released::Done);
}
