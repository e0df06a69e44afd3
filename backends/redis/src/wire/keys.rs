//! The keys of locks: legible, and different for different locks.
//!
//! On one server a name's key is `lockkeeper:{shop:seat:42}`, and one key keeps the last epoch of a namespace.
//!
//! In a cluster, all keys of one script must be in one slot, so a lock needs an epoch key in its own slot. For few such
//! keys, the names of a namespace are spread over 1,024 buckets, and a bucket has a slot and an epoch key. With an epoch
//! key for each name, one would stay for every name that was ever used. There the key is among the `KEYS`. So while a slot
//! is moved, a node refuses a free name (`TRYAGAIN`) instead of granting it without the last epoch.

use std::borrow::Cow;

use percent_encoding::{percent_decode, percent_encode_byte};

/// How many buckets a namespace has in a cluster. Every program must use the same number.
const BUCKETS: u16 = 1_024;
/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16_384;
/// What the key of a name's permits ends with.
const PERMITS: &str = ":permits";

/// The keys of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    namespace: String,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    /// One server has all names, and this key of the last epoch.
    OneServer { epoch: String },
    /// In a cluster, each bucket has a key of the last epoch.
    Buckets,
}

/// A name that has a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NamedKey {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Whether the key is that of the name's permits.
    pub(crate) of_permits: bool,
}

impl Keys {
    pub(crate) fn of_one_server(namespace: &str) -> Self {
        // No other key has a hash tag without a colon.
        let epoch = format!("lockkeeper:{{{}}}:epoch", encoded(namespace, true));
        Self {
            namespace: namespace.to_owned(),
            form: Form::OneServer { epoch },
        }
    }

    pub(crate) fn of_cluster(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            form: Form::Buckets,
        }
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the key of a name, or of its permits.
    pub(crate) fn lock(&self, name: &str, of_permits: bool) -> String {
        self.lock_in(&self.namespace, name, of_permits)
    }

    /// Returns the key of a name, or of its permits, in another namespace.
    pub(crate) fn of(&self, named: &NamedKey) -> String {
        self.lock_in(&named.namespace, &named.name, named.of_permits)
    }

    /// Returns `lockkeeper:{shop:seat:42}`, or in a cluster `lockkeeper:bucket:{shop:17}{seat:42}`. That of the name's
    /// permits has `:permits` behind it.
    ///
    /// Only what is in the first braces decides about the slot. An encoded name has no braces and an encoded namespace no
    /// colon, so the keys of two locks never collide.
    fn lock_in(&self, namespace: &str, name: &str, of_permits: bool) -> String {
        let name = encoded(name, false);
        let mut key = self.start(Some(namespace));
        if let Form::Buckets = self.form {
            let bucket = crc16(name.as_bytes()) % BUCKETS;
            key.push_str(&bucket.to_string());
            key.push_str("}{");
        }
        key.push_str(&name);
        key.push('}');
        if of_permits {
            key.push_str(PERMITS);
        }
        key
    }

    /// Returns the key of the last epoch, `lockkeeper:{shop}:epoch`, if there is one for all names.
    pub(crate) fn only_epoch(&self) -> Option<&str> {
        match &self.form {
            Form::OneServer { epoch } => Some(epoch),
            Form::Buckets => None,
        }
    }

    /// Returns the key of the last epoch for a lock's key; in a cluster that of its bucket,
    /// `lockkeeper:bucket:{shop:17}:epoch`.
    pub(crate) fn epoch(&self, lock: &str) -> Cow<'_, str> {
        match &self.form {
            Form::OneServer { epoch } => Cow::Borrowed(epoch),
            Form::Buckets => {
                let (bucket, _) = lock.split_once('}').unwrap_or((lock, ""));
                Cow::Owned(format!("{bucket}}}:epoch"))
            }
        }
    }

    /// Returns keys that no lock has: one beside each key of a last epoch.
    pub(crate) fn probes(&self) -> Vec<String> {
        let start = self.start(Some(&self.namespace));
        match self.form {
            Form::OneServer { .. } => vec![format!("{start}}}")],
            Form::Buckets => (0..BUCKETS)
                .map(|it| format!("{start}{it}}}{{}}"))
                .collect(),
        }
    }

    /// Returns the pattern for `SCAN` that matches all lock keys of a namespace, or of all namespaces.
    pub(crate) fn pattern(&self, namespace: Option<&str>) -> String {
        let mut pattern = String::new();
        for letter in self.start(namespace).chars() {
            if matches!(letter, '*' | '?' | '[' | ']' | '^' | '-' | '\\') {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
        pattern.push('*');
        pattern
    }

    /// Returns the name whose key this is; `None` if it is no lock's key.
    pub(crate) fn decode(&self, key: &[u8]) -> Option<NamedKey> {
        let key = key.strip_prefix(self.start(None).as_bytes())?;
        let of_lock = key.strip_suffix(PERMITS.as_bytes());
        let key = of_lock.unwrap_or(key).strip_suffix(b"}")?;
        let (namespace, mut name) = split(key, b':')?;
        if let Form::Buckets = self.form {
            (_, name) = split(name, b'{')?;
        }
        Some(NamedKey {
            namespace: decoded(namespace)?,
            name: decoded(name)?,
            of_permits: of_lock.is_some(),
        })
    }

    /// Returns what all lock keys of a namespace begin with, or of all namespaces.
    fn start(&self, namespace: Option<&str>) -> String {
        let mut start = String::from(match self.form {
            Form::OneServer { .. } => "lockkeeper:{",
            Form::Buckets => "lockkeeper:bucket:{",
        });
        if let Some(namespace) = namespace {
            start.push_str(&encoded(namespace, true));
            start.push(':');
        }
        start
    }
}

/// Returns the channel of a namespace on which the unlocking of its names is published.
pub(crate) fn ended_channel(namespace: &str) -> String {
    format!("lockkeeper:ended:{}", encoded(namespace, true))
}

/// Returns the slot of a key: that of what is in its first braces.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let tag = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty());
    crc16(tag.unwrap_or(key).as_bytes()) % SLOTS
}

/// Returns the checksum that a cluster finds slots by: CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x1021,
        })
    })
}

/// Returns `text` with `%XX` for control characters and for those that the key's own form uses. Other letters stay, also
/// those that [`percent_encoding`] would encode as a whole.
fn encoded(text: &str, with_colon: bool) -> Cow<'_, str> {
    let is_special = |letter: char| {
        matches!(letter, '%' | '{' | '}' | ' ')
            || (with_colon && letter == ':')
            || letter.is_control()
    };
    if !text.contains(is_special) {
        return Cow::Borrowed(text);
    }
    let mut encoded = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if is_special(letter) {
            let mut bytes = [0; 4];
            encoded.extend(
                letter
                    .encode_utf8(&mut bytes)
                    .bytes()
                    .map(percent_encode_byte),
            );
        } else {
            encoded.push(letter);
        }
    }
    Cow::Owned(encoded)
}

/// Reverses [`encoded`].
fn decoded(text: &[u8]) -> Option<String> {
    let decoded = percent_decode(text).decode_utf8();
    decoded.ok().map(Cow::into_owned)
}

/// Returns what is before the first of these bytes, and what is behind it.
fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let mut parts = text.splitn(2, |byte| *byte == at);
    Some((parts.next()?, parts.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_legible_and_never_change() {
        // Programs of two versions would lock apart.
        let keys = Keys::of_one_server("shop");
        let lock = "lockkeeper:{shop:seat:42}";
        assert_eq!(keys.lock("seat:42", false), lock);
        assert_eq!(keys.lock("seat:42", true), format!("{lock}:permits"));
        assert_eq!(keys.epoch(lock), "lockkeeper:{shop}:epoch");
        assert_eq!(keys.probes(), ["lockkeeper:{shop:}"]);
        let escaped = Keys::of_one_server("a:b").lock("{자리} 1\n", false);
        assert_eq!(escaped, "lockkeeper:{a%3Ab:%7B자리%7D%201%0A}");

        let keys = Keys::of_cluster("shop");
        let lock = keys.lock("seat:42", false);
        assert_eq!(lock, "lockkeeper:bucket:{shop:727}{seat:42}");
        assert_eq!(keys.epoch(&lock), "lockkeeper:bucket:{shop:727}:epoch");
    }

    #[test]
    fn different_locks_have_different_keys_which_tell_their_names() {
        let parts = [
            "a",
            "b",
            "a:b",
            "b:a",
            ":",
            "::",
            "a:",
            ":a",
            "%",
            "%3A",
            "{",
            "}",
            "a}:epoch",
            "a}:permits",
            "a:permits",
            "",
            " ",
            "%20",
            "\0",
            "*?[x]",
            "{자리} 1\n",
            "가게",
        ];
        let mut seen = HashSet::new();
        for namespace in parts {
            let one = Keys::of_one_server(namespace);
            assert!(seen.insert(one.only_epoch().unwrap().to_owned()));
            for (keys, braces) in [(one, 2), (Keys::of_cluster(namespace), 4)] {
                for name in parts {
                    for of_permits in [false, true] {
                        let key = keys.lock(name, of_permits);
                        assert_eq!(key.matches(['{', '}']).count(), braces, "{key}");
                        let named = NamedKey {
                            namespace: namespace.to_owned(),
                            name: name.to_owned(),
                            of_permits,
                        };
                        assert_eq!(keys.decode(key.as_bytes()).as_ref(), Some(&named));
                        assert_eq!(keys.of(&named), key);
                        assert_eq!(keys.decode(keys.epoch(&key).as_bytes()), None);
                        assert!(seen.insert(key.clone()), "{key} twice");
                    }
                }
            }
        }
        let keys = Keys::of_one_server("shop");
        assert_eq!(keys.pattern(Some("a*b-[c]")), r"lockkeeper:{a\*b\-\[c\]:*");
        assert_eq!(keys.pattern(None), "lockkeeper:{*");
        let keys = Keys::of_cluster("shop");
        assert_eq!(keys.pattern(Some("a*b")), r"lockkeeper:bucket:{a\*b:*");
    }

    #[test]
    fn slots_are_those_of_the_server() {
        // As CLUSTER KEYSLOT says.
        for (key, expected) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("a{foo}{b}", 12_182),
        ] {
            assert_eq!(slot(key), expected, "{key}");
        }
    }

    #[test]
    fn keys_of_a_bucket_share_a_slot() {
        let keys = Keys::of_cluster("a:b");
        for name in ["seat:42", "{자리} 1\n", "a:permits", ""] {
            let [lock, permits] = [false, true].map(|of_permits| keys.lock(name, of_permits));
            assert_eq!(slot(&lock), slot(&keys.epoch(&lock)));
            assert_eq!(slot(&lock), slot(&permits));
            assert!(keys.probes().iter().any(|key| slot(key) == slot(&lock)));
        }
    }

    #[test]
    fn names_spread_over_slots() {
        let keys = Keys::of_cluster("shop");
        let slots = (0..10_000).map(|number| slot(&keys.lock(&format!("seat:{number}"), false)));
        let slots: HashSet<_> = slots.collect();
        assert!(slots.len() > 900, "{}", slots.len());
        let first_third = slots.iter().filter(|slot| **slot < SLOTS / 3).count();
        assert!((250..450).contains(&first_third), "{first_third}");
    }
}
