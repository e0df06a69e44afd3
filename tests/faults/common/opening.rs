//! Errors on opening, and servers that speak another protocol.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Instant;

use lockkeeper::ErrorKind;

use super::WAIT_LIMIT;

/// Passwords that no error may contain.
const SECRETS: [&str; 2] = ["s3cret", "open-sesame"];

/// Checks that opening fails within [`WAIT_LIMIT`] with this kind of error, and that the error contains all
/// `words` and no secret.
#[track_caller]
pub(crate) fn refused(url: &str, kind: ErrorKind, words: &[&str]) {
    let began = Instant::now();
    let error = lockkeeper::open(url).expect_err(url);
    assert!(began.elapsed() < WAIT_LIMIT, "{:?}", began.elapsed());
    assert_eq!(error.kind(), kind, "{error:?}");
    for word in words {
        assert!(error.to_string().contains(word), "no {word:?} in {error:?}");
    }
    for shown in [format!("{error:?}"), error.to_string()] {
        assert!(
            !SECRETS.iter().any(|secret| shown.contains(secret)),
            "{shown}"
        );
    }
}

/// Listens on a free port until the program ends. Sends `greeting` to each client, and then `reply` to
/// its first `replies` messages.
pub(crate) fn fake_server(greeting: &'static [u8], reply: &'static [u8], replies: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let _ = stream.write_all(greeting);
                let mut buffer = [0; 512];
                let mut sent = 0;
                while matches!(stream.read(&mut buffer), Ok(count) if count > 0) {
                    if sent < replies {
                        let _ = stream.write_all(reply);
                        sent += 1;
                    }
                }
            });
        }
    });
    address.to_string()
}
