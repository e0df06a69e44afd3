//! The keys of locks: legible, and different for different locks.

use std::fmt::Write;

/// Returns `lockkeeper:{shop:seat:42}`, the key of a name; that of its permits has [`PERMITS`] behind it.
///
/// An encoded name has no `}`, so the keys of two locks never collide. An encoded namespace has no `:`.
/// The hash tag keeps a name on one node of a cluster.
pub(crate) fn lock_key(namespace: &str, name: &str, of_permits: bool) -> String {
    let mut key = prefix(namespace);
    encode(&mut key, name, false);
    key.push('}');
    if of_permits {
        key.push_str(PERMITS);
    }
    key
}

/// What the key of a name's permits ends with.
pub(crate) const PERMITS: &str = ":permits";
/// What all lock keys begin with.
const START: &str = "lockkeeper:{";

/// Returns what all lock keys of a namespace begin with.
fn prefix(namespace: &str) -> String {
    let mut prefix = String::from(START);
    encode(&mut prefix, namespace, true);
    prefix.push(':');
    prefix
}

/// Returns the key of a namespace's last epoch, `lockkeeper:{shop}:epoch`. No other key has a hash tag without
/// a colon.
pub(crate) fn epoch_key(namespace: &str) -> String {
    let mut key = String::from(START);
    encode(&mut key, namespace, true);
    key.push_str("}:epoch");
    key
}

/// Returns the channel of a namespace on which the unlocking of its names is published.
pub(crate) fn ended_channel(namespace: &str) -> String {
    let mut channel = String::from("lockkeeper:ended:");
    encode(&mut channel, namespace, true);
    channel
}

/// Returns the pattern for `SCAN` that matches all lock keys of a namespace, or of all namespaces.
pub(crate) fn pattern(namespace: Option<&str>) -> String {
    pattern_of(&namespace.map_or_else(|| START.to_owned(), prefix))
}

/// Returns the pattern for `SCAN` that matches all keys with this start.
pub(crate) fn pattern_of(start: &str) -> String {
    let mut pattern = String::new();
    for letter in start.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '^' | '-' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('*');
    pattern
}

/// Returns the namespace, the name, and whether the key is that of the name's permits; `None` if `key` is
/// no lock's key.
pub(crate) fn decode(key: &[u8]) -> Option<(String, String, bool)> {
    let key = key.strip_prefix(START.as_bytes())?;
    let of_lock = key.strip_suffix(PERMITS.as_bytes());
    let tag = of_lock.unwrap_or(key).strip_suffix(b"}")?;
    let colon = tag.iter().position(|byte| *byte == b':')?;
    let (namespace, name) = tag.split_at_checked(colon)?;
    let name = unescape(name.get(1..)?)?;
    Some((unescape(namespace)?, name, of_lock.is_some()))
}

/// Reverses [`encode`].
pub(crate) fn unescape(mut rest: &[u8]) -> Option<String> {
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

/// Appends `text`, with `%XX` for control characters and for those that the key's own form uses.
pub(crate) fn encode(into: &mut String, text: &str, with_colon: bool) {
    for letter in text.chars() {
        let special = matches!(letter, '%' | '{' | '}' | ' ') || (with_colon && letter == ':');
        if !special && !letter.is_control() {
            into.push(letter);
        } else {
            let mut bytes = [0; 4];
            for byte in letter.encode_utf8(&mut bytes).bytes() {
                // Writing to a string does not fail.
                let _ = write!(into, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_legible_and_share_a_slot() {
        let lock = "lockkeeper:{shop:seat:42}";
        assert_eq!(lock_key("shop", "seat:42", false), lock);
        let permits = format!("{lock}:permits");
        assert_eq!(lock_key("shop", "seat:42", true), permits);
        assert_eq!(epoch_key("shop"), "lockkeeper:{shop}:epoch");
        let escaped = lock_key("a:b", "{자리} 1\n", false);
        assert_eq!(escaped, "lockkeeper:{a%3Ab:%7B자리%7D%201%0A}");
    }

    #[test]
    fn name_is_decoded_from_its_key() {
        for namespace in ["shop", "a:b*", "가게"] {
            for name in [
                "seat:42",
                "{자리} 1\n",
                "%",
                "a}:epoch",
                "a}:permits",
                "*?[x]",
            ] {
                for of_permits in [false, true] {
                    let key = lock_key(namespace, name, of_permits);
                    let parts = (namespace.to_owned(), name.to_owned(), of_permits);
                    assert_eq!(decode(key.as_bytes()), Some(parts));
                }
            }
            assert_eq!(decode(epoch_key(namespace).as_bytes()), None);
        }
        assert_eq!(pattern(Some("a*b-[c]")), r"lockkeeper:{a\*b\-\[c\]:*");
        assert_eq!(pattern(None), "lockkeeper:{*");
    }

    #[test]
    fn different_locks_have_different_keys() {
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
            "",
            " ",
            "%20",
            "\0",
        ];
        let mut seen = HashSet::new();
        for namespace in parts {
            assert!(seen.insert(epoch_key(namespace)));
            for name in parts {
                for of_permits in [false, true] {
                    let key = lock_key(namespace, name, of_permits);
                    assert_eq!(key.matches(['{', '}']).count(), 2, "{key}");
                    assert!(seen.insert(key.clone()), "{key} twice");
                }
            }
        }
    }
}
