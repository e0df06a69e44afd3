//! Outages of the network: at each moment of an acquisition, of each kind, and back in time or too late.

use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use lockkeeper::{Config, Error, ErrorKind, LockGuard, LockKeeper, Observer};
use lockkeeper_testkit::{Fault, Proxy, StoreKind, TestServer, cases, until};

use super::{Case, Keepers as _, WAIT_LIMIT, assert_closed, start};

pub(super) const CASES: &[Case] = cases![
    wait_through_outage,
    one_of_twenty_threads_asks_in_outage,
    outage_is_told_while_nothing_listens,
];

/// What a client of the server sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// All connections end, and new ones are refused.
    Refused,
    /// There are no replies, and new connections are accepted.
    Silent,
    /// Each connection ends instead of a reply.
    Cut,
}

/// How far an acquisition is when the outage begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The keeper has no connection.
    NoConnection,
    /// The keeper has a connection that no request uses.
    Pooled,
    /// The server has carried the request out, and its reply is lost.
    Requested,
    /// The acquisition waits in the server.
    Waiting,
}

impl Outage {
    const ALL: [Self; 3] = [Self::Refused, Self::Silent, Self::Cut];

    fn begin(self, proxy: &Proxy, moment: Moment) {
        match self {
            Self::Refused => proxy.refuse(),
            Self::Silent => proxy.set(Fault::Dark),
            Self::Cut => {
                proxy.set(Fault::CutReplyAfter(0));
                if moment != Moment::Pooled {
                    proxy.cut();
                }
            }
        }
    }

    fn end(self, proxy: &Proxy) {
        proxy.set(Fault::Pass);
        if self == Self::Refused {
            proxy.accept().unwrap();
        }
    }
}

impl Moment {
    const ALL: [Self; 4] = [
        Self::NoConnection,
        Self::Pooled,
        Self::Requested,
        Self::Waiting,
    ];

    /// Returns the wait that ends during the outage.
    fn short_wait(self) -> Duration {
        match self {
            // Its request has to be in the server before the outage begins.
            Self::Requested | Self::Waiting => Duration::from_secs(10),
            _ => Duration::from_millis(300),
        }
    }
}

/// Runs each moment with each kind of outage, all at once on one server.
fn wait_through_outage(kind: StoreKind) {
    let server = start(kind);
    let holder = server.open("ttl=60s");
    thread::scope(|scope| {
        let (server, holder) = (&*server, &holder);
        for moment in Moment::ALL {
            for outage in Outage::ALL {
                let row = move || end_in_outage_and_outlast_it(server, holder, moment, outage);
                let named = thread::Builder::new().name(format!("{moment:?} {outage:?}"));
                named.spawn_scoped(scope, row).unwrap();
            }
        }
    });
    drop(holder);
    server.assert_clean();
}

/// Checks an acquisition that ends during an outage, and another one that outlasts it.
fn end_in_outage_and_outlast_it(
    server: &dyn TestServer,
    holder: &LockKeeper,
    moment: Moment,
    outage: Outage,
) {
    let proxy = server.start_proxy();
    // What is granted to the acquisition that ends expires with the ttl.
    let response_timeout = match (moment, outage) {
        // The end of the connection ends the request, and no time-out does so before.
        (Moment::Requested, Outage::Refused | Outage::Cut) => 10,
        _ => 1,
    };
    let keys = format!("ttl=2s&response_timeout={response_timeout}s&connect_timeout=2s");
    let [short, long] = [(); 2].map(|()| server.open_via(&proxy, &keys));
    let names = ["short", "long"].map(|wait| format!("a{moment:?}{outage:?}{wait}").to_lowercase());
    let [short_name, long_name] = &names;
    let mut tokens = Vec::new();
    if moment != Moment::NoConnection {
        for (keeper, name) in [(&short, short_name), (&long, long_name)] {
            // A drop may end before its release does, and the outage would meet that.
            until("a reply to a release comes in time", || {
                let guard = keeper.try_lock_for(name, WAIT_LIMIT).unwrap().unwrap();
                tokens.push(guard.token());
                guard.release().is_ok()
            });
        }
    }
    let held = match moment {
        Moment::Waiting => names.each_ref().map(|name| holder.lock(name).ok()),
        _ => [None, None],
    };
    thread::scope(|scope| {
        let acquire = || {
            let short = scope.spawn(|| short.try_lock_for(short_name, moment.short_wait()));
            let long = scope.spawn(|| long.try_lock_for(long_name, WAIT_LIMIT));
            (short, long)
        };
        let begin = || outage.begin(&proxy, moment);
        let (short, long) = match moment {
            Moment::NoConnection => {
                proxy.cut();
                begin();
                acquire()
            }
            Moment::Pooled => {
                begin();
                acquire()
            }
            Moment::Requested => {
                proxy.set(Fault::DropReplies);
                let acquiring = acquire();
                assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.dropped_replies >= 2));
                begin();
                acquiring
            }
            Moment::Waiting => {
                let acquiring = acquire();
                until("both acquisitions are queued", || {
                    names.iter().all(|name| server.queue_length(name) == 1)
                });
                begin();
                acquiring
            }
        };
        let error = ended(short);
        let (outlives, has_pool) = (
            !server.facts().ends_with_connection,
            server.facts().has_pool,
        );
        let possible: &[ErrorKind] = match (moment, outage) {
            // A pooled connection that was cut may be noticed only when it is used.
            (Moment::NoConnection, Outage::Refused) if !outlives => &[ErrorKind::Unavailable],
            // Without a pool, a reply to a ping counts as one to the request.
            (Moment::Requested, _) if outlives && has_pool => &[ErrorKind::Unknown],
            // What a session was granted ends with it. A silent server is unknown until it is asked on another one.
            (Moment::Requested, Outage::Refused | Outage::Cut) if !outlives => {
                &[ErrorKind::Unavailable]
            }
            _ => &[ErrorKind::Unavailable, ErrorKind::Unknown],
        };
        assert!(possible.contains(&error.kind()), "{error:?}");
        assert!(error.to_string().contains("for the last"), "{error:?}");
        assert!(error.source().is_some(), "{error:?}");
        for held in held.into_iter().flatten() {
            tokens.push(held.token());
            held.release().unwrap();
        }
        outage.end(&proxy);
        let guard = long.join().unwrap().unwrap().expect("the server is back");
        assert!(tokens.into_iter().all(|token| guard.token() > token));
        // The reply may come too late for the time-out of this row.
        let _ = guard.release();
    });
    drop((short, long));
    assert_closed(&proxy);
}

type Acquiring<'scope> = ScopedJoinHandle<'scope, Result<Option<LockGuard>, Error>>;

/// Returns the error of an acquisition that ended in an outage.
fn ended(acquiring: Acquiring<'_>) -> Error {
    match acquiring.join().unwrap() {
        Ok(Some(_)) => panic!("no server can grant it"),
        Ok(None) => panic!("no other holder was seen at the end"),
        Err(error) => error,
    }
}

/// Twenty threads of one keeper wait for a name each. The first thread that finds the outage asks
/// again, and the others wait for its result.
fn one_of_twenty_threads_asks_in_outage(kind: StoreKind) {
    /// Each thread may find the outage by itself.
    const THREADS: u64 = 20;
    let server = start(kind);
    let proxy = server.start_proxy();
    let keeper = server.open_via(&proxy, "ttl=2s&pool_size=20");
    let all_lock = |wait: Duration| {
        let (keeper, barrier) = (&keeper, &Barrier::new(THREADS as usize));
        let acquire = move |number| {
            barrier.wait();
            keeper.try_lock_for(format!("a{number}"), wait)
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|number| scope.spawn(move || acquire(number)))
                .collect();
            let answers = threads.into_iter().map(|thread| thread.join().unwrap());
            answers.collect::<Vec<_>>()
        })
    };
    // A drop does not wait for the server.
    for answer in all_lock(WAIT_LIMIT) {
        answer.unwrap().expect("it is free").release().unwrap();
    }
    Outage::Cut.begin(&proxy, Moment::NoConnection);
    let connected = || proxy.counts().accepted;
    let before = connected();
    for answer in all_lock(Duration::from_secs(1)) {
        let error = answer.map(drop).expect_err("no server can grant it");
        assert!(error.source().is_some(), "{error:?}");
    }
    let attempts = connected() - before;
    assert!(
        (2..server.facts().outage_connections * THREADS).contains(&attempts),
        "{attempts} attempts"
    );
    thread::scope(|scope| {
        let before = connected();
        let locking = scope.spawn(|| all_lock(WAIT_LIMIT));
        assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.accepted > before));
        Outage::Cut.end(&proxy);
        for answer in locking.join().unwrap() {
            let guard = answer.unwrap().expect("the server is back");
            guard.release().unwrap();
        }
    });
    drop(keeper);
    server.assert_clean();
    assert_closed(&proxy);
}

/// Counts the outages that began and ended.
#[derive(Default)]
pub(crate) struct Told {
    began: AtomicUsize,
    ended: AtomicUsize,
}

impl Told {
    /// Opens a keeper whose outages are recorded.
    pub(crate) fn open(url: &str) -> (LockKeeper, Arc<Self>) {
        let told = Arc::new(Self::default());
        let config = Config::from_url(url).unwrap();
        let config = config.observer(Arc::clone(&told) as _);
        let mut opened = None;
        until("the server replies in time", || {
            opened = lockkeeper::open_config(&config).ok();
            opened.is_some()
        });
        (opened.unwrap(), told)
    }

    /// Returns how many outages have begun and ended.
    pub(crate) fn counts(&self) -> [usize; 2] {
        [&self.began, &self.ended].map(|count| count.load(Ordering::SeqCst))
    }

    /// Returns whether there is an outage.
    pub(crate) fn is_down(&self) -> bool {
        let [began, ended] = self.counts();
        began > ended
    }
}

impl Observer for Told {
    fn outage_began(&self, _: &str, _: &Error) {
        self.began.fetch_add(1, Ordering::SeqCst);
    }

    fn outage_ended(&self, _: &str, _: Duration) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Leases are lost with their connections where the store ends them so, which needs no reply of the server.
fn outage_is_told_while_nothing_listens(kind: StoreKind) {
    const NAMES: usize = 6;
    let server = start(kind);
    let proxy = server.start_proxy();
    let (keeper, told) = Told::open(&server.url_with(proxy.addr(), "ttl=2s&wait=100ms"));
    let guards: Vec<_> = (0..NAMES)
        .map(|number| {
            let guard = keeper.try_lock_for(format!("held{number}"), WAIT_LIMIT);
            guard.unwrap().unwrap()
        })
        .collect();
    let [_, before] = told.counts();
    Outage::Refused.begin(&proxy, Moment::Pooled);
    for round in 0..5 {
        for number in 0..NAMES {
            keeper.lock(format!("a{round}{number}")).unwrap_err();
        }
    }
    until("the leases are lost", || {
        guards.iter().all(|guard| !guard.is_held())
    });
    drop(guards);
    keeper.lock("b").unwrap_err();
    // An outage may have begun and ended before all connections had ended.
    let [began, ended] = told.counts();
    assert!(ended <= before + 1, "while nothing listened");
    assert_eq!(began, ended + 1);
    Outage::Refused.end(&proxy);
    until("the server is back", || keeper.lock("b").is_ok());
    until("the end is told", || !told.is_down());
    drop(keeper);
    server.assert_clean();
    assert_closed(&proxy);
}
