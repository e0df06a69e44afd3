//! The names of locks on the server: legible where that is safe, and different for different locks.

use std::fmt::{self, Write};
use std::ops::Deref;
use std::sync::Arc;

use crate::readers::Readers;
use lockkeeper_core::Mode;
use lockkeeper_remote::sessions::SessionName;
use sha2::{Digest, Sha256};

/// MySQL takes no longer names; MariaDB does.
const MAX_BYTES: usize = 64;
/// Bytes of the hash that are kept: 160 bits.
const KEPT: usize = 20;
/// The length of the legible part before `~` and the hash.
const LEGIBLE: usize = MAX_BYTES - 1 - 2 * KEPT;

/// The room for what follows the name of a semaphore: see [`Permits`](crate::permits::Permits).
const SUFFIX: usize = 6;
/// The mark between the name of a semaphore and what follows it. No name of a lock has it.
const SEMAPHORE: char = '+';

/// The name of a lock on the server. It has only letters that SQL need not quote, so it is the only
/// text that [`statements`](crate::statements) may paste. A name that the server shows may come from any
/// program, and becomes one by [`parse`](Self::parse) alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EncodedName(Arc<str>);

impl EncodedName {
    /// Returns `shop:seat:42` as it is if it is short and of letters that no server folds. Else
    /// returns something similar and a hash. Names are shared by all users of a server.
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self(encode(namespace, name, 0).into())
    }

    /// Returns the name of a namespace by which its readers are known: see
    /// [`Guardian`](crate::guardian::Guardian). No lock has an empty name.
    pub(crate) fn flag(namespace: &str) -> Self {
        Self::semaphore(namespace, "").with("f")
    }

    /// Returns the name of a semaphore, which the names of its permits begin with.
    pub(crate) fn semaphore(namespace: &str, name: &str) -> Self {
        Self((encode(namespace, name, SUFFIX) + SEMAPHORE.encode_utf8(&mut [0; 4])).into())
    }

    /// Returns what the names of the readers of a lock begin with, which is the name of the semaphore of its name.
    pub(crate) fn base(&self) -> Self {
        let (before, hash) = match (self.split_once('~'), self.split_once(':')) {
            (Some(hashed), _) => hashed,
            (None, Some((namespace, name))) => return Self::semaphore(namespace, name),
            (None, None) => (&**self, ""),
        };
        let readable = before.get(..LEGIBLE - SUFFIX).unwrap_or(before);
        Self(format!("{readable}~{hash}{SEMAPHORE}").into())
    }

    /// Appends what tells the names of one semaphore apart.
    pub(crate) fn with(&self, suffix: &str) -> Self {
        Self([self, suffix].concat().into())
    }

    /// Returns the name of the semaphore, and what follows it; `None` if this is the name of a lock.
    pub(crate) fn semaphore_part(&self) -> Option<(&str, &str)> {
        let at = self.find(SEMAPHORE)? + SEMAPHORE.len_utf8();
        self.split_at_checked(at)
    }

    /// Returns the name without what marks a semaphore, and the room that was left for that.
    fn split(&self) -> (&str, usize) {
        match self.split_once(SEMAPHORE) {
            Some((name, _)) => (name, SUFFIX),
            None => (self, 0),
        }
    }

    /// Returns `None` if this text cannot be a name of this type.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (name, suffix) = text.split_once(SEMAPHORE).unwrap_or((text, ""));
        if !suffix.chars().all(is_plain) {
            return None;
        }
        let is_hash = |hash: &str| {
            let is_hex = |letter| matches!(letter, 'a'..='f' | '0'..='9');
            hash.len() == 2 * KEPT && hash.chars().all(is_hex)
        };
        let readable = match name.split_once('~') {
            Some((readable, hash)) if readable.len() <= LEGIBLE && is_hash(hash) => readable,
            None if text.len() <= MAX_BYTES => name,
            _ => return None,
        };
        readable.chars().all(is_plain).then(|| Self(text.into()))
    }

    /// Returns the lock's name in this namespace, and whether that is the whole name or only
    /// similar to it. Returns `None` if this is no name of the namespace.
    pub(crate) fn decode(&self, namespace: &str) -> Option<(String, bool)> {
        let (encoded, room) = self.split();
        if encoded.contains('~') {
            let name = encoded.strip_prefix(like(namespace, "", room).as_str())?;
            return Some((name.to_owned(), false));
        }
        let name = encoded.strip_prefix(namespace)?.strip_prefix(':')?;
        let is_own = !name.is_empty() && encode(namespace, name, room) == encoded;
        is_own.then(|| (name.to_owned(), true))
    }

    /// Returns namespace and name as far as they are legible, and whether that is all of both. Returns
    /// `None` if this is no name of any namespace.
    pub(crate) fn decode_in_any(&self) -> Option<(String, String, bool)> {
        let (encoded, _) = self.split();
        let (namespace, rest) = encoded.split_at_checked(encoded.find([':', '~'])?)?;
        let name = rest.strip_prefix(':').unwrap_or(rest);
        let part = |text: &str| text.to_owned();
        (!namespace.is_empty() && !name.is_empty())
            .then(|| (part(namespace), part(name), !encoded.contains('~')))
    }
}

impl SessionName for EncodedName {
    fn requested(namespace: &str, name: &str, mode: Mode) -> Self {
        match mode.is_permit() {
            true => Self::semaphore(namespace, name),
            false => Self::new(namespace, name),
        }
    }

    fn gate(&self) -> Option<Self> {
        let (gate, _) = self.semaphore_part()?;
        (!Readers::is_slot(self)).then(|| Self(gate.into()))
    }

    fn is_akin(&self, other: &Self) -> bool {
        let is_reader_of = |slot: &Self, lock: &Self| {
            let slot = slot.semaphore_part().filter(|_| Readers::is_slot(slot));
            slot.is_some_and(|(base, _)| *base == *lock.base())
        };
        match (self.semaphore_part(), other.semaphore_part()) {
            (Some((one, _)), Some((another, _))) => {
                one == another && Readers::is_slot(self) == Readers::is_slot(other)
            }
            (Some(_), None) => is_reader_of(self, other),
            (None, Some(_)) => is_reader_of(other, self),
            (None, None) => self == other,
        }
    }

    fn bell(&self) -> Self {
        self.with("w")
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

/// Encodes a name so that there is room for more bytes behind it.
fn encode(namespace: &str, name: &str, room: usize) -> String {
    let plain = format!("{namespace}:{name}");
    let is_short = plain.len() + room <= MAX_BYTES;
    if is_short && !namespace.contains(':') && plain.chars().all(is_plain) {
        return plain;
    }
    let mut encoded = like(namespace, name, room) + "~";
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
fn like(namespace: &str, name: &str, room: usize) -> String {
    let legible = namespace.chars().chain([':']).chain(name.chars());
    let letters = legible.take(LEGIBLE - room).map(|letter| {
        let letter = letter.to_ascii_lowercase();
        if is_plain(letter) { letter } else { '_' }
    });
    letters.collect()
}

/// Returns whether a letter needs no quotes in SQL, and no collation folds or ignores it.
fn is_plain(letter: char) -> bool {
    matches!(letter, 'a'..='z' | '0'..='9' | ':' | '.' | '_' | '-' | '/' | '@' | '#')
}
