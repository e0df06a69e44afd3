//! The position of a request: the keys of a name, in the order of their creation, decide it.

use lockkeeper_core::{Error, Mode, limit_mismatch};

use crate::wire::KeyValue;
use crate::wire::entry::Entry;
use crate::wire::keys::{KeyRange, NameKeys};

/// The keys that a request has to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) keys: KeyRange,
    /// How many of the keys have to be deleted.
    pub(crate) deletions: u32,
}

/// The position of a request among those of its name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The keys before it permit this slot, which is 0 unless it is a permit.
    Granted(u32),
    Waits(Ahead),
}

/// Returns the position of the request whose key was created at revision `created`, or of one that comes
/// last. `all` are the keys of the name in the order of their creation.
pub(crate) fn turn(mode: Mode, keys: &NameKeys, all: &[KeyValue], created: Option<i64>) -> Turn {
    let before = all
        .iter()
        .take_while(|it| created.is_none_or(|created| it.seen.created < created));
    if let Mode::Permit { limit } = mode {
        let before = u32::try_from(before.count()).unwrap_or(u32::MAX);
        return match before.checked_sub(limit) {
            None => Turn::Granted(free_slot(all, created)),
            Some(more) => Turn::Waits(Ahead {
                keys: keys.all(),
                deletions: more.saturating_add(1),
            }),
        };
    }
    // Only the last rival before it matters: that one goes only after all that it waits for.
    let rivals = keys.rivals(mode);
    let rivals = before.filter(|it| rivals.contains(&it.key));
    match rivals.last() {
        None => Turn::Granted(0),
        Some(last) => Turn::Waits(Ahead {
            keys: KeyRange::one(last.key.as_str()),
            deletions: 1,
        }),
    }
}

/// Returns the smallest slot that no other permit has. The request whose key was created at revision `own` may
/// have a slot already, from an earlier attempt whose reply was lost.
fn free_slot(all: &[KeyValue], own: Option<i64>) -> u32 {
    let mut taken: Vec<_> = all
        .iter()
        .filter(|it| Some(it.seen.created) != own)
        .filter_map(|it| Entry::read(&it.value).slot())
        .collect();
    taken.sort_unstable();
    let slots = (0..).zip(taken);
    let mut free = 0;
    for (slot, taken) in slots {
        if slot != taken {
            break;
        }
        free = slot + 1;
    }
    free
}

/// Checks that all held permits have this limit.
pub(crate) fn check_limit(mode: Mode, all: &[KeyValue]) -> Result<(), Error> {
    let Some(limit) = mode.limit() else {
        return Ok(());
    };
    let mut entries = all.iter().map(|it| Entry::read(&it.value));
    let others = |entry: &Entry| entry.is_held() && entry.mode() != mode;
    match entries.find(others).and_then(|entry| entry.mode().limit()) {
        Some(held) => Err(limit_mismatch(limit, held)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::LockName;

    use super::*;
    use crate::wire::Seen;

    fn all(keys: &[(&str, Option<u32>)]) -> (NameKeys, Vec<KeyValue>) {
        let name = NameKeys::new("n", &LockName::new("a").unwrap(), false);
        let prefix = name.all().first;
        let read = |(at, (key, slot)): (usize, &(&str, Option<u32>))| KeyValue {
            key: format!("{prefix}{key}"),
            value: serde_json::json!({ "held": slot.is_some(), "slot": slot, "limit": 2 })
                .to_string(),
            seen: Seen {
                created: i64::try_from(at).unwrap() * 10,
                modified: 0,
            },
            lease: 0,
        };
        (name, keys.iter().enumerate().map(read).collect())
    }

    #[test]
    fn turn_follows_the_order_of_creation() {
        let (name, keys) = all(&[("r/9", None), ("w/5", None), ("r/1", None), ("w/2", None)]);
        let of = |mode, created| match turn(mode, &name, &keys, created) {
            Turn::Granted(_) => None,
            Turn::Waits(ahead) => Some(ahead.keys.first.rsplit_once('/').unwrap().1.to_owned()),
        };
        assert_eq!(of(Mode::Shared, Some(0)), None);
        assert_eq!(of(Mode::Exclusive, Some(10)).as_deref(), Some("9"));
        assert_eq!(of(Mode::Shared, Some(20)).as_deref(), Some("5"));
        assert_eq!(of(Mode::Exclusive, Some(30)).as_deref(), Some("1"));
        assert_eq!(of(Mode::Shared, None).as_deref(), Some("2"));
        assert_eq!(of(Mode::Exclusive, None).as_deref(), Some("2"));
    }

    #[test]
    fn permit_gets_the_smallest_free_slot_or_waits_for_as_many_as_are_too_many() {
        let (name, keys) = all(&[
            ("p/1", Some(1)),
            ("p/2", None),
            ("p/3", None),
            ("p/4", None),
        ]);
        let of = |limit, created| match turn(Mode::Permit { limit }, &name, &keys, created) {
            Turn::Granted(slot) => Ok(slot),
            Turn::Waits(ahead) => Err(ahead.deletions),
        };
        assert_eq!(of(2, Some(10)), Ok(0));
        assert_eq!(of(2, Some(20)), Err(1));
        assert_eq!(of(2, Some(30)), Err(2));
        assert_eq!(of(2, None), Err(3));
        assert_eq!(of(5, None), Ok(0));
        let (_, keys) = all(&[("p/1", Some(0)), ("p/2", Some(1)), ("p/3", Some(3))]);
        assert_eq!(free_slot(&keys, None), 2);
        // Its own slot, which it has from an attempt without a reply.
        assert_eq!(free_slot(&keys, Some(10)), 1);
        assert!(check_limit(Mode::Permit { limit: 2 }, &keys).is_ok());
        assert!(check_limit(Mode::Permit { limit: 3 }, &keys).is_err());
    }
}
