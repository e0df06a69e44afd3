//! What the fault suites of all servers share: the trait of a server, the cases that every server has,
//! and the means to check them.

pub(crate) mod common;
pub(crate) mod contended;
mod deadline;
mod late;
mod opening;
mod outage;
mod waiter;
mod witness;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use lockkeeper::{ErrorKind, LockGuard, LockKeeper, Released};
use lockkeeper_testkit::suite::{Case, ServerKind, arguments, trials};
use lockkeeper_testkit::{Daemon, Proxy, until};

pub(crate) use common::{Memory, contend_during};
pub(crate) use opening::{fake_server, refused};
#[allow(unused_imports, reason = "the suites of some servers use it")]
pub(crate) use outage::Told;
pub(crate) use waiter::Waiter;
pub(crate) use witness::Witness;

/// A limit far longer than anything here takes.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// How long after its deadline a call may return; one that takes longer hangs.
pub(crate) const HANG: Duration = Duration::from_secs(20);

/// A server that the common cases break. A new kind of server implements this and calls [`run`].
pub(crate) trait FaultServer: Sized + Sync {
    type Kind: ServerKind;

    /// Bytes that every request about the lock `a` contains.
    const LOCK_REQUEST: &'static str;
    /// How many bytes of a reply are less than the whole reply.
    const MID_REPLY: usize;
    /// Whether a lease outlives the connection on which it was granted.
    const LEASE_OUTLIVES_CONNECTION: bool;
    /// Whether the server knows its leases after [`restart`](Self::restart).
    const RESTARTED: Memory = Memory::Lost;
    /// The shortest ttl, in seconds; it takes the place of `ttl=1s` in URLs.
    const MIN_TTL: u64 = 1;
    /// A thread that finds an outage opens fewer connections than this: to replace a pooled one, and for a new one.
    const CONNECTIONS_TO_FIND_OUTAGE: u64 = 3;

    fn start(kind: Self::Kind) -> Self;
    fn addr(&self) -> SocketAddr;
    fn daemon(&self) -> &Daemon;
    fn restart(&self) -> io::Result<()>;

    /// Returns the URL by way of another address, ready for `key=value`.
    fn base_url(&self, addr: SocketAddr) -> String;
    /// Returns the URLs of an address without and with TLS, ready for `key=value`.
    fn urls_of(addr: &str) -> [String; 2];
    /// Returns a URL by this server's unix socket, if it has one.
    fn socket_url(&self) -> Option<String> {
        None
    }

    /// Returns how many keepers wait for the lock in the store.
    fn queue_length(&self, name: &str) -> usize;
    /// Waits until nothing of any keeper is left on the server.
    fn assert_clean(&self);

    /// Returns trials on servers of other kinds.
    fn further() -> Vec<Trial> {
        Vec::new()
    }

    /// Returns a URL with keys, and with time for a reply on a busy machine where the keys do not say it.
    fn url_with(&self, addr: SocketAddr, keys: &str) -> String {
        let keys = keys.replace("ttl=1s", &format!("ttl={}s", Self::MIN_TTL));
        format!("{}{}", self.base_url(addr), with_reply_time(&keys))
    }

    /// Opens a keeper on the server.
    fn open(&self, keys: &str) -> LockKeeper {
        opened(&self.url_with(self.addr(), keys))
    }

    /// Opens a keeper by way of a proxy.
    fn open_via(&self, proxy: &Proxy, keys: &str) -> LockKeeper {
        opened(&self.url_with(proxy.addr(), keys))
    }

    /// Has a keeper wait for `a` in the store until `rival` releases it, and get it. What a keeper does for
    /// its first wait or grant alone is done then, and meets no fault.
    fn lock_after_waiting(&self, keeper: &LockKeeper, rival: &LockKeeper) -> LockGuard {
        let held = rival.lock("a").unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| keeper.try_lock_for("a", WAIT_LIMIT).unwrap());
            until("the keeper waits", || self.queue_length("a") == 1);
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

/// Adds time for a reply on a busy machine to the keys of a server, where they do not say it.
pub(crate) fn with_reply_time(keys: &str) -> String {
    let timeout = match keys.contains("response_timeout") {
        true => "",
        false => "&response_timeout=5s",
    };
    format!("{keys}{timeout}")
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

/// Runs the common cases and those of the server's own, and checks that no thread is left behind.
pub(crate) fn run<S: FaultServer>(own: impl IntoIterator<Item = Case<S::Kind>>) -> ExitCode {
    let shared = [
        common::cases::<S>(),
        late::cases::<S>(),
        deadline::cases::<S>(),
        outage::cases::<S>(),
    ];
    let cases = shared.into_iter().flatten().chain(own);
    let mut trials = trials(cases);
    trials.extend(S::further());
    let conclusion = libtest_mimic::run(&arguments(), trials);
    if !conclusion.has_failed() {
        until("the threads of all keepers have ended", || !threads_run());
    }
    conclusion.exit_code()
}

/// Returns whether a thread of a keeper or of a backend runs.
fn threads_run() -> bool {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return false;
    };
    let mut names = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.any(|name| name.starts_with("lockkeeper"))
}

/// Waits until no client is connected to the proxy.
#[track_caller]
pub(crate) fn assert_closed(proxy: &Proxy) {
    assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.open == 0));
}
