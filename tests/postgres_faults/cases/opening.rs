//! Errors on opening a port on which something else listens. The other errors on opening are cases of the
//! backend's own tests.

use lockkeeper::ErrorKind;
use lockkeeper_testkit::PostgresKind;

use super::Case;
use crate::faults::{fake_server, refused};

pub(super) const CASES: &[Case] = &[("other_protocol_on_the_port", other_protocol_on_the_port)];

/// A password that no error may contain.
const SECRET: &str = "s3cret";

fn other_protocol_on_the_port(_: PostgresKind) {
    for first in [
        b"SSH-2.0-OpenSSH_9.2\r\n".as_slice(),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\0\0\0\0\0",
        b"R\0\0\0\x01",
        b"R\x7f\xff\xff\xff\0\0\0\0",
        b"E\0\0\0\x05\0",
    ] {
        let addr = fake_server(first, b"what?\r\n", usize::MAX);
        for tls in ["", "&tls=on"] {
            let url = format!("postgres://me:{SECRET}@{addr}/?connect_timeout=300ms{tls}");
            let error = lockkeeper::open(&url).expect_err("it is no PostgreSQL server");
            let kinds = [ErrorKind::Incompatible, ErrorKind::Unavailable];
            assert!(kinds.contains(&error.kind()), "{error:?}");
            assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
        }
    }
    let silent = fake_server(b"", b"-ERR unknown command\r\n", usize::MAX);
    let url = format!("postgres://me:{SECRET}@{silent}/?connect_timeout=300ms");
    refused(
        &url,
        ErrorKind::Incompatible,
        &[&silent, "PostgreSQL server"],
    );
}
