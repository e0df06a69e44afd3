//! HTTP/1.1 on one connection.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "that is how a test fails"
)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use lockkeeper_core::ErrorKind;
use lockkeeper_remote::{Dialer, Endpoint, Failure, Http, RemoteOptions, Server};

const LIMIT: Duration = Duration::from_secs(30);

/// Returns a connection to a server that answers its first request so, and then does `after`.
fn connect(answer: &'static [u8], after: impl FnOnce(TcpStream) + Send + 'static) -> Http {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::tcp("127.0.0.1", listener.local_addr().unwrap().port());
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"{}") {
            let mut buffer = [0; 512];
            let count = stream.read(&mut buffer).unwrap();
            request.extend(buffer.iter().take(count));
        }
        // A byte at a time: no part of a reply comes as a whole.
        for byte in answer {
            stream.write_all(&[*byte]).unwrap();
        }
        after(stream);
    });
    let server = Server::new("Test", &endpoint);
    let dialer = Dialer::new(&RemoteOptions::new(endpoint)).unwrap();
    let stream = dialer.dial(&server, LIMIT).unwrap();
    Http::new(stream, server, "host", None)
}

fn stays_open(mut stream: TcpStream) {
    // Until the client closes it.
    let _ = stream.read(&mut [0]);
}

#[test]
fn replies_are_read_whatever_their_form() {
    for (answer, status, body) in [
        (&b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"[..], 200, "abc"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, ""),
        (
            b"HTTP/1.1 404 x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nTrailer: t\r\n\r\n",
            404,
            "abc",
        ),
    ] {
        for at_once in [false, true] {
            let mut http = connect(answer, stays_open);
            let reply = match at_once {
                false => http.post("/", b"{}", LIMIT),
                true => {
                    assert!(http.post_at_once("/", b"{}").unwrap());
                    http.read_posted(LIMIT)
                }
            };
            let reply = reply.unwrap();
            assert_eq!((reply.status, &reply.body[..]), (status, body.as_bytes()));
            assert!(http.is_quiet());
        }
    }
    let last = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let mut http = connect(last, stays_open);
    http.post("/", b"{}", LIMIT).unwrap();
    assert!(!http.is_quiet(), "the server is about to close it");
}

#[test]
fn stream_ends_with_the_server_or_by_a_shutdown_of_the_socket() {
    let chunk = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n";
    for is_ended_here in [false, true] {
        let mut http = connect(chunk, move |stream| match is_ended_here {
            true => stays_open(stream),
            false => drop(stream),
        });
        assert!(http.post_for_stream("/", b"{}", LIMIT).unwrap().is_none());
        assert_eq!(http.next_chunk(None).unwrap().unwrap(), b"ab");
        if is_ended_here {
            let socket = http.socket().try_clone().unwrap();
            thread::spawn(move || socket.shutdown(Shutdown::Both));
        }
        assert!(http.next_chunk(None).is_err());
    }
}

#[test]
fn missing_reply_is_unknown_and_another_protocol_is_named() {
    let fails = |answer, after: fn(TcpStream), limit| {
        let mut http = connect(answer, after);
        match http.post("/", b"{}", limit).unwrap_err() {
            Failure::Unanswered(error) => error.kind(),
            failure => panic!("{failure:?}"),
        }
    };
    let half = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab";
    assert_eq!(fails(half, drop, LIMIT), ErrorKind::Unknown);
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n";
    for end in 0..chunked.len() {
        let cut = chunked.get(..end).unwrap();
        assert_eq!(fails(cut, drop, LIMIT), ErrorKind::Unknown, "{end}");
    }
    let soon = Duration::from_millis(100);
    assert_eq!(fails(half, stays_open, soon), ErrorKind::Unknown);
    assert_eq!(
        fails(b"-ERR what\r\n", drop, LIMIT),
        ErrorKind::Incompatible
    );
    let endless = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
    assert_eq!(fails(endless, drop, LIMIT), ErrorKind::Incompatible);
}

#[test]
fn reply_in_drops_ends_by_the_deadline() {
    for head in [
        &b"HTTP/1.1 200 OK\r\nX: "[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n",
    ] {
        let mut http = connect(head, |mut stream| {
            while stream.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let failure = http.post("/", b"{}", Duration::from_millis(200));
        let Failure::Unanswered(error) = failure.unwrap_err() else {
            panic!("it may be carried out")
        };
        assert!(
            error.message().contains("did not answer in time"),
            "{error}"
        );
    }
}

#[test]
fn reply_without_end_is_not_read_on() {
    for (head, part) in [
        (&b"HTTP/1.1 200 OK\r\n"[..], &b"X: y\r\n"[..]),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"4\r\n[],\n\r\n",
        ),
    ] {
        let mut http = connect(head, |mut stream| {
            let parts = part.repeat(10_000);
            while stream.write_all(&parts).is_ok() {}
        });
        let failure = http.post("/", b"{}", LIMIT).unwrap_err();
        let error = failure.into_error();
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert!(error.message().contains("without an end"), "{error}");
    }
}
