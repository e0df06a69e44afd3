//! Drivers of stores with sessions: their URLs name a host or a Unix socket, and a database.

use lockkeeper_core::{Error, ErrorKind, Key, OpenContext};
use lockkeeper_remote::keys::{SOCKET, TLS};
use lockkeeper_remote::{Endpoint, RemoteOptions, given_once};

/// Returns the options and the database of a URL and its keys. `examples` is the advice if the URL names no server.
///
/// # Errors
/// As on opening, for everything that can be checked without the server.
pub fn driver_options(
    context: &OpenContext<'_>,
    db: &Key<String>,
    default_port: u16,
    examples: &str,
) -> Result<(RemoteOptions, Option<String>), Error> {
    let url = context.url();
    let invalid = |text| Err(Error::new(ErrorKind::InvalidUrl, text));
    let host = Endpoint::of_url(url, default_port);
    let endpoint = match (host, context.value(&SOCKET)?) {
        (Some(_), Some(_)) => {
            return invalid(
                "the URL names a host, and `socket` is given; say one of them".to_owned(),
            );
        }
        (None, None) => return invalid(format!("the URL names no host; write {examples}")),
        (Some(endpoint), None) => endpoint,
        (None, Some(socket)) => Endpoint::Unix(socket.into()),
    };
    let is_tls = context.value(&TLS)?.unwrap_or(false);
    let remote = RemoteOptions::new(endpoint).read(context, is_tls, "add tls=on")?;
    let in_path = Some(url.path().trim_start_matches('/')).filter(|db| !db.is_empty());
    Ok((remote, given_once(context, db, in_path)?))
}
