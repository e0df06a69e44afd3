//! The names of locks on the server: legible if that is safe, and different for different locks.

use std::fmt::{self, Write};
use std::ops::Deref;
use std::sync::Arc;

use lockkeeper_core::Mode;
use lockkeeper_sessions::SessionName;
use sha2::{Digest, Sha256};

/// MySQL takes no longer names, but MariaDB does.
const MAX_BYTES: usize = 64;
/// Bytes of the hash that are kept: 160 bits.
const KEPT: usize = 20;
/// The length of the legible part before `~` and the hash.
const LEGIBLE: usize = MAX_BYTES - 1 - 2 * KEPT;

/// The name of a lock on the server. It has only characters that need no quotes in SQL, so it is the
/// only text that [`statements`](crate::statements) may paste. A name that the server shows may come
/// from any program. Only [`parse`](Self::parse) makes an `EncodedName` from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EncodedName(Arc<str>);

impl EncodedName {
    /// Returns `shop:seat:42` unchanged if it is short and has only letters that no server
    /// case-folds. Otherwise returns a similar text and a hash. All users of a server share the
    /// names.
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self(encode(namespace, name).into())
    }

    /// Returns `None` if this text cannot be a name of this type.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_hash = |hash: &str| {
            let is_hex = |letter| matches!(letter, 'a'..='f' | '0'..='9');
            hash.len() == 2 * KEPT && hash.chars().all(is_hex)
        };
        let readable = match text.split_once('~') {
            Some((readable, hash)) if readable.len() <= LEGIBLE && is_hash(hash) => readable,
            None if text.len() <= MAX_BYTES => text,
            _ => return None,
        };
        readable.chars().all(is_plain).then(|| Self(text.into()))
    }

    /// Returns the lock's name in this namespace, and whether it is the whole name or only similar.
    /// Returns `None` if the name is of another namespace.
    pub(crate) fn decode(&self, namespace: &str) -> Option<(String, bool)> {
        if self.contains('~') {
            let name = self.strip_prefix(like(namespace, "").as_str())?;
            return Some((name.to_owned(), false));
        }
        let name = self.strip_prefix(namespace)?.strip_prefix(':')?;
        let is_own = !name.is_empty() && encode(namespace, name) == **self;
        is_own.then(|| (name.to_owned(), true))
    }

    /// Returns the legible parts of namespace and name, and whether both are whole. Returns `None` if
    /// this is no name of any namespace.
    pub(crate) fn decode_in_any(&self) -> Option<(String, String, bool)> {
        let (namespace, rest) = self.split_at_checked(self.find([':', '~'])?)?;
        let name = rest.strip_prefix(':').unwrap_or(rest);
        let part = |text: &str| text.to_owned();
        (!namespace.is_empty() && !name.is_empty())
            .then(|| (part(namespace), part(name), !self.contains('~')))
    }
}

impl SessionName for EncodedName {
    fn requested(namespace: &str, name: &str, _: Mode) -> Self {
        Self::new(namespace, name)
    }
}

impl Deref for EncodedName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EncodedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn encode(namespace: &str, name: &str) -> String {
    let plain = format!("{namespace}:{name}");
    let is_short = plain.len() <= MAX_BYTES;
    if is_short && !namespace.contains(':') && plain.chars().all(is_plain) {
        return plain;
    }
    let mut encoded = like(namespace, name) + "~";
    // No byte of UTF-8 is 0xFF: namespace and name stay apart.
    let hash = Sha256::new()
        .chain_update(namespace)
        .chain_update([0xff])
        .chain_update(name)
        .finalize();
    for byte in hash.iter().take(KEPT) {
        // Writing to a string does not fail.
        let _ = write!(encoded, "{byte:02x}");
    }
    encoded
}

/// Returns the legible part of a name that cannot be written unchanged.
fn like(namespace: &str, name: &str) -> String {
    let legible = namespace.chars().chain([':']).chain(name.chars());
    let letters = legible.take(LEGIBLE).map(|letter| {
        let letter = letter.to_ascii_lowercase();
        if is_plain(letter) { letter } else { '_' }
    });
    letters.collect()
}

/// Returns whether a letter needs no quotes in SQL, and no collation folds or ignores it.
fn is_plain(letter: char) -> bool {
    matches!(letter, 'a'..='z' | '0'..='9' | ':' | '.' | '_' | '-' | '/' | '@' | '#')
}
