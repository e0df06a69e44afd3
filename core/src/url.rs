//! Where a store is.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::error::{Error, ErrorKind};

/// What stays as it is in a part of a location.
const PART: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Where a store is. Neither `Display` nor `Debug` shows the password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    inner: ::url::Url,
}

impl StoreUrl {
    /// Composes the text of a provider's [`location`](crate::Backend::location): `start` is the
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
        let encode = |part| utf8_percent_encode(part, PART);
        let mut location = format!("{start}{}", encode(path));
        for (at, (key, value)) in query.iter().enumerate() {
            let sign = if at == 0 { '?' } else { '&' };
            location.push_str(&format!("{sign}{}={}", encode(key), encode(value)));
        }
        location
    }

    /// The place, and the query's pairs.
    pub(crate) fn parse(text: &str) -> Result<(Self, Vec<(String, String)>), Error> {
        let mut inner = ::url::Url::parse(text).map_err(|error| {
            Error::new(
                ErrorKind::InvalidUrl,
                format!("not a store's URL ({error}); write it like memory: or sqlite:/var/lib/app/locks.db?ttl=30s"),
            )
        })?;
        if inner.fragment().is_some() {
            return Err(Error::new(
                ErrorKind::InvalidUrl,
                "a store's URL has no part behind `#`; write a `#` in a path as %23",
            ));
        }
        let pairs: Vec<_> = inner.query_pairs().into_owned().collect();
        // Else the rest of a password would be taken for a database or a key, and shown.
        let is_behind =
            inner.path().contains('@') || pairs.iter().any(|(key, _)| key.contains('@'));
        if inner.has_host() && inner.username().is_empty() && is_behind {
            return Err(Error::new(
                ErrorKind::InvalidUrl,
                "the URL has an `@` behind its host; write `/`, `?` and `#` in a user or password as %2F, %3F and %23",
            ));
        }
        inner.set_query(None);
        Ok((Self { inner }, pairs))
    }

    /// The scheme, such as `sqlite`.
    pub fn scheme(&self) -> &str {
        self.inner.scheme()
    }

    /// The path with `%XX` decoded, as bytes mean it: `/var/lib/locks.db`, `relative.db`, `NAME`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`] where the decoded path is not UTF-8.
    pub fn path(&self) -> Result<String, Error> {
        decoded(self.inner.path(), "path")
    }

    /// The host, where there is one.
    pub fn host(&self) -> Option<&str> {
        self.inner.host_str().filter(|host| !host.is_empty())
    }

    /// The port, where one is written.
    pub fn port(&self) -> Option<u16> {
        self.inner.port()
    }

    /// The user, decoded; `None` where none is written.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`] where it is not UTF-8.
    pub fn username(&self) -> Result<Option<String>, Error> {
        match self.inner.username() {
            "" => Ok(None),
            user => decoded(user, "user").map(Some),
        }
    }

    /// The password, decoded. Keep it out of errors and logs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`] where it is not UTF-8.
    pub fn password(&self) -> Result<Option<String>, Error> {
        self.inner
            .password()
            .map(|password| decoded(password, "password"))
            .transpose()
    }
}

fn decoded(text: &str, part: &str) -> Result<String, Error> {
    percent_decode_str(text)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| {
            Error::new(
                ErrorKind::InvalidUrl,
                format!("the {part} of the URL is not UTF-8 after decoding its %XX"),
            )
        })
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.inner.password().is_none() {
            return f.write_str(self.inner.as_str());
        }
        let mut shown = self.inner.clone();
        // Fails only where a URL cannot have a password, and then there is none to hide.
        let _ = shown.set_password(Some("***"));
        f.write_str(shown.as_str())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
