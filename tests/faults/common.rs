//! What the fault suites of all servers share: the cases that every server has, and the means to check them.

#[cfg_attr(
    not(all(feature = "consul", feature = "etcd", feature = "zookeeper")),
    allow(dead_code, reason = "not all of these stores have all cases")
)]
pub(crate) mod cluster;
pub(crate) mod contended;
mod deadline;
mod late;
mod messages;
mod opening;
mod outage;
pub(crate) mod servers;
pub(crate) mod sessions;
pub(crate) mod sharing;
mod waiter;
mod witness;

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(any(feature = "consul", feature = "zookeeper"))]
use lockkeeper::clock::{Clock as _, SystemClock};
use lockkeeper::{AcquireOptions, CancelToken, ErrorKind, LockGuard, LockKeeper, Released};
use lockkeeper_testkit::{Proxy, Shared, StoreKind, TestServer, suite, until, with_timeouts};

pub(crate) use opening::{fake_server, refused};
pub(crate) use outage::Told;
pub(crate) use servers::{Memory, contend_during};
pub(crate) use waiter::Waiter;
pub(crate) use witness::Witness;

/// A limit far longer than anything here takes.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// How long after its deadline a call may return; one that takes longer hangs.
pub(crate) const HANG: Duration = Duration::from_secs(40);

/// A case that every server has.
pub(crate) type Case = suite::Case<StoreKind>;

/// Returns the cases of all servers.
pub(crate) fn cases() -> Vec<Case> {
    [
        &*messages::cases(),
        late::CASES,
        &*deadline::cases(),
        outage::CASES,
        &*servers::cases(),
    ]
    .concat()
}

/// Takes a server for a case that leaves its settings as they were.
pub(crate) fn start(kind: impl Into<StoreKind>) -> Shared {
    kind.into().share().unwrap()
}

/// Takes a server of this type for a case that leaves its settings as they were.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) fn share<S: TestServer>(kind: impl Into<StoreKind>) -> Shared<S> {
    Shared::take(kind).unwrap()
}

/// Keepers on a server. Lock names are in the namespace `default`.
pub(crate) trait Keepers: TestServer {
    /// Returns the address of a server that has one.
    fn own_addr(&self) -> SocketAddr {
        self.single_addr().expect("a server with one address")
    }

    /// Starts a proxy before the server.
    fn start_proxy(&self) -> Proxy {
        Proxy::new(self.own_addr()).unwrap()
    }

    /// Returns how many keepers wait for the lock in the store.
    fn queue_length(&self, name: &str) -> usize {
        self.waiters("default", name).unwrap()
    }

    /// Returns the session that holds the lock, on a store whose leases belong to sessions.
    fn holder_of(&self, name: &str) -> Option<u64> {
        self.holding_sessions("default", &[name])
            .unwrap()
            .pop_first()
    }

    /// Waits until nothing of any keeper is left on the server.
    #[track_caller]
    fn assert_clean(&self) {
        until("no lock is left", || self.leftovers().unwrap().is_empty());
        until("no keeper is connected", || {
            self.connections().unwrap().is_empty()
        });
    }

    /// Returns a URL with keys, and with time for a reply on a busy machine where the keys do not say it.
    fn url_with(&self, addr: SocketAddr, keys: &str) -> String {
        let facts = self.facts();
        let keys = keys.replace("ttl=1s", &format!("ttl={}s", facts.min_ttl));
        let is_known = |key: &&str| facts.has_pool || !key.starts_with("pool_size=");
        let keys = keys.split('&').filter(is_known).collect::<Vec<_>>();
        let keys = keys.join("&");
        let url = TestServer::url_via(self, addr);
        with_reply_time(&format!("{url}{keys}"))
    }

    /// Opens a keeper on the server.
    fn open(&self, keys: &str) -> LockKeeper {
        opened(&self.url_with(self.own_addr(), keys))
    }

    /// Opens a keeper by way of a proxy.
    fn open_via(&self, proxy: &Proxy, keys: &str) -> LockKeeper {
        opened(&self.url_with(proxy.addr(), keys))
    }

    /// Acquires `a` for `keeper`, which waits in the store until `rival` releases it. So what a keeper does
    /// only at its first wait or grant is over before the fault.
    fn lock_after_waiting(&self, keeper: &LockKeeper, rival: &LockKeeper) -> LockGuard {
        self.lock_after_fault(keeper, rival, || {})
    }

    /// Acquires `a` in the same way, with a fault just before its release.
    fn lock_after_fault(
        &self,
        keeper: &LockKeeper,
        rival: &LockKeeper,
        fault: impl FnOnce(),
    ) -> LockGuard {
        let held = rival.lock("a").unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| keeper.try_lock_for("a", WAIT_LIMIT).unwrap());
            until("the keeper waits", || self.queue_length("a") == 1);
            fault();
            assert_eq!(held.release().unwrap(), Released::Done);
            waiting.join().unwrap().expect("it is free")
        })
    }

    /// Starts a waiter for `a`, and returns when it is queued in the store.
    fn queue_waiter(&self, addr: SocketAddr, keys: &str, wait: Duration, seen: &Witness) -> Waiter {
        let [waiter] = self.queue_waiters(addr, keys, wait, seen);
        waiter
    }

    /// Starts waiters for `a` at the same time, and returns when all are queued in the store. On a busy machine, the wait of
    /// the first one would be over before the last one has opened its keeper.
    fn queue_waiters<const N: usize>(
        &self,
        addr: SocketAddr,
        keys: &str,
        wait: Duration,
        seen: &Witness,
    ) -> [Waiter; N] {
        let before = self.queue_length("a");
        let keepers = [(); N].map(|()| opened(&self.url_with(addr, keys)));
        let waiters = keepers.map(|keeper| Waiter::start(keeper, wait, seen));
        until("all waiters are queued", || {
            self.queue_length("a") == before + N
        });
        waiters
    }
}

impl<S: TestServer + ?Sized> Keepers for S {}

/// Adds time for a reply and a connection on a busy machine to a URL, where its keys do not say it.
pub(crate) fn with_reply_time(url: &str) -> String {
    with_timeouts(url, Duration::from_secs(5))
}

/// Opens a keeper. On a busy machine, it may take several attempts within the time-outs of the URL.
#[track_caller]
pub(crate) fn opened(url: &str) -> LockKeeper {
    let mut keeper = None;
    until("the server replies in time", || {
        match lockkeeper::open(url) {
            Ok(opened) => keeper = Some(opened),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
        }
        keeper.is_some()
    });
    keeper.unwrap()
}

/// Waits for a name until a cancel just after `fault`, which ends the wait soon. Returns what `fault` does.
pub(crate) fn cancel_after<T>(
    keeper: &LockKeeper,
    name: &str,
    options: AcquireOptions,
    fault: impl FnOnce() -> T,
) -> T {
    let cancel = CancelToken::new();
    let options = options.wait_forever().cancel(&cancel);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.acquire(name, &options));
        let done = fault();
        let began = Instant::now();
        cancel.cancel();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
        assert!(began.elapsed() < WAIT_LIMIT);
        done
    })
}

/// Locks `a` by TLS, on a server whose certificate the system does not know.
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
pub(crate) fn lock_by_tls(url: &str, authority: &std::path::Path) {
    let keeper = opened(&format!("{url}?ca_file={}", authority.display()));
    let held = keeper.lock("a").unwrap();
    held.renew().unwrap();
    assert_eq!(held.release().unwrap(), Released::Done);
    let untrusted = ["certificate", "ca_file"];
    refused(url, ErrorKind::PermissionDenied, &untrusted);
}

/// Returns whether a thread of a keeper or of a backend runs.
pub(crate) fn threads_run() -> bool {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return false;
    };
    let mut names = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.any(|name| name.starts_with("lockkeeper"))
}

/// Checks that the entries of these names are refused for the names alone, and that an operator is told of them.
#[cfg(any(feature = "consul", feature = "zookeeper"))]
pub(crate) fn assert_unreadable(keeper: &LockKeeper, names: &[&str]) {
    for name in names {
        let error = keeper.try_lock(*name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let (admin, deadline) = (keeper.admin().unwrap(), SystemClock.now() + WAIT_LIMIT);
    assert_eq!(admin.held(None, deadline).unwrap().len(), 0);
    let found = admin.examine(deadline).unwrap();
    let expected = format!("{} entries cannot be read", names.len());
    let mut found = found.iter().map(|it| it.what.as_str());
    assert!(found.any(|it| it.starts_with(&expected)));
}

/// Waits until no client is connected to the proxy.
#[track_caller]
pub(crate) fn assert_closed(proxy: &Proxy) {
    assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.open == 0));
}
