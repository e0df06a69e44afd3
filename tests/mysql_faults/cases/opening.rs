//! Errors on opening a port on which something else listens. The other errors on opening are cases of the
//! backend's own tests.

use lockkeeper::ErrorKind;
use lockkeeper_testkit::MySqlKind;

use super::Case;
use crate::faults::{fake_server, refused};

pub(super) const CASES: &[Case] = &[("other_protocol_on_the_port", other_protocol_on_the_port)];

/// A password that no error may contain.
const SECRET: &str = "s3cret";

fn other_protocol_on_the_port(_: MySqlKind) {
    for first in [
        b"SSH-2.0-OpenSSH_9.2\r\n".as_slice(),
        b"220 mail.example.org ESMTP\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\0",
        b"\x01\0\0\0\x09",
        // MySQL 3.23, which hashed passwords in another way.
        b"\x19\x00\x00\x00\x093.23.49\x00\x01\x00\x00\x00abcdefgh\x00\x2c\x00",
    ] {
        let addr = fake_server(first, b"what?\r\n", usize::MAX);
        for tls in ["", "&tls=on"] {
            let url = format!("mysql://me:{SECRET}@{addr}/?connect_timeout=300ms{tls}");
            let error = lockkeeper::open(&url).expect_err("it is no MySQL server");
            let kinds = [ErrorKind::Incompatible, ErrorKind::Unavailable];
            assert!(kinds.contains(&error.kind()), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains("MySQL server") && text.contains(&addr),
                "{text}"
            );
            assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
        }
    }
    // Redis and HTTP servers send nothing before the client does.
    let silent = fake_server(b"", b"-ERR unknown command\r\n", usize::MAX);
    let url = format!("mysql://me:{SECRET}@{silent}/?connect_timeout=300ms");
    refused(&url, ErrorKind::Unavailable, &[&silent, "MySQL server"]);
}
