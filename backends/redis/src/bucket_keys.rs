//! The keys of locks in a cluster.
//!
//! All keys of one script must be in one slot, so a lock needs an epoch key in its own slot. For few such keys, the names of
//! a namespace are spread over 1,024 buckets, and a bucket has a slot and an epoch key.
//!
//! With an epoch key for each name, one would stay for every name that was ever used. The key is among the `KEYS`
//! there. So while a slot is moved, a node refuses a free name (`TRYAGAIN`) instead of granting it without the last
//! epoch.

use std::fmt::Write;

use crate::keys::{PERMITS, encode, pattern_of, unescape};

/// How many buckets a namespace has. Every program must use the same number.
const BUCKETS: u16 = 1_024;
/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16_384;
/// What all keys begin with.
const START: &str = "lockkeeper:bucket:{";

/// Returns `lockkeeper:bucket:{shop:17}{seat:42}`, the key of a name in bucket 17; that of its permits has
/// `:permits` behind it.
///
/// Only what is in the first braces decides about the slot. An encoded name has no braces, so the keys of two locks never collide.
pub(crate) fn lock_key(namespace: &str, name: &str, of_permits: bool) -> String {
    let mut encoded = String::new();
    encode(&mut encoded, name, false);
    let bucket = crc16(encoded.as_bytes()) % BUCKETS;
    let permits = if of_permits { PERMITS } else { "" };
    format!("{}{{{encoded}}}{permits}", bucket_start(namespace, bucket))
}

/// Returns the key of the last epoch of the bucket that a lock's key is in: `lockkeeper:bucket:{shop:17}:epoch`.
pub(crate) fn epoch_key(lock_key: &str) -> String {
    let (bucket, _) = lock_key.split_once('}').unwrap_or((lock_key, ""));
    format!("{bucket}}}:epoch")
}

/// Returns keys that no lock has, one in each bucket.
pub(crate) fn probe_keys(namespace: &str) -> impl Iterator<Item = String> {
    (0..BUCKETS).map(move |bucket| format!("{}{{}}", bucket_start(namespace, bucket)))
}

/// Returns the pattern for `SCAN` that matches all keys of a namespace, or of all namespaces.
pub(crate) fn pattern(namespace: Option<&str>) -> String {
    pattern_of(&namespace.map_or_else(|| START.to_owned(), start))
}

/// Returns the namespace, the name, and whether the key is that of the name's permits; `None` if `key` is
/// no lock's key.
pub(crate) fn decode(key: &[u8]) -> Option<(String, String, bool)> {
    let key = key.strip_prefix(START.as_bytes())?;
    let of_lock = key.strip_suffix(PERMITS.as_bytes());
    let key = of_lock.unwrap_or(key).strip_suffix(b"}")?;
    let colon = key.iter().position(|byte| *byte == b':')?;
    let (namespace, rest) = key.split_at_checked(colon)?;
    let brace = rest.iter().position(|byte| *byte == b'{')?;
    let name = unescape(rest.get(brace + 1..)?)?;
    Some((unescape(namespace)?, name, of_lock.is_some()))
}

/// Returns the slot of a key: that of what is in its first braces.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let tag = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty());
    crc16(tag.unwrap_or(key).as_bytes()) % SLOTS
}

/// Returns what all keys of a namespace begin with.
fn start(namespace: &str) -> String {
    let mut start = String::from(START);
    encode(&mut start, namespace, true);
    start.push(':');
    start
}

/// Returns what all keys of a bucket begin with.
fn bucket_start(namespace: &str, bucket: u16) -> String {
    let mut start = start(namespace);
    // Writing to a string does not fail.
    let _ = write!(start, "{bucket}}}");
    start
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

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
        for name in ["seat:42", "{자리} 1\n", "a:permits", ""] {
            let [lock, permits] = [false, true].map(|of_permits| lock_key("a:b", name, of_permits));
            assert_eq!(slot(&lock), slot(&epoch_key(&lock)));
            assert_eq!(slot(&lock), slot(&permits));
            assert!(probe_keys("a:b").any(|key| slot(&key) == slot(&lock)));
        }
        // Never to be changed: programs of two versions would lock apart.
        let key = lock_key("shop", "seat:42", false);
        assert_eq!(key, "lockkeeper:bucket:{shop:727}{seat:42}");
        assert_eq!(epoch_key(&key), "lockkeeper:bucket:{shop:727}:epoch");
    }

    #[test]
    fn name_is_decoded_from_its_key() {
        let mut seen = HashSet::new();
        for namespace in ["shop", "a:b*", "가게"] {
            for name in [
                "seat:42",
                "{자리} 1\n",
                "%",
                "a}:epoch",
                "a}:permits",
                "a:permits",
                "}",
            ] {
                for of_permits in [false, true] {
                    let key = lock_key(namespace, name, of_permits);
                    let parts = (namespace.to_owned(), name.to_owned(), of_permits);
                    assert_eq!(decode(key.as_bytes()), Some(parts));
                    assert_eq!(decode(epoch_key(&key).as_bytes()), None);
                    assert!(seen.insert(key.clone()), "{key} twice");
                }
            }
        }
        assert_eq!(pattern(Some("a*b")), r"lockkeeper:bucket:{a\*b:*");
    }

    #[test]
    fn names_spread_over_slots() {
        let slots =
            (0..10_000).map(|number| slot(&lock_key("shop", &format!("seat:{number}"), false)));
        let slots: HashSet<_> = slots.collect();
        assert!(slots.len() > 900, "{}", slots.len());
        let first_third = slots.iter().filter(|slot| **slot < SLOTS / 3).count();
        assert!((250..450).contains(&first_third), "{first_third}");
    }
}
