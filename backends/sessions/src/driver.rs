//! Drivers of stores with sessions: their URLs name a host or a Unix socket, and a database.

use std::path::PathBuf;

use lockkeeper_core::{Error, ErrorKind, Key, OpenContext};
use lockkeeper_remote::keys::{SOCKET, TLS};
use lockkeeper_remote::{Endpoint, RemoteOptions, given_once};

/// The keys and values by which other clients of a store say how it uses TLS, so that their URLs work as they are.
#[derive(Debug)]
pub struct TlsNames {
    /// The key that says whether connections are encrypted.
    pub mode: Key<String>,
    /// Its value for plain text.
    pub off: &'static str,
    /// Its values for TLS. All of them check the server's certificate and name here, as the strictest one says.
    pub on: &'static [&'static str],
    /// Its values that may fall back to plain text, which nothing here does.
    pub may_be_plain: &'static [&'static str],
    /// The key of a file of certificates to trust.
    pub ca_file: Key<String>,
}

impl TlsNames {
    /// Returns whether connections are encrypted.
    fn is_tls(&self, context: &OpenContext<'_>) -> Result<bool, Error> {
        let name = self.mode.spec.name;
        let mode = match (context.value(&TLS)?, context.value(&self.mode)?) {
            (tls, None) => return Ok(tls.unwrap_or(false)),
            (Some(_), Some(_)) => {
                return Err(invalid(format!(
                    "`tls` and `{name}` are given; say one of them"
                )));
            }
            (None, Some(mode)) => mode,
        };
        let is = |known: &&str| known.eq_ignore_ascii_case(&mode);
        if self.on.iter().any(is) {
            return Ok(true);
        }
        if is(&self.off) {
            return Ok(false);
        }
        let (off, on) = (self.off, self.on.join(", "));
        Err(invalid(
            match self.may_be_plain.iter().find(|known| is(known)) {
                Some(known) => format!(
                    "`{name}={known}` may fall back to plain text, which an attacker on the way can force; write `tls=on`, or `{name}={off}`"
                ),
                None => format!("`{name}` takes {off}, {on}"),
            },
        ))
    }
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidValue, text)
}

/// Returns the options and the database of a URL and its keys. `examples` is the advice if the URL names no server.
///
/// # Errors
/// As on opening, for everything that can be checked without the server.
pub fn driver_options(
    context: &OpenContext<'_>,
    db: &Key<String>,
    default_port: u16,
    examples: &str,
    names: &TlsNames,
) -> Result<(RemoteOptions, Option<String>), Error> {
    let url = context.url();
    let invalid_url = |text| Err(Error::new(ErrorKind::InvalidUrl, text));
    let host = Endpoint::of_url(url, default_port);
    let endpoint = match (host, context.value(&SOCKET)?) {
        (Some(_), Some(_)) => {
            return invalid_url(
                "the URL names a host, and `socket` is given; say one of them".to_owned(),
            );
        }
        (None, None) => return invalid_url(format!("the URL names no host; write {examples}")),
        (Some(endpoint), None) => endpoint,
        (None, Some(socket)) => Endpoint::Unix(socket.into()),
    };
    let is_tls = names.is_tls(context)?;
    let mut remote = RemoteOptions::new(endpoint).read(context, is_tls, "add tls=on")?;
    if let Some(file) = context.value(&names.ca_file)? {
        let name = names.ca_file.spec.name;
        if remote.ca_file.is_some() {
            return Err(invalid(format!(
                "`ca_file` and `{name}` are given; say one of them"
            )));
        }
        if !is_tls {
            return Err(invalid(format!(
                "`{name}` is for TLS; add tls=on, or leave it out"
            )));
        }
        // What libpq calls the authorities that the system trusts.
        remote.ca_file = Some(file)
            .filter(|file| file != "system")
            .map(PathBuf::from);
    }
    let in_path = Some(url.path().trim_start_matches('/')).filter(|db| !db.is_empty());
    Ok((remote, given_once(context, db, in_path)?))
}
