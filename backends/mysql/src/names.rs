//! What a lock is called on the server: readable for people where that is safe, and different for
//! different locks on both servers.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// MySQL takes no longer names; MariaDB does.
const LONGEST: usize = 64;
/// Bytes of the hash that are kept: 160 bits.
const KEPT: usize = 20;
/// What is left for people beside `~` and the hash.
const READABLE: usize = LONGEST - 1 - 2 * KEPT;

/// `shop:seat:42` as it is, where it is short and of letters that no server folds; else something
/// like it and a hash. Names are shared by all users of a server.
pub(crate) fn encode(namespace: &str, name: &str) -> String {
    let mut plain = String::with_capacity(LONGEST);
    let fits = namespace.len() + 1 + name.len() <= LONGEST;
    if fits && !namespace.contains(':') && namespace.chars().chain(name.chars()).all(is_plain) {
        plain.push_str(namespace);
        plain.push(':');
        plain.push_str(name);
        return plain;
    }
    plain.push_str(&like(namespace, name));
    plain.push('~');
    // No byte of UTF-8 is 0xFF: namespace and name stay apart.
    let hash = Sha256::new()
        .chain_update(namespace)
        .chain_update([0xff])
        .chain_update(name)
        .finalize();
    for byte in hash.iter().take(KEPT) {
        // Writing to a string does not fail.
        let _ = write!(plain, "{byte:02x}");
    }
    plain
}

/// The name that is called so on the server, and whether it is the name itself or only like it.
/// `None`: it is of another namespace, or none of lockkeeper's.
pub(crate) fn decode(namespace: &str, encoded: &str) -> Option<(String, bool)> {
    let start: String = namespace.chars().chain([':']).collect();
    if !encoded.contains('~') {
        let name = encoded
            .strip_prefix(&start)
            .filter(|name| !name.is_empty())?;
        return (encode(namespace, name) == encoded).then(|| (name.to_owned(), true));
    }
    let like = like(namespace, "");
    let name = encoded.strip_prefix(like.as_str())?;
    Some((name.to_owned(), false))
}

/// What of namespace and name can be read, where they are not written as they are.
fn like(namespace: &str, name: &str) -> String {
    let legible = namespace.chars().chain([':']).chain(name.chars());
    let letters = legible.take(READABLE).map(|letter| {
        let letter = letter.to_ascii_lowercase();
        if is_plain(letter) { letter } else { '_' }
    });
    letters.collect()
}

/// Neither case nor accents nor what a collation passes over; and nothing that would have to be
/// quoted in SQL.
fn is_plain(letter: char) -> bool {
    matches!(letter, 'a'..='z' | '0'..='9' | ':' | '.' | '_' | '-' | '/' | '@' | '#')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn short_and_plain_names_are_as_they_are() {
        assert_eq!(encode("shop", "seat:42"), "shop:seat:42");
        assert_eq!(encode("default", "a/b_c-d.e@f#g"), "default:a/b_c-d.e@f#g");
        let name = "x".repeat(LONGEST - 5);
        assert_eq!(encode("shop", &name), format!("shop:{name}"));
    }

    #[test]
    fn others_are_like_themselves_and_have_a_hash() {
        let encoded = encode("shop", "Seat 42");
        assert_eq!(encoded.get(..13), Some("shop:seat_42~"));
        assert_eq!(encoded.len(), 13 + 2 * KEPT);
        for name in [
            "x".repeat(LONGEST - 4),
            "자리".repeat(80),
            "'; --".into(),
            "\0".into(),
        ] {
            let encoded = encode("shop", &name);
            assert!(encoded.len() <= LONGEST, "{encoded}");
            assert!(
                encoded.chars().all(|c| c == '~' || is_plain(c)),
                "{encoded}"
            );
        }
    }

    #[test]
    fn names_are_read_back_or_their_likeness_is() {
        for name in ["seat:42", "a/b_c-d.e@f#g"] {
            let encoded = encode("shop", name);
            assert_eq!(decode("shop", &encoded), Some((name.to_owned(), true)));
            assert_eq!(decode("other", &encoded), None);
        }
        for (namespace, name, like) in [("shop", "Seat 42", "seat_42~"), ("My Shop", "a", "a~")] {
            let decoded = decode(namespace, &encode(namespace, name));
            let (known, is_whole) = decoded.unwrap();
            assert!(known.starts_with(like) && !is_whole, "{known}");
        }
        assert_eq!(decode("shop", "somebody else's"), None);
    }

    #[test]
    fn different_locks_have_different_names() {
        let long = "x".repeat(512);
        let parts = [
            "a",
            "A",
            "á",
            "a ",
            " a",
            "a\0",
            "b",
            "a:b",
            "b:a",
            ":",
            "::",
            "a:",
            ":a",
            "~",
            "ß",
            "ss",
            "_",
            "-",
            long.as_str(),
            &long[1..],
        ];
        let mut seen = HashSet::new();
        for namespace in parts {
            for name in parts {
                assert!(
                    seen.insert(encode(namespace, name)),
                    "{namespace:?} {name:?}"
                );
            }
        }
    }
}
