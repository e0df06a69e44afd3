//! Connections that the application makes, or lends from a pool.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::backends::redis::{RedisOptions, RedisProvider};
use lockkeeper::clock::{Clock, HostInstant, SystemClock};
use lockkeeper::{AcquireOptions, Error, ErrorKind, LeasePolicy, LockKeeper, Released};
use lockkeeper_testkit::{RedisKind, RedisServer, cases, until};
use redis::{Client, Connection, cmd};

use super::Case;
use super::store::{open, start};
use crate::common::{Keepers as _, WAIT_LIMIT};

pub(super) const CASES: &[Case] = cases![
    made_connections_hold_locks,
    lent_connections_come_back_clean,
    flush_and_release_are_noticed_by_lent_connection,
    late_reply_is_not_read_by_the_application,
    idle_connection_is_checked,
    unfit_connections_are_refused,
    second_server_is_refused,
    server_restarted_during_suspend_is_served,
    restarted_server_is_served,
];

type Pool = r2d2::Pool<Client>;

fn client(server: &RedisServer, database: u32) -> Client {
    Client::open(format!("{}/{database}", server.url())).unwrap()
}

/// Makes a pool of at most `size` connections, none of them open yet.
fn pool(server: &RedisServer, size: u32) -> Pool {
    let builder = Pool::builder().max_size(size).min_idle(Some(0));
    builder.build(client(server, 0)).unwrap()
}

fn at(server: &RedisServer) -> RedisOptions {
    RedisOptions::tcp(server.addr().ip().to_string(), server.addr().port())
}

fn try_keeper(options: &RedisOptions) -> Result<LockKeeper, Error> {
    let provider = RedisProvider::open(options, "default")?;
    LockKeeper::builder(Arc::new(provider)).build()
}

fn borrowing(server: &RedisServer, pool: &Pool) -> LockKeeper {
    let pool = pool.clone();
    let options = at(server).borrow_with(move |limit| pool.get_timeout(limit));
    try_keeper(&options).unwrap()
}

/// Returns how many connections the pool has open, and how many of them the application can have at once.
fn counts(pool: &Pool) -> (u32, u32) {
    (pool.state().connections, pool.state().idle_connections)
}

fn until_it_listens(server: &RedisServer) {
    let mut observer = server.client().unwrap();
    until("the provider listens", || {
        let channels = observer.command(&["PUBSUB", "CHANNELS", "*"]).unwrap();
        !channels.items().is_empty()
    });
}

fn made_connections_hold_locks(kind: RedisKind) {
    let server = start(kind);
    let client = client(&server, 0);
    let connect = move |limit| {
        assert!(limit <= WAIT_LIMIT);
        client.get_connection_with_timeout(limit)
    };
    let options = at(&server)
        .connect_timeout(WAIT_LIMIT)
        .connect_with(connect);
    let keeper = try_keeper(&options).unwrap();
    let guard = keeper.lock("a").unwrap();
    let other = open(&server.url(), "");
    assert!(other.try_lock("a").unwrap().is_none());
    guard.release().unwrap();
    drop(other.lock("a").unwrap());
    drop((keeper, other));
    server.assert_clean();
}

fn lent_connections_come_back_clean(kind: RedisKind) {
    let server = start(kind);
    let pool = pool(&server, 4);
    let lender = pool.clone();
    let options = at(&server).response_timeout(Duration::from_secs(1));
    let options = options.borrow_with(move |limit| lender.get_timeout(limit));
    let keeper = try_keeper(&options).unwrap();
    for name in ["a", "b", "a"] {
        keeper.lock(name).unwrap().release().unwrap();
    }
    until_it_listens(&server);
    drop(keeper);
    // The connection that listened is closed.
    until("all connections are back", || {
        let (open, idle) = counts(&pool);
        open == idle && open > 0
    });
    let mut all: Vec<_> = (0..counts(&pool).1).map(|_| pool.get().unwrap()).collect();
    for lent in &mut all {
        let value: String = cmd("ECHO").arg("own").query(lent).unwrap();
        assert_eq!(value, "own");
    }
    let mut lent = all.pop().unwrap();
    // The reply comes later than the provider would have waited for it.
    let popped: Option<(String, String)> =
        cmd("BLPOP").arg("none").arg(1.5).query(&mut lent).unwrap();
    assert_eq!(popped, None);
    drop((all, lent, options, pool));
    server.assert_clean();
}

fn flush_and_release_are_noticed_by_lent_connection(kind: RedisKind) {
    let server = start(kind);
    let pool = pool(&server, 6);
    let keeper = borrowing(&server, &pool);
    let other = open(&server.url(), "wait=30s");
    // It is not renewed.
    let ttl = Duration::from_secs(3_600);
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let guard = keeper.acquire("a", &fixed).unwrap().unwrap();
    until_it_listens(&server);
    server.command(&["FLUSHALL"]).unwrap();
    until("the guard is lost", || guard.ensure_held().is_err());
    drop(guard);
    // It listens on after it was silent for longer than its limit of time.
    let held = other.lock("b").unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| keeper.try_lock_for("b", WAIT_LIMIT));
        until("the keeper waits", || server.queue_length("b") == 1);
        held.release().unwrap();
        assert!(waits.join().unwrap().unwrap().is_some());
    });
}

/// The application may be lent the connection on which a reply came late, and then finds it closed.
fn late_reply_is_not_read_by_the_application(kind: RedisKind) {
    let server = start(kind);
    let pool = pool(&server, 2);
    let keeper = borrowing(&server, &pool);
    server.stop().unwrap();
    let error = keeper.try_lock("a").unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
        "{error:?}"
    );
    server.cont().unwrap();
    until("the lock that was asked for is free", || {
        keeper.try_lock("a").is_ok_and(|guard| guard.is_some())
    });
    drop(keeper);
    let mut lent = pool.get().unwrap();
    let value: String = cmd("ECHO").arg("own").query(&mut lent).unwrap();
    assert_eq!(value, "own");
}

fn idle_connection_is_checked(kind: RedisKind) {
    let server = start(kind);
    let pool = pool(&server, 6);
    let keeper = borrowing(&server, &pool);
    let guard = keeper.lock("a").unwrap();
    server
        .command(&["CLIENT", "KILL", "TYPE", "normal"])
        .unwrap();
    assert_eq!(guard.release().unwrap(), Released::Done);
}

#[track_caller]
fn is_refused<T>(result: Result<T, Error>, kind: ErrorKind, word: &str) {
    let error = result.map(drop).expect_err(word);
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(format!("{error:?}").contains(word), "{error:?}");
}

fn unfit_connections_are_refused(kind: RedisKind) {
    let server = start(kind);
    let other_database = client(&server, 3);
    let connect = move |_| other_database.get_connection();
    let options = at(&server).connect_with(connect);
    is_refused(try_keeper(&options), ErrorKind::Incompatible, "database 3");
    drop(try_keeper(&options.database(3)).unwrap());
    let down = |_| Err::<Connection, _>(io::Error::other("the tunnel is down"));
    let options = || at(&server).connect_with(down);
    is_refused(
        try_keeper(&options()),
        ErrorKind::Unavailable,
        "the tunnel is down",
    );
    let invalid = ErrorKind::InvalidValue;
    is_refused(try_keeper(&options().password("s3cret")), invalid, "a user");
    let sentinel = RedisOptions::sentinel("nowhere", 1, "main").connect_with(down);
    is_refused(try_keeper(&sentinel), invalid, "sentinel");
    let cluster = RedisOptions::cluster("nowhere", 1).connect_with(down);
    is_refused(try_keeper(&cluster), invalid, "cluster");
}

/// The host's clock, which has run on while the host was suspended.
#[derive(Clone, Debug, Default)]
struct ClockOfSuspendedHost {
    suspended_secs: Arc<AtomicU64>,
}

impl Clock for ClockOfSuspendedHost {
    fn now(&self) -> HostInstant {
        SystemClock.now() + Duration::from_secs(self.suspended_secs.load(Ordering::SeqCst))
    }
}

/// After the host was suspended for this long, lets the application's function connect to another server, which has
/// been up for some seconds. Returns the result of a lock.
fn lock_on_second_server(kind: RedisKind, suspended_secs: u64) -> Result<(), Error> {
    let (server, other) = (start(kind), start(kind));
    until(
        "the other server is up for longer than it may round",
        || {
            let info = other.info("server").unwrap();
            let uptime = info.get("uptime_in_seconds").unwrap();
            uptime.parse::<u64>().unwrap() > 2
        },
    );
    let has_moved = Arc::new(AtomicBool::new(false));
    let (moved, first, second) = (
        Arc::clone(&has_moved),
        client(&server, 0),
        client(&other, 0),
    );
    let connect = move |_| match moved.load(Ordering::SeqCst) {
        false => first.get_connection(),
        true => second.get_connection(),
    };
    let options = at(&server)
        .connect_with(connect)
        .response_timeout(Duration::from_secs(5));
    let clock = ClockOfSuspendedHost::default();
    let shared_clock = Arc::new(clock.clone());
    let provider = RedisProvider::with_clock(&options, "default", shared_clock.clone()).unwrap();
    let keeper = LockKeeper::builder(Arc::new(provider)).clock(shared_clock);
    let keeper = keeper.build().unwrap();
    has_moved.store(true, Ordering::SeqCst);
    clock.suspended_secs.store(suspended_secs, Ordering::SeqCst);
    server
        .command(&["CLIENT", "KILL", "TYPE", "normal"])
        .unwrap();
    let mut answer = Ok(());
    until("a new connection is made", || {
        answer = keeper.try_lock("a").map(drop);
        let is_refused = |error: &Error| error.kind() == ErrorKind::Incompatible;
        let has_second = other.info("clients").unwrap()["connected_clients"] != "1";
        answer.as_ref().map_or_else(is_refused, |()| has_second)
    });
    answer
}

fn second_server_is_refused(kind: RedisKind) {
    let answer = lock_on_second_server(kind, 0);
    is_refused(answer, ErrorKind::Incompatible, "two servers");
}

/// The second server stands for a restarted one: for all that is known it was started during the suspend.
fn server_restarted_during_suspend_is_served(kind: RedisKind) {
    lock_on_second_server(kind, 3_600).unwrap();
}

/// It is another run of the server, but no server that was up beside the first one.
fn restarted_server_is_served(kind: RedisKind) {
    let server = start(kind);
    let client = client(&server, 0);
    let connect = move |limit| client.get_connection_with_timeout(limit);
    let keeper = try_keeper(&at(&server).connect_with(connect)).unwrap();
    drop(keeper.lock("a").unwrap());
    server.restart().unwrap();
    until("the server is asked again", || {
        keeper.try_lock("a").is_ok_and(|guard| guard.is_some())
    });
}
