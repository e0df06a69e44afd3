//! Keys: the requests of a name, and what a namespace has once.
//!
//! `lockkeeper/NAMESPACE/l/NAME/w/PROVIDER` is a request for the lock (`r/OWNER`: shared), and
//! `lockkeeper/NAMESPACE/p/NAME/p/PROVIDER` one for a permit (`p/OWNER` if another one has that key). An encoded part has no `/`, so keys of different names
//! never meet.
//!
//! The exclusive requests of a provider share one key for a name, and so do its permits. etcd keeps a deleted key
//! in its index until the history is compacted. Until then every read of the range visits the deleted key. With
//! 2,500 past requests that had keys of their own, a pair took 0.4 ms longer. An attempt after a lost reply takes
//! a key of its own, since the former request may still write the shared one.

use lockkeeper_core::{AcquireRequest, LockName, Mode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::entry::owner_text;

const PART: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':');

const ROOT: &str = "lockkeeper/";

/// The keys from `first` on and before `end`; `first` alone if `end` is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) first: String,
    pub(crate) end: String,
}

impl KeyRange {
    /// Returns a single key.
    pub(crate) fn one(key: impl Into<String>) -> Self {
        let (first, end) = (key.into(), String::new());
        Self { first, end }
    }

    /// Returns all keys that begin with `prefix`, which ends with `/`. `0` is the byte after it.
    pub(crate) fn under(prefix: impl Into<String>) -> Self {
        let first = prefix.into();
        let end = format!("{}0", first.trim_end_matches('/'));
        Self { first, end }
    }

    /// Returns whether a key is one of these.
    pub(crate) fn contains(&self, key: &str) -> bool {
        match self.end.is_empty() {
            true => key == self.first,
            false => key >= self.first.as_str() && key < self.end.as_str(),
        }
    }

    /// Returns the keys of all namespaces.
    pub(crate) fn all() -> Self {
        Self::under(ROOT)
    }
}

/// Returns the prefix of all keys of a namespace.
pub(crate) fn namespace_prefix(namespace: &str) -> String {
    format!("{ROOT}{}/", utf8_percent_encode(namespace, PART))
}

/// Returns the part of a request's key that all requests of its queue share, with the `/` at its end.
pub(crate) fn name_prefix(key: &str) -> &str {
    let end = key.match_indices('/').nth(3);
    end.and_then(|(at, _)| key.get(..=at)).unwrap_or(key)
}

/// The keys that a namespace has once.
#[derive(Clone, Debug)]
pub(crate) struct CommonKeys {
    prefix: String,
    /// Key of the number that epochs add to the revision.
    pub(crate) base: String,
    /// Is written when an operator takes a lock away.
    pub(crate) ended: String,
}

impl CommonKeys {
    pub(crate) fn new(namespace: &str) -> Self {
        let prefix = namespace_prefix(namespace);
        Self {
            base: format!("{prefix}base"),
            ended: format!("{prefix}ended"),
            prefix,
        }
    }

    /// Returns all keys of the namespace.
    pub(crate) fn namespace(&self) -> KeyRange {
        KeyRange::under(self.prefix.as_str())
    }

    /// Returns the keys from the first of these to the last, with none of a name between them.
    pub(crate) fn all(&self) -> KeyRange {
        let (first, end) = (self.base.clone(), format!("{}\0", self.ended));
        KeyRange { first, end }
    }
}

/// The keys of one name: of its lock, or of its permits.
#[derive(Clone, Debug)]
pub(crate) struct NameKeys {
    /// Ends with `/`.
    prefix: String,
}

impl NameKeys {
    pub(crate) fn new(namespace: &str, name: &LockName, of_permits: bool) -> Self {
        let kind = if of_permits { 'p' } else { 'l' };
        let name = utf8_percent_encode(name.as_str(), PART);
        let namespace = namespace_prefix(namespace);
        Self {
            prefix: format!("{namespace}{kind}/{name}/"),
        }
    }

    /// Returns the keys of all requests.
    pub(crate) fn all(&self) -> KeyRange {
        KeyRange::under(self.prefix.as_str())
    }

    /// Returns the keys of the requests that exclude a request in this mode. It has to wait for those that
    /// came before it.
    pub(crate) fn rivals(&self, mode: Mode) -> KeyRange {
        match mode {
            Mode::Shared => KeyRange::under(format!("{}w/", self.prefix)),
            _ => self.all(),
        }
    }

    fn key(&self, mode: Mode, number: &str) -> String {
        let kind = match mode {
            Mode::Shared => 'r',
            Mode::Permit { .. } => 'p',
            _ => 'w',
        };
        format!("{}{kind}/{number}", self.prefix)
    }

    /// Returns the key that no other request has.
    pub(crate) fn of(&self, request: &AcquireRequest<'_>) -> String {
        self.key(request.mode(), &owner_text(request))
    }

    /// Returns the key that requests of a provider in one mode have one after the other.
    ///
    /// etcd remembers a deleted key until its history is compacted, and a read of a range visits such keys as well.
    pub(crate) fn reused(&self, mode: Mode, provider: u64) -> String {
        self.key(mode, &format!("{provider:016x}"))
    }
}

/// Returns the namespace and the name of the key of a request.
pub(crate) fn decode(key: &str) -> Option<(String, String)> {
    let mut parts = key.strip_prefix(ROOT)?.split('/');
    let mut part = || parts.next();
    let (namespace, kind, name) = (part()?, part()?, part()?);
    let decoded = |text| Some(percent_decode_str(text).decode_utf8().ok()?.into_owned());
    matches!(kind, "l" | "p").then_some(())?;
    Some((decoded(namespace)?, decoded(name)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_different_names_never_meet() {
        for (namespace, name) in [("a", "b"), ("a/l", "b/w"), ("ä%", "/"), ("base", "..0")] {
            let lock = LockName::new(name).unwrap();
            let keys = NameKeys::new(namespace, &lock, false);
            let key = format!("{}0001-1", keys.rivals(Mode::Shared).first);
            assert_eq!(
                decode(&key),
                Some((namespace.to_owned(), name.to_owned())),
                "{key}"
            );
            assert_eq!(key.matches('/').count(), 5, "{key}");
            let KeyRange { first, end } = keys.all();
            assert!(first < key && key < end);
            let longer = LockName::new(format!("{name}0")).unwrap();
            let longer = NameKeys::new(namespace, &longer, false).all();
            assert!(longer.end <= first || end <= longer.first);
        }
        assert_eq!(decode(&CommonKeys::new("a").base), None);
    }
}
