//! Programs that speak the protocol and are no PostgreSQL: each call ends, and with a bound in bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use lockkeeper_core::{Error, ErrorKind};

use crate::checks::{WAIT_LIMIT, with_timeouts};
use crate::store::{trial, try_open};

pub(crate) fn trials() -> Vec<Trial> {
    let cases: [(_, fn()); 4] = [
        (
            "hostile::login_asks_for_one_password",
            login_asks_for_one_password,
        ),
        (
            "hostile::login_without_acceptance_is_refused",
            login_without_acceptance_is_refused,
        ),
        (
            "hostile::reply_without_end_is_not_read_on",
            reply_without_end_is_not_read_on,
        ),
        (
            "hostile::login_in_drops_ends_by_its_deadline",
            login_in_drops_ends_by_its_deadline,
        ),
    ];
    cases.map(|(name, case)| trial(name, || None, case)).into()
}

const AUTHENTICATION_OK: &[u8] = b"R\0\0\0\x08\0\0\0\0";
const MD5: &[u8] = b"R\0\0\0\x0c\0\0\0\x05salt";
const READY: &[u8] = b"Z\0\0\0\x05I";

/// Serves each connection with a function that gets it after the start-up message.
fn serve(serve: impl Fn(&mut TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            if read_message(&mut stream).is_some() {
                serve(&mut stream);
            }
        }
    });
    addr
}

/// Reads a message without its tag.
fn read_message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut body = vec![0; (u32::from_be_bytes(length) as usize).checked_sub(4)?];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

#[track_caller]
fn refused(addr: SocketAddr, keys: &str) -> Error {
    let url = format!("postgres://keeper:s3cret@{addr}/shop?{keys}");
    let began = Instant::now();
    let error = try_open(&with_timeouts(&url)).unwrap_err();
    assert!(began.elapsed() < 2 * WAIT_LIMIT, "{:?}", began.elapsed());
    error
}

fn login_asks_for_one_password() {
    let addr = serve(|stream| {
        while stream.write_all(MD5).is_ok() {
            let mut tag = [0];
            if stream.read_exact(&mut tag).is_err() || read_message(stream).is_none() {
                return;
            }
        }
    });
    let error = refused(addr, "");
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
}

fn login_without_acceptance_is_refused() {
    let addr = serve(|stream| {
        let _ = stream.write_all(READY);
        let _ = stream.read(&mut [0]);
    });
    let error = refused(addr, "");
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.message().contains("does not speak"), "{error}");
}

fn reply_without_end_is_not_read_on() {
    // A row without a column, and a notice without a field.
    for part in [&b"D\0\0\0\x06\0\0"[..], b"N\0\0\0\x05\0"] {
        let addr = serve(move |stream| {
            let _ = stream.write_all(&[AUTHENTICATION_OK, READY].concat());
            let parts = part.repeat(10_000);
            while stream.write_all(&parts).is_ok() {}
        });
        // Some MiB of short messages take a second, or more on a busy machine.
        let error = refused(addr, "connect_timeout=90s&response_timeout=90s");
        assert!(error.message().contains("without an end"), "{error}");
    }
}

fn login_in_drops_ends_by_its_deadline() {
    let addr = serve(|stream| {
        // A notice with a long text.
        let mut next: &[u8] = b"N\0\x0f\0\0M";
        while stream.write_all(next).is_ok() {
            next = b"x";
            thread::sleep(Duration::from_millis(100));
        }
    });
    let error = refused(addr, "connect_timeout=1s");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("says nothing"), "{error}");
}
