//! Byte streams that the application connects.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind, LockKeeper};
use lockkeeper_postgres::{PostgresOptions, PostgresProvider, Transport};
use lockkeeper_testkit::{PgBouncer, PoolMode, PostgresKind, PostgresServer, cases, until};

use crate::checks::{REPLY_LIMIT, is_refused, waits_in_vain};
use crate::store::{Case, open, start};

pub(crate) const CASES: &[Case] = cases![
    streams_of_the_application_hold_locks,
    stopped_server_ends_no_call,
    pooler_behind_tunnel_is_found,
    one_stream_twice_is_refused,
    unfit_streams_are_refused,
    waits_that_end_leave_no_statements,
];

/// The address names nothing: only the application's function connects.
fn named() -> PostgresOptions {
    PostgresOptions::tcp("db.invalid", 5432)
        .user(PostgresServer::USER)
        .password(PostgresServer::PASSWORD)
        .database(PostgresServer::DATABASE)
        .response_timeout(REPLY_LIMIT)
        .connect_timeout(REPLY_LIMIT)
}

fn try_keeper(options: &PostgresOptions) -> Result<LockKeeper, Error> {
    let provider = PostgresProvider::open(options, "default")?;
    LockKeeper::builder(Arc::new(provider)).build()
}

fn connect(addr: SocketAddr) -> io::Result<Transport> {
    TcpStream::connect(addr).map(Transport::new)
}

fn streams_of_the_application_hold_locks(kind: PostgresKind) {
    let server = start(kind);
    let (addr, socket) = (server.addr(), server.socket());
    let layered = move |_| {
        let socket = TcpStream::connect(addr)?;
        let below = socket.try_clone()?;
        Ok::<_, io::Error>(Transport::encrypted(below, socket))
    };
    let made: [PostgresOptions; 3] = [
        named().connect_with(move |_| connect(addr)),
        named().connect_with(move |_| UnixStream::connect(&socket).map(Transport::new)),
        named().connect_with(layered),
    ];
    let other = open(&server, "");
    for options in made {
        let keeper = try_keeper(&options).unwrap();
        let guard = keeper.lock("a").unwrap();
        assert!(other.try_lock("a").unwrap().is_none());
        guard.release().unwrap();
        let held = other.lock("a").unwrap();
        // The end of its time ends the wait in the server.
        waits_in_vain(&keeper);
        drop(held);
        drop(keeper.lock("a").unwrap());
    }
}

/// The application's socket has no limit of time.
fn stopped_server_ends_no_call(kind: PostgresKind) {
    let server = start(kind);
    let addr = server.addr();
    let options = named().connect_with(move |_| connect(addr));
    let keeper = try_keeper(&options.response_timeout(Duration::from_millis(100))).unwrap();
    server.stop().unwrap();
    let error = keeper.try_lock("a").unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    server.cont().unwrap();
    until("the server is asked again", || {
        keeper.try_lock("a").is_ok_and(|guard| guard.is_some())
    });
}

fn pooler_behind_tunnel_is_found(kind: PostgresKind) {
    let server = start(kind);
    let pooler = PgBouncer::start(&server, PoolMode::Transaction).unwrap();
    let addr = pooler.addr();
    let options = named().connect_with(move |_| connect(addr));
    is_refused(
        try_keeper(&options),
        ErrorKind::Incompatible,
        &["pool_mode"],
    );
}

/// A second login on the stream of a session ends that session, so two connections never hold one lock.
fn one_stream_twice_is_refused(kind: PostgresKind) {
    let server = start(kind);
    let only = Mutex::new(TcpStream::connect(server.addr()).unwrap());
    let connect = move |_| only.lock().unwrap().try_clone().map(Transport::new);
    let keeper = try_keeper(&named().connect_with(connect)).unwrap();
    let guard = keeper.lock("a").unwrap();
    let _busy = open(&server, "").lock("b").unwrap();
    // A wait needs a connection of its own.
    let waited = keeper.try_lock_for("b", Duration::from_secs(1));
    assert!(waited.is_err(), "{waited:?}");
    until("the guard is lost", || guard.ensure_held().is_err());
}

fn unfit_streams_are_refused(kind: PostgresKind) {
    let server = start(kind);
    let down = named().connect_with(|_| Err(io::Error::other("the tunnel is down")));
    is_refused(
        try_keeper(&down),
        ErrorKind::Unavailable,
        &["the tunnel is down"],
    );
    let addr = server.addr();
    let encrypted = named().tls(None).connect_with(move |_| {
        let socket = TcpStream::connect(addr)?;
        Ok::<_, io::Error>(Transport::encrypted(socket.try_clone()?, socket))
    });
    is_refused(try_keeper(&encrypted), ErrorKind::InvalidValue, &["TLS"]);
}

/// Counts how often a statement that waits is prepared.
struct Counting(TcpStream, Arc<AtomicUsize>);

impl Read for Counting {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Counting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Only the message that prepares a statement has its text.
        let waits = b"pg_advisory_lock($1::int8)";
        let found = bytes.windows(waits.len()).filter(|part| part == waits);
        self.1.fetch_add(found.count(), Ordering::SeqCst);
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The server keeps a prepared statement until its session ends.
fn waits_that_end_leave_no_statements(kind: PostgresKind) {
    let server = start(kind);
    let addr = server.addr();
    let [prepared, connections] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
    let (counted, made) = (Arc::clone(&prepared), Arc::clone(&connections));
    let connect = move |_| {
        made.fetch_add(1, Ordering::SeqCst);
        let socket = TcpStream::connect(addr)?;
        let below = socket.try_clone()?;
        let stream = Counting(socket, Arc::clone(&counted));
        Ok::<_, io::Error>(Transport::encrypted(below, stream))
    };
    let keeper = try_keeper(&named().connect_with(connect)).unwrap();
    let _held = open(&server, "").lock("a").unwrap();
    for _ in 0..8 {
        waits_in_vain(&keeper);
    }
    let [prepared, connections] = [prepared, connections].map(|it| it.load(Ordering::SeqCst));
    assert!((1..=connections).contains(&prepared), "{prepared}");
}
