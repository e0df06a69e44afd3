//! Connections that the application makes, or lends from a pool.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{AcquireOptions, CancelToken, Error, ErrorKind, LockKeeper};
use lockkeeper_mysql::{Conn, MySqlOptions, MySqlProvider};
use lockkeeper_testkit::{MySqlKind, MySqlServer, cases, until};
use mysql::prelude::Queryable;
use mysql::{Opts, OptsBuilder};
use r2d2::{ManageConnection, Pool};

use crate::checks::{REPLY_LIMIT, WAIT_LIMIT, is_refused};
use crate::store::{Case, open, start, waiters};

pub(crate) const CASES: &[Case] = cases![
    lent_sessions_come_back_as_they_were,
    session_in_doubt_is_closed_and_replaced,
    session_that_was_shown_is_closed,
    pool_that_resets_sessions_serves,
    unfit_sessions_are_refused,
    login_beside_function_is_refused,
];

/// Makes the sessions of an application's pool.
struct Manager(Opts);

impl ManageConnection for Manager {
    type Connection = Conn;
    type Error = mysql::Error;

    fn connect(&self) -> Result<Conn, mysql::Error> {
        Conn::new(self.0.clone())
    }

    fn is_valid(&self, conn: &mut Conn) -> Result<(), mysql::Error> {
        conn.ping()
    }

    fn has_broken(&self, conn: &mut Conn) -> bool {
        conn.ping().is_err()
    }
}

fn opts(server: &MySqlServer) -> Opts {
    Opts::from_url(&server.url()).unwrap()
}

/// What the sessions of the application have set for themselves.
const IDLE: u64 = 1_234;

/// Makes a pool of at most `size` sessions, none of them open yet.
fn pool(server: &MySqlServer, size: u32) -> Pool<Manager> {
    let opts = OptsBuilder::from_opts(opts(server))
        .read_timeout(Some(WAIT_LIMIT))
        .init(vec![format!("SET SESSION wait_timeout = {IDLE}")]);
    let builder = Pool::builder().max_size(size).min_idle(Some(0));
    builder.build(Manager(opts.into())).unwrap()
}

fn at(server: &MySqlServer) -> MySqlOptions {
    let addr = server.addr();
    let options = MySqlOptions::tcp(addr.ip().to_string(), addr.port());
    options
        .response_timeout(REPLY_LIMIT)
        .connect_timeout(REPLY_LIMIT)
}

fn try_keeper(options: &MySqlOptions) -> Result<LockKeeper, Error> {
    let provider = MySqlProvider::open(options, "default")?;
    LockKeeper::builder(Arc::new(provider)).build()
}

fn borrowing(server: &MySqlServer, pool: &Pool<Manager>) -> LockKeeper {
    let pool = pool.clone();
    let options = at(server).borrow_with(move |limit| pool.get_timeout(limit));
    try_keeper(&options).unwrap()
}

/// Returns how many connections the pool has open, and how many of them the application can have at once.
fn counts(pool: &Pool<Manager>) -> (u32, u32) {
    (pool.state().connections, pool.state().idle_connections)
}

/// Repeats holds until they last for less than a second. The session of a longer hold is closed, since an operator
/// may have seen it.
fn until_not_shown(hold: impl Fn()) {
    until("a hold is short", || {
        let began = Instant::now();
        hold();
        began.elapsed() < Duration::from_secs(1)
    });
}

fn lent_sessions_come_back_as_they_were(kind: MySqlKind) {
    let server = start(kind);
    let pool = pool(&server, 3);
    let keeper = borrowing(&server, &pool);
    until_not_shown(|| {
        let guards = ["a", "b", "c"].map(|name| keeper.lock(name).unwrap());
        assert_eq!(counts(&pool), (3, 0), "each name has a session");
        for guard in guards {
            guard.release().unwrap();
        }
    });
    until("all but one session are back", || counts(&pool) == (3, 2));
    drop(keeper);
    until("all sessions are back", || counts(&pool) == (3, 3));
    let mut all = [(); 3].map(|()| pool.get().unwrap());
    for conn in &mut all {
        let idle: Option<u64> = conn.query_first("SELECT @@SESSION.wait_timeout").unwrap();
        assert_eq!(idle, Some(IDLE));
        assert_eq!(read_timeout(conn), Some(WAIT_LIMIT));
    }
    assert_eq!(server.held().unwrap(), []);
    let mut client = server.client().unwrap();
    assert_eq!(client.status("Prepared_stmt_count").unwrap(), 0);
}

fn read_timeout(conn: &Conn) -> Option<Duration> {
    use std::os::fd::{AsRawFd, BorrowedFd};

    #[expect(unsafe_code, reason = "the descriptor is open while `conn` is")]
    let socket = unsafe { BorrowedFd::borrow_raw(conn.as_raw_fd()) };
    let socket = std::net::TcpStream::from(socket.try_clone_to_owned().unwrap());
    socket.read_timeout().unwrap()
}

/// A wait is cancelled by shutting its socket down.
fn session_in_doubt_is_closed_and_replaced(kind: MySqlKind) {
    let server = start(kind);
    let held = open(&server, "").lock("a").unwrap();
    let pool = pool(&server, 2);
    let keeper = borrowing(&server, &pool);
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().wait_forever().cancel(&cancel);
    thread::scope(|scope| {
        let waits = scope.spawn(|| keeper.acquire("a", &options).map(drop));
        until("the keeper waits in the server", || waiters(&server) == 1);
        cancel.cancel();
        let error = waits.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    });
    until("the pool has dropped it", || counts(&pool) == (0, 0));
    held.release().unwrap();
    until_not_shown(|| {
        keeper.lock("a").unwrap().release().unwrap();
    });
    drop(keeper);
    until("a good session is back", || counts(&pool) == (1, 1));
}

/// An operator may know the session by a hold of a second, and end it later.
fn session_that_was_shown_is_closed(kind: MySqlKind) {
    let server = start(kind);
    let pool = pool(&server, 2);
    let keeper = borrowing(&server, &pool);
    let guard = keeper.lock("a").unwrap();
    let began = Instant::now();
    until("the hold may have been shown", || {
        began.elapsed() > Duration::from_millis(1_100)
    });
    guard.release().unwrap();
    until("the pool has dropped it", || counts(&pool) == (0, 0));
    keeper.lock("a").unwrap().release().unwrap();
}

/// The pool of the mysql crate resets a session that comes back, which releases its named locks.
fn pool_that_resets_sessions_serves(kind: MySqlKind) {
    let server = start(kind);
    let pool = mysql::Pool::new(opts(&server)).unwrap();
    let lent = move |limit| pool.try_get_conn(limit).map(Reset);
    let keeper = try_keeper(&at(&server).borrow_with(lent)).unwrap();
    for _ in 0..2 {
        let guards = ["a", "b"].map(|name| keeper.lock(name).unwrap());
        assert_eq!(server.held().unwrap().len(), 2);
        for guard in guards {
            guard.release().unwrap();
        }
    }
}

struct Reset(mysql::PooledConn);

impl Deref for Reset {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        self.0.as_ref()
    }
}

impl DerefMut for Reset {
    fn deref_mut(&mut self) -> &mut Conn {
        self.0.as_mut()
    }
}

/// Resets the session between two statements, or changes it.
struct Restless {
    conns: Vec<Conn>,
    resets: bool,
}

impl Deref for Restless {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        &self.conns[0]
    }
}

impl DerefMut for Restless {
    fn deref_mut(&mut self) -> &mut Conn {
        if self.resets {
            self.conns[0].reset().unwrap();
        }
        self.conns.rotate_left(1);
        &mut self.conns[0]
    }
}

fn unfit_sessions_are_refused(kind: MySqlKind) {
    let server = start(kind);
    for (made, word) in [
        ("SET autocommit = 0", "autocommit"),
        ("START TRANSACTION", "in a transaction"),
    ] {
        let opts = OptsBuilder::from_opts(opts(&server)).init(vec![made]);
        let make = move |_| Conn::new(opts.clone());
        let opened = try_keeper(&at(&server).connect_with(make));
        is_refused(opened, ErrorKind::Incompatible, &[word]);
    }
    for (count, resets) in [(1, true), (2, false)] {
        let opts = opts(&server);
        let lend = move |_| -> mysql::Result<_> {
            let conns = (0..count).map(|_| Conn::new(opts.clone()));
            let conns = conns.collect::<mysql::Result<_>>()?;
            Ok(Restless { conns, resets })
        };
        let opened = try_keeper(&at(&server).borrow_with(lend));
        is_refused(opened, ErrorKind::Incompatible, &["shares out"]);
    }
}

#[derive(Debug)]
struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tunnel is down")
    }
}

impl std::error::Error for Broken {}

fn login_beside_function_is_refused(_: MySqlKind) {
    let options = MySqlOptions::tcp("nowhere", 1)
        .user("me")
        .connect_with(|_| Err(Broken));
    is_refused(try_keeper(&options), ErrorKind::InvalidValue, &["user"]);
    let base = MySqlOptions::tcp("nowhere", 1).database("shop");
    let options = base.connect_with(|_| Err(Broken));
    is_refused(try_keeper(&options), ErrorKind::InvalidValue, &["database"]);
}
