//! Sessions that the server keeps after the keeper has closed them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::{AcquireOptions, CancelToken, ErrorKind, Released};
use lockkeeper_testkit::{MySqlKind, cases, until};

use super::Case;
use super::store::{assert_clean, open, start, waiting_for};

pub(super) const CASES: &[Case] = cases![
    own_half_open_session_is_not_busy,
    own_half_open_wait_is_not_busy,
];

/// Carries connections. After `is_dying` is set, the first connection drops everything from its next reply on. The
/// server does not notice that the client has closed it.
fn half_open(server: SocketAddr, is_dying: &Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let is_dying = Arc::clone(is_dying);
    thread::spawn(move || {
        for number in 0.. {
            let (client, _) = listener.accept().unwrap();
            let server = TcpStream::connect(server).unwrap();
            let is_dead = Arc::new(AtomicBool::new(false));
            let (mut requests, mut sent) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            let no_more = Arc::clone(&is_dead);
            thread::spawn(move || {
                let mut request = [0; 4096];
                while let Ok(count @ 1..) = requests.read(&mut request) {
                    if !no_more.load(Ordering::SeqCst) {
                        sent.write_all(request.get(..count).unwrap()).unwrap();
                    }
                }
            });
            let is_dying = Arc::clone(&is_dying);
            let (mut client, mut server) = (client, server);
            thread::spawn(move || {
                let mut reply = [0; 4096];
                while let Ok(count @ 1..) = server.read(&mut reply) {
                    if number == 0 && is_dying.load(Ordering::SeqCst) {
                        is_dead.store(true, Ordering::SeqCst);
                    } else {
                        client.write_all(reply.get(..count).unwrap()).unwrap();
                    }
                }
            });
        }
    });
    addr
}

/// The server granted the name to a connection that this keeper has closed, and has not noticed that.
fn own_half_open_session_is_not_busy(kind: MySqlKind) {
    let server = start(kind);
    let is_dying = Arc::new(AtomicBool::new(false));
    let url = server.url_via(half_open(server.addr(), &is_dying));
    let keys = "ttl=30s&response_timeout=500ms&connect_timeout=20s";
    let keeper = open(&url, keys);
    is_dying.store(true, Ordering::SeqCst);
    let granted = keeper.try_lock("a").unwrap();
    let granted = granted.expect("the keeper ends its own former session");
    assert_eq!(granted.release().unwrap(), Released::Done);
    drop(keeper);
    assert_clean(&server);
}

/// The server grants the name to a wait that this keeper has cancelled, ahead of its next one.
fn own_half_open_wait_is_not_busy(kind: MySqlKind) {
    let server = start(kind);
    let is_dying = Arc::new(AtomicBool::new(false));
    let url = server.url_via(half_open(server.addr(), &is_dying));
    let keeper = open(&url, "ttl=10m");
    let rival = open(&server.url(), "");
    let held = rival.lock("a").unwrap();
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().wait_forever().cancel(&cancel);
    thread::scope(|scope| {
        let cancelled = scope.spawn(|| keeper.acquire("a", &options).map(drop));
        until("the waiter is queued", || {
            waiting_for(&server, "a").len() == 1
        });
        is_dying.store(true, Ordering::SeqCst);
        cancel.cancel();
        let error = cancelled.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
        // Longer than the response timeout: before that, the answer of a slow server is that the rival has it.
        let next = scope.spawn(|| keeper.try_lock_for("a", Duration::from_secs(20)));
        until("both sessions wait", || {
            waiting_for(&server, "a").len() == 2
        });
        assert_eq!(held.release().unwrap(), Released::Done);
        match next.join().unwrap() {
            // It has ended its former session in time.
            Ok(Some(guard)) => drop(guard),
            Ok(None) => panic!("no other keeper holds it"),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    });
    // A slow server ends the former session at this attempt, and by itself in ten minutes.
    until("the keeper has ended its former session", || {
        keeper.try_lock("a").is_ok_and(|it| it.is_some())
    });
    drop((keeper, rival));
    assert_clean(&server);
}
