//! Where a store is.

use std::fmt;
use std::net::Ipv6Addr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::keys::is_list;
use crate::error::{Error, ErrorKind};

/// What stays as it is in a part of a location.
const PART: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Where a store is. All parts are decoded. Neither `Display` nor `Debug` shows the password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    user: Option<String>,
    password: Option<String>,
    host: Option<String>,
    port: Option<u16>,
    /// The hosts after the first, each with its port.
    more_hosts: Vec<(String, Option<u16>)>,
    path: String,
}

/// The schemes of files, whose URLs name no host.
const FILES: [&str; 1] = ["sqlite"];

impl StoreUrl {
    /// Composes the text of a provider's [`location`](crate::StoreInfo::location): `start` is the
    /// scheme with the authority, such as `redis://127.0.0.1:6379`.
    ///
    /// ```
    /// # mod lockkeeper { pub mod backend { pub use lockkeeper_core::*; } }
    /// use lockkeeper::backend::StoreUrl;
    ///
    /// let location = StoreUrl::location("sqlite:", "/srv/a b.db", &[("namespace", "shop")]);
    /// assert_eq!(location, "sqlite:/srv/a%20b.db?namespace=shop");
    /// ```
    pub fn location(start: &str, path: &str, query: &[(&str, &str)]) -> String {
        let mut location = format!("{start}{}", encoded(path));
        for (at, (key, value)) in query.iter().enumerate() {
            let sign = if at == 0 { '?' } else { '&' };
            location.push_str(&format!("{sign}{}={}", encoded(key), encoded(value)));
        }
        location
    }

    /// Parses `SCHEME://USER:PASSWORD@HOST:PORT,HOST:PORT/PATH?KEY=VALUE&…`, where all but the scheme
    /// can be left out. Returns the query's keys beside the URL.
    ///
    /// No error shows any of the text: a part of a password may stand anywhere in it.
    pub(crate) fn parse(text: &str) -> Result<(Self, Vec<(String, String)>), Error> {
        let (scheme, rest) = text.trim().split_once(':').unwrap_or_default();
        let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|it| it.is_ascii_alphanumeric() || "+-.".contains(it));
        if !is_scheme {
            return Err(invalid(
                "not a store's URL; write it like memory: or sqlite:/var/lib/app/locks.db?ttl=30s",
            ));
        }
        let (authority, rest) = match rest.strip_prefix("//") {
            // Other tools write two slashes before a path.
            Some(rest) if FILES.iter().any(|it| it.eq_ignore_ascii_case(scheme)) => ("", rest),
            Some(rest) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
            None => ("", rest),
        };
        let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        // Else the rest of a password would be taken for a database or a key, and shown.
        if !authority.is_empty() && [path, fragment].iter().any(|part| part.contains('@')) {
            return Err(not_encoded());
        }
        let pairs = split_query(query)?;
        if text.contains('#') {
            return Err(invalid(
                "a store's URL has no part behind `#`; write a `#` in a path as %23",
            ));
        }
        // A `+` is a `+`, as everywhere else in a URL and in all other sources of these values.
        let pairs = pairs
            .iter()
            .map(|(key, value)| Ok((decoded(key)?, decoded(value)?)));
        let pairs = pairs.collect::<Result<_, Error>>()?;
        let url = Self {
            scheme: scheme.to_ascii_lowercase(),
            path: decoded(path)?,
            ..Self::default()
        };
        Ok((url.with_authority(authority)?, pairs))
    }

    pub(crate) fn with_path(self, path: &str) -> Self {
        let path = path.to_owned();
        Self { path, ..self }
    }

    /// Adds `USER:PASSWORD@HOST:PORT`.
    fn with_authority(mut self, authority: &str) -> Result<Self, Error> {
        let (login, address) = authority.rsplit_once('@').unwrap_or(("", authority));
        let mut escapes = login.split('%').skip(1);
        let is_hex = |text: &str| text.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
        if login.contains('@') || !escapes.all(is_hex) {
            return Err(not_encoded());
        }
        let part = |text: &str| match text {
            "" => Ok(None),
            text => decoded(text).map(Some),
        };
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        (self.user, self.password) = (part(user)?, part(password)?);
        let mut hosts = address.split(',').map(host_and_port);
        (self.host, self.port) = hosts.next().transpose()?.unwrap_or_default();
        for host in hosts {
            let (Some(host), port) = host? else {
                return Err(empty_host());
            };
            self.more_hosts.push((host, port));
        }
        if self.host.is_none() && !self.more_hosts.is_empty() {
            return Err(empty_host());
        }
        Ok(self)
    }

    /// The scheme in lower case, such as `sqlite`.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The path: `/var/lib/locks.db`, `relative.db`, `NAME`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The host, if there is one, or the first of several. An IPv6 address is without brackets here.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The port of [`host`](Self::host), if one is written.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Returns all hosts in the order of the URL, each with its port if one is written. There are
    /// several only if the driver [takes them](crate::Driver::takes_several_hosts).
    pub fn hosts(&self) -> impl Iterator<Item = (&str, Option<u16>)> {
        let first = self.host().map(|host| (host, self.port));
        let more = self.more_hosts.iter();
        first
            .into_iter()
            .chain(more.map(|(host, port)| (host.as_str(), *port)))
    }

    /// The user, if one is written.
    pub fn username(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password, if one is written. Keep it out of errors and logs.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }
}

/// What to do about characters of a user or password that end it early.
const ENCODE: &str = "in a user or password write `@`, `/`, `?`, `#`, `&` and `%` as %40, %2F, %3F, %23, %26 and %25";

/// Splits a query into keys and values. A part of a password is no key: a `&` in it ends a password that is a value, and
/// the URL of a member or fallback.
fn split_query(query: &str) -> Result<Vec<(&str, &str)>, Error> {
    let mut pairs = Vec::new();
    let mut ends_before_host = false;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(invalid(&format!("a key of the URL has no value; {ENCODE}")));
        };
        if key.contains('@') || (ends_before_host && !is_list(key) && value.contains('@')) {
            return Err(not_encoded());
        }
        if is_list(key) {
            let authority = value.split_once("://").map(|(_, authority)| authority);
            ends_before_host = authority.is_some_and(|it| !it.contains(['@', '/', '?']));
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// Reads `HOST:PORT`, of which each part can be left out.
fn host_and_port(address: &str) -> Result<(Option<String>, Option<u16>), Error> {
    // The last colon of an IPv6 address without a port is within its brackets.
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (address, ""),
    };
    let port = match port {
        "" => None,
        port => {
            let digits = Some(port).filter(|port| port.bytes().all(|it| it.is_ascii_digit()));
            let port = digits.and_then(|port| port.parse().ok());
            Some(port.ok_or_else(|| {
                invalid(&format!(
                    "the URL's port is not a number from 0 to 65535; {ENCODE}"
                ))
            })?)
        }
    };
    let is_name = |it: char| it.is_ascii_alphanumeric() || "-._".contains(it);
    let in_brackets = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = match in_brackets.map(str::parse::<Ipv6Addr>) {
        Some(Ok(address)) => Some(address.to_string()),
        None if host.is_empty() => None,
        None if host.chars().all(is_name) => Some(host.to_owned()),
        _ => {
            return Err(invalid(&format!(
                "the URL's host is neither a name nor an address (IPv6: in brackets); {ENCODE}"
            )));
        }
    };
    Ok((host, port))
}

fn empty_host() -> Error {
    invalid("the URL has an empty host in its list of hosts; leave out the comma")
}

fn not_encoded() -> Error {
    invalid(&format!(
        "the URL's user or password is not percent-encoded; {ENCODE}"
    ))
}

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::InvalidUrl, text)
}

fn decoded(text: &str) -> Result<String, Error> {
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| invalid("the URL is not UTF-8 after decoding its %XX"))?;
    Ok(text.into_owned())
}

fn encoded(text: &str) -> impl fmt::Display {
    utf8_percent_encode(text, PART)
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        let has_login = self.user.is_some() || self.password.is_some();
        if has_login || self.host.is_some() || self.port.is_some() {
            f.write_str("//")?;
        }
        if let Some(user) = &self.user {
            write!(f, "{}", encoded(user))?;
        }
        if self.password.is_some() {
            f.write_str(":***")?;
        }
        if has_login {
            f.write_str("@")?;
        }
        let first = (self.host.as_deref().unwrap_or_default(), self.port);
        for (at, (host, port)) in std::iter::once(first)
            .chain(self.hosts().skip(1))
            .enumerate()
        {
            if at > 0 {
                f.write_str(",")?;
            }
            match host.contains(':') {
                true => write!(f, "[{host}]")?,
                false => f.write_str(host)?,
            }
            if let Some(port) = port {
                write!(f, ":{port}")?;
            }
        }
        write!(f, "{}", encoded(&self.path))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
