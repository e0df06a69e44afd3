//! The parts that network stores share, without a store.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "that is how a test fails"
)]

use std::cell::Cell;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{CancelToken, Error, ErrorKind, HostInstant, Key, SystemClock};
use lockkeeper_remote::{
    Backoff, Connection, Endpoint, Failure, Found, Pool, RemoteOptions, RestartGrace, Server,
    Supplier, connect_any, keys,
};

#[test]
fn pauses_double_and_stay_under_the_limit() {
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(250));
    for longest in [10, 20, 40, 80, 160, 250, 250] {
        let longest = Duration::from_millis(longest);
        let pause = backoff.next_pause();
        assert!(longest / 2 <= pause && pause <= longest, "{pause:?}");
    }
}

fn server() -> Server {
    Server::new("Test", &Endpoint::tcp("127.0.0.1", 1))
}

fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
    let address = |port: &u16| SocketAddr::from(([127, 0, 0, 1], *port));
    ports.iter().map(address).collect()
}

#[test]
fn address_that_refuses_is_followed_by_the_next_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let found = addresses(&[1, port]);
    let limit = Duration::from_secs(60);
    let socket = connect_any(&server(), &*found, limit, |address, share| {
        TcpStream::connect_timeout(&address, share).map_err(|error| server().not_connected(error))
    });
    assert_eq!(socket.unwrap().peer_addr().unwrap().port(), port);
}

#[test]
fn time_is_shared_and_no_address_is_tried_without_any() {
    let limit = Duration::from_secs(60);
    let found = addresses(&[1, 2, 3]);
    let mut shares = Vec::new();
    let none = connect_any(&server(), &*found, limit, |_, share| {
        shares.push(share);
        Err::<(), _>(server().no_time_to_connect())
    });
    assert!(none.unwrap_err().is_unreachable());
    let [first, second, third] = shares.try_into().unwrap();
    assert!(first <= limit / 3 && second <= limit / 2 && third <= limit);
    assert!(
        first < second && second < third,
        "what one leaves over, the next one gets"
    );
    let none = connect_any(&server(), &*found, Duration::ZERO, |_, _| Ok(()));
    assert!(none.unwrap_err().is_unreachable());
}

#[test]
fn error_of_a_server_outlasts_that_of_an_address_that_is_gone() {
    for denies in [1, 2] {
        let found = addresses(&[1, 2]);
        let error = connect_any(&server(), &*found, Duration::MAX, |address, _| {
            Err::<(), _>(if address.port() == denies {
                Error::new(ErrorKind::PermissionDenied, "")
            } else {
                server().no_time_to_connect()
            })
        });
        assert_eq!(error.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}

#[test]
fn debug_names_the_endpoint_and_no_password() {
    let mut options = RemoteOptions::new(Endpoint::tcp("[::1]", 1));
    options.password = Some("s3cret".to_owned());
    assert_eq!(options.endpoint.to_string(), "[::1]:1");
    let shown = format!("{options:?}");
    assert!(
        shown.contains("***") && !shown.contains("s3cret"),
        "{shown}"
    );
    assert_eq!(
        Endpoint::Unix("/run/x.sock".into()).to_string(),
        "/run/x.sock"
    );
}

#[test]
fn values_out_of_bounds_are_refused() {
    let good = RemoteOptions::new(Endpoint::tcp("localhost", 1));
    assert!(good.check().is_ok());
    let time = |key: Key<Duration>| key.parse(key.spec.default).unwrap();
    assert_eq!(good.pool_size.to_string(), keys::POOL_SIZE.spec.default);
    assert_eq!(good.connect_timeout, time(keys::CONNECT_TIMEOUT));
    assert_eq!(good.response_timeout, time(keys::RESPONSE_TIMEOUT));
    assert_eq!(good.restart_grace, time(keys::RESTART_GRACE));
    let change = |change: &dyn Fn(&mut RemoteOptions)| {
        let mut options = good.clone();
        change(&mut options);
        options.check().unwrap_err()
    };
    for error in [
        change(&|options| options.pool_size = 0),
        change(&|options| options.pool_size = 1_001),
        change(&|options| options.connect_timeout = Duration::ZERO),
        change(&|options| options.response_timeout = Duration::MAX),
        change(&|options| options.restart_grace = Duration::MAX),
        change(&|options| {
            options.endpoint = Endpoint::Unix("/x".into());
            options.tls = true;
        }),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
    }
}

#[test]
fn server_grants_nothing_until_its_grace_is_over() {
    let seconds = Duration::from_secs;
    let now = HostInstant::NEVER - seconds(100);
    let grace = RestartGrace::new(seconds(30), seconds(10), now);
    for left in [20, 1] {
        let refused = grace.check(&server(), now + seconds(20 - left));
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(!error.is_unreachable(), "a fallback would grant it");
        let left = format!("another {left}.0s (`restart_grace`)");
        assert!(error.message().contains(&left), "{error}");
    }
    assert!(grace.check(&server(), now + seconds(20)).is_ok());
    for up in [30, 1_000] {
        let over = RestartGrace::new(seconds(30), seconds(up), now);
        assert!(over.check(&server(), now).is_ok());
    }
}

#[derive(Debug, PartialEq)]
struct Numbered(u32);

impl Connection for Numbered {
    fn is_quiet(&mut self, _: Duration) -> bool {
        self.0 != 13
    }
}

fn closed() -> Failure {
    Failure::Closed(Error::new(ErrorKind::Unavailable, "closed"))
}

#[test]
fn pool_never_exceeds_its_size_and_reuses_the_newest_connection() {
    let pool = Pool::new(2);
    let mut slots = [(); 2].map(|()| pool.try_checkout().unwrap());
    assert!(pool.try_checkout().is_none() && pool.checkout(Duration::ZERO, None).is_none());
    for (slot, number) in slots.iter_mut().zip([1, 2]) {
        slot.connection = Some(Numbered(number));
    }
    drop(slots);
    assert_eq!(pool.try_checkout().unwrap().connection, Some(Numbered(2)));
}

#[test]
fn waiting_caller_gets_the_slot_that_is_returned() {
    let pool = Pool::new(1);
    let mut slot = pool.try_checkout().unwrap();
    slot.connection = Some(Numbered(7));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            pool.checkout(Duration::MAX, None)
                .unwrap()
                .connection
                .take()
        });
        drop(slot);
        assert_eq!(waiting.join().unwrap(), Some(Numbered(7)));
    });
}

#[test]
fn spare_slots_leave_one_to_holders() {
    let pool = Pool::<Numbered>::new(2);
    let spare = || pool.checkout_spare(Duration::ZERO, None);
    let first = spare().unwrap();
    assert!(spare().is_none());
    let holders = pool.try_checkout().unwrap();
    drop(first);
    assert!(spare().is_none(), "the holder has the other one");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.checkout_spare(Duration::MAX, None).is_some());
        drop(holders);
        assert!(waiting.join().unwrap());
    });
    let single = Pool::<Numbered>::new(1);
    assert!(single.checkout_spare(Duration::ZERO, None).is_some());
}

#[test]
fn last_slot_is_not_waited_on() {
    let pool = Pool::<Numbered>::new(3);
    let wait = || pool.checkout_to_wait(Duration::ZERO, None);
    let (kept, permit) = wait().unwrap();
    let _second = wait().unwrap();
    assert!(wait().is_none());
    assert!(pool.try_checkout().is_some());
    assert_eq!(pool.waiting(), 2);
    drop(permit);
    let _third = wait().expect("one wait is over, and its slot is kept");
    assert!(pool.try_checkout().is_none());
    drop(kept);
    assert!(wait().is_none() && pool.try_checkout().is_some());
    let single = Pool::<Numbered>::new(1);
    let wait = single.checkout_to_wait(Duration::ZERO, None);
    assert!(wait.is_some());
}

#[test]
fn waiting_caller_notices_all_that_it_waits_for() {
    let pool = Pool::<Numbered>::new(2);
    for _ in 0..100 {
        let is_over = &AtomicBool::new(false);
        let is_set = move || is_over.load(Ordering::SeqCst);
        let all = [(); 2].map(|()| pool.try_checkout().unwrap());
        thread::scope(|scope| {
            let other =
                scope.spawn(|| pool.checkout_or(Duration::MAX, None, || is_set().then_some(())));
            is_over.store(true, Ordering::SeqCst);
            pool.recheck();
            assert!(matches!(other.join().unwrap(), Some(Found::Other(()))));
        });
        is_over.store(false, Ordering::SeqCst);
        // A caller that finds something else does not keep the slot from the others.
        thread::scope(|scope| {
            let found = || {
                pool.checkout_or(Duration::MAX, None, || is_set().then_some(()))
                    .map(drop)
            };
            let waited = || pool.checkout_to_wait(Duration::MAX, None).map(drop);
            let slot = || pool.checkout(Duration::MAX, None).map(drop);
            scope.spawn(found);
            scope.spawn(waited);
            scope.spawn(slot);
            is_over.store(true, Ordering::SeqCst);
            pool.recheck();
            drop(all);
        });
    }
}

#[test]
fn only_a_connection_that_was_open_is_replaced() {
    let pool = Pool::new(1);
    for (idle, fails_on, tried, answer) in [
        (None, 0, vec![1], true),
        (Some(9), 0, vec![9], true),
        // It was closed while it was idle.
        (Some(13), 0, vec![1], true),
        (Some(9), 9, vec![9, 1], true),
        (None, 1, vec![1], false),
        (Some(9), 10, vec![9], true),
    ] {
        let mut slot = pool.try_checkout().unwrap();
        slot.connection = idle.map(Numbered);
        let seen = Cell::new(Vec::new());
        let result = slot.run(
            &SystemClock,
            HostInstant::NEVER,
            None,
            |_| Ok(Numbered(1)),
            |connection, _| {
                let mut numbers = seen.take();
                numbers.push(connection.0);
                seen.set(numbers);
                if connection.0 == fails_on {
                    return Err(closed());
                }
                Ok(())
            },
        );
        assert_eq!(seen.take(), tried);
        assert_eq!(result.is_ok(), answer);
        assert_eq!(slot.connection.take().is_some(), answer);
    }
}

#[test]
fn cancelled_caller_waits_for_no_slot() {
    let pool = &Pool::<Numbered>::new(1);
    let held = pool.try_checkout().unwrap();
    for _ in 0..100 {
        let cancel = CancelToken::new();
        thread::scope(|scope| {
            let cancelled = Some(&cancel);
            let none = || None::<()>;
            scope.spawn(move || assert!(pool.checkout(Duration::MAX, cancelled).is_none()));
            scope.spawn(move || assert!(pool.checkout_spare(Duration::MAX, cancelled).is_none()));
            scope.spawn(move || assert!(pool.checkout_to_wait(Duration::MAX, cancelled).is_none()));
            scope
                .spawn(move || assert!(pool.checkout_or(Duration::MAX, cancelled, none).is_none()));
            cancel.cancel();
        });
    }
    drop(held);
    assert!(pool.try_checkout().is_some());
}

/// The connection that comes later serves the next caller. Until then it counts for the pool.
#[test]
fn cancelled_caller_waits_for_no_connection() {
    let pool = Pool::new(1);
    let mut slot = pool.try_checkout().unwrap();
    let cancel = CancelToken::new();
    let (go, gone) = channel::<()>();
    let (begun, has_begun) = channel();
    let gone = Arc::new(Mutex::new(gone));
    let connect = move |_| {
        let _ = begun.send(());
        let _ = gone.lock().unwrap().recv();
        Ok(Numbered(1))
    };
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            let work = |_: &mut Numbered, _| Ok(());
            let cancel = Some(&cancel);
            slot.run(&SystemClock, HostInstant::NEVER, cancel, connect, work)
        });
        has_begun.recv().unwrap();
        cancel.cancel();
        let failure = running.join().unwrap().unwrap_err();
        assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    });
    drop(slot);
    assert!(pool.try_checkout().is_none());
    drop(go);
    let mut slot = pool.checkout(Duration::MAX, None).unwrap();
    assert_eq!(slot.connection.take(), Some(Numbered(1)));
}

/// The caller that may be cancelled connects on a thread of its own.
#[test]
fn slot_is_free_again_if_no_thread_connects() {
    const STACK: &str = "RUST_MIN_STACK";
    if std::env::var_os(STACK).is_none() {
        let mut itself = Command::new(std::env::current_exe().unwrap());
        itself.args(["--exact", "slot_is_free_again_if_no_thread_connects"]);
        // No machine has as much memory.
        let ran = itself.env(STACK, (1_u64 << 60).to_string()).output();
        let ran = ran.unwrap();
        let printed = String::from_utf8_lossy(&ran.stdout);
        assert!(
            ran.status.success() && printed.contains("1 passed"),
            "{printed}"
        );
        return;
    }
    let pool = Pool::new(1);
    let mut slot = pool.try_checkout().unwrap();
    let failure = slot.run(
        &SystemClock,
        HostInstant::NEVER,
        Some(&CancelToken::new()),
        |_| Ok(Numbered(1)),
        |_, _| Ok(()),
    );
    let failure = failure.unwrap_err();
    assert!(failure.error().message().contains("thread"), "{failure:?}");
    drop(slot);
    assert!(pool.try_checkout().is_some());
}

#[cfg(feature = "tls")]
#[test]
fn file_without_a_certificate_is_refused() {
    for (file, word) in [("/nowhere.pem", "cannot be read"), (file!(), "ca_file")] {
        let mut options = RemoteOptions::new(Endpoint::tcp("localhost", 1));
        (options.tls, options.ca_file) = (true, Some(file.into()));
        let error = options.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
        assert!(error.message().contains(word), "{error}");
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn tls_is_refused_in_a_build_without_it() {
    let mut options = RemoteOptions::new(Endpoint::tcp("localhost", 1));
    options.tls = true;
    for result in [
        options.check(),
        lockkeeper_remote::Dialer::new(&options).map(drop),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("`tls`"), "{error}");
    }
}

/// A function that makes or lends connections is code of the application's.
#[test]
fn function_without_a_connection_is_an_outage() {
    let patient = Duration::from_secs(60);
    let text = |supplier: &Supplier<()>, limit| {
        let error = supplier.take(limit).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        format!("{error:?}")
    };
    let fails = Supplier::new(|_| Err::<(), _>(std::io::Error::other("the tunnel is down")));
    let said = text(&fails, patient);
    assert!(said.contains("pool large enough"), "{said}");
    assert!(said.contains("the tunnel is down"), "{said}");
    let panics = Supplier::new(|_| -> Result<(), std::io::Error> { panic!("on purpose") });
    assert!(text(&panics, patient).contains("panicked"));

    // It hangs until the end of the case.
    let (go, gone) = mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let hangs = Supplier::new(move |_| {
        let _ = gone.lock().unwrap().recv();
        Ok::<_, std::io::Error>(())
    });
    let hasty = Duration::from_millis(1);
    assert!(text(&hangs, hasty).contains("in time"));
    while !text(&hangs, hasty).contains("hangs in several") {}
    drop(go);
}
