//! Rule 7: two different strings are two different locks.

use std::collections::HashSet;

use lockkeeper_core::{LockKeeper, Mode};

use crate::modes::{attempt_in, is_busy_in};
use crate::rig::{Outcome, Rig, build, is_busy, take};

/// Strings that some store confuses with each other or refuses.
fn names() -> Vec<String> {
    // Among them are a precomposed letter, and the same letter with a combining mark.
    let short = [
        "a", "A", "Seat:42", "seat:42", "SEAT:42", "ß", "ss", "ẞ", "i", "ı", "İ", "I", "\u{e9}",
        "e\u{301}", "e", "자리", "席", "💺", "💺💺", " ", "  ", " a", "a ", " a ", "a  b", "a b",
        "a\tb", "a\nb", "\n", "\t", "'", "''", "\"", "`", "';--", "\\", "\\\\", "%", "%%", "_",
        "a_b", "%41", "%2F", "%00", "{", "}", "{}", "{a}", "{a}b", "{{a}}", "*", "?", "[a]", "#",
        "&", ":", "::", "a:b", ".", "..", "../a", "/", "/a", "a/", "a/b", "~", "$a", "-", "--",
        "0", "00", "1", "1.0", "NULL", "null", "a\0", "\0", "\0a", "a\0b", "\u{200b}",
    ];
    let longer = ["자리 42", "👩\u{200d}🚀", "\u{feff}a", "\u{10ffff}"];
    let mut names: Vec<String> = short
        .iter()
        .chain(&longer)
        .map(ToString::to_string)
        .collect();
    for length in [63, 64, 65, 191, 192, 193, 255, 256, 511, 512] {
        names.push("x".repeat(length));
    }
    // The longest names, different at the end, at the beginning, or in case.
    names.push(format!("{}y", "x".repeat(511)));
    names.push(format!("y{}", "x".repeat(511)));
    names.push(format!("{}X", "x".repeat(511)));
    names.push("자".repeat(170) + "ab");
    names.push("💺".repeat(128));
    names
}

pub(super) fn different_strings_are_different_locks(rig: &Rig<'_>) -> Outcome {
    let names = names();
    let (keeper, other) = (rig.keeper(), rig.keeper());
    let mut guards = Vec::new();
    for name in &names {
        let guard = attempt_in(&keeper, name, Mode::Exclusive);
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is confused with another name")));
    }
    for name in &names {
        assert!(is_busy(&other, name), "{name:?} is held");
    }
    for (guard, name) in guards.iter().zip(&names) {
        assert!(guard.is_held());
        assert_eq!(guard.name().as_str(), name);
    }
    for guard in guards {
        guard.release().expect("the store answers");
    }
    for name in &names {
        assert!(!is_busy(&other, name), "{name:?} is free");
    }
    rig.nothing_left();
    Ok(())
}

/// One name at a time, so that a store that truncates or folds a name inconsistently is found.
pub(super) fn equal_strings_are_the_same_lock(rig: &Rig<'_>) -> Outcome {
    let (keeper, other) = (rig.keeper(), rig.keeper());
    for name in names() {
        let held = take(&keeper, &name);
        assert!(is_busy(&other, &name), "{name:?} is held");
        drop(held);
    }
    Ok(())
}

/// Each string is locked, and its permit is held beside that.
pub(super) fn permits_of_a_string_are_not_the_lock_of_another(rig: &Rig<'_>) -> Outcome {
    let permit = Mode::Permit { limit: 1 };
    rig.needs_mode(permit)?;
    let keeper = rig.keeper();
    let mut names = names();
    // A store may make such a key of a name and the word.
    let words = ["permit", "permits", "slot", "lock", "shared"];
    for word in words {
        names.extend([":", "/", ".", " ", "}:"].map(|joint| format!("a{joint}{word}")));
        names.extend([":", "/", ".", " ", ":{"].map(|joint| format!("{word}{joint}a")));
    }
    let mut held = Vec::new();
    for name in &names {
        for mode in [Mode::Exclusive, permit] {
            let guard = attempt_in(&keeper, name, mode);
            held.push(guard.unwrap_or_else(|| panic!("the {mode} lock of {name:?} is held")));
        }
    }
    let other = rig.keeper();
    for name in &names {
        let is_busy = is_busy_in(&other, name, permit);
        assert!(is_busy, "the permit of {name:?} is free");
    }
    drop(held);
    rig.nothing_left();
    Ok(())
}

pub(super) fn namespaces_are_separate(rig: &Rig<'_>) -> Outcome {
    // The same name in many namespaces, and pairs that are the same text when concatenated.
    let mut pairs = Vec::new();
    for separator in ["", ":", "/", ".", "\0", " ", "|", "_", "-"] {
        pairs.push((format!("n{separator}a"), "b".to_owned()));
        pairs.push(("n".to_owned(), format!("a{separator}b")));
    }
    for namespace in [
        "n",
        "N",
        "n ",
        "{n}",
        "%",
        "자리",
        &"n".repeat(512),
        &"n".repeat(511),
    ] {
        pairs.push((namespace.to_owned(), "a".to_owned()));
    }
    let pairs: HashSet<_> = pairs.into_iter().collect();
    let keeper =
        |namespace: &str| -> LockKeeper { build(rig.builder_on(rig.provider_in(namespace))) };
    let mut guards = Vec::new();
    for (namespace, name) in &pairs {
        let guard = attempt_in(&keeper(namespace), name, Mode::Exclusive);
        guards.push(
            guard.unwrap_or_else(|| {
                panic!("{name:?} in {namespace:?} is confused with another lock")
            }),
        );
    }
    for (namespace, name) in &pairs {
        assert!(
            is_busy(&keeper(namespace), name),
            "{name:?} in {namespace:?} is held"
        );
    }
    drop(guards);
    rig.nothing_left();
    Ok(())
}
