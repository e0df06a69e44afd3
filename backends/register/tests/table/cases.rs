//! What tables of all servers do alike, asked of the store itself. The suites of MySQL and PostgreSQL include this file, and
//! that of Consul for the cases that do not need a table.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{Clock as _, LockName, Mode, SystemClock};
use lockkeeper_register::{Call, Key, Read, RegisterProvider, RegisterStore, Version, Write};
use lockkeeper_testkit::until;

/// A limit far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn call() -> Call<'static> {
    Call::until(SystemClock.now() + LIMIT)
}

pub(crate) fn key(name: &str) -> Key {
    Key::of(&LockName::new(name).unwrap(), Mode::Exclusive)
}

pub(crate) fn write<'a>(key: &'a Key, seen: Option<Version>, value: Option<&'a str>) -> Write<'a> {
    Write {
        key,
        seen,
        session: None,
        also: None,
        value,
    }
}

pub(crate) fn written(store: &dyn RegisterStore, write: Write<'_>) -> Option<Version> {
    store.write(&[write], call()).unwrap()[0]
}

/// Returns the version and the value of an entry.
pub(crate) fn entry(store: &dyn RegisterStore, key: &Key) -> Option<(Version, String)> {
    let read = Read {
        keys: &[key],
        ..Read::default()
    };
    let entry = store.read(&read, call()).unwrap().entries.remove(0)?;
    Some((entry.version, entry.value))
}

/// Returns those of the sessions that have ended, and keeps the others for `ttl`.
fn kept(store: &dyn RegisterStore, sessions: &[&str], ttl: Duration) -> Vec<String> {
    let keep: Vec<_> = sessions.iter().map(|session| (*session, ttl)).collect();
    let read = Read {
        keep: &keep,
        ..Read::default()
    };
    store.read(&read, call()).unwrap().ended
}

fn ended(store: &dyn RegisterStore, sessions: &[&str]) -> Vec<String> {
    let read = Read {
        check: sessions,
        ..Read::default()
    };
    store.read(&read, call()).unwrap().ended
}

/// Runs the cases that need nothing but a table.
pub(crate) fn cases_of_one_table(table: impl Fn(&str) -> RegisterProvider) {
    entry_is_written_under_its_conditions(table("t1").store());
    several_entries_are_written_each_by_itself(table("t2").store());
    session_ends_unless_it_is_kept(table("t3").store());
    expired_session_is_not_kept(table("t3").store());
    names_are_bytes(table("t4").store());
    no_write_is_lost(table("t5").store());
}

pub(crate) fn entry_is_written_under_its_conditions(store: &dyn RegisterStore) {
    let (a, floor) = (key("a"), Key::of_namespace("floor"));
    assert_eq!(entry(store, &a), None);
    let first = written(store, write(&a, None, Some("1"))).unwrap();
    assert_eq!(entry(store, &a), Some((first, "1".to_owned())));
    for wrong in [None, Some(first + 1)] {
        for value in [None, Some("2")] {
            assert_eq!(written(store, write(&a, wrong, value)), None);
        }
    }
    let second = written(store, write(&a, Some(first), Some("1"))).unwrap();
    assert_ne!(
        first, second,
        "a write of the same value has another version"
    );
    assert_eq!(written(store, write(&a, Some(first), None)), None);
    assert!(written(store, write(&a, Some(second), None)).is_some());
    assert_eq!(entry(store, &a), None);

    let at = written(store, write(&floor, None, Some("f"))).unwrap();
    let also = |version| Write {
        also: Some((&floor, version)),
        ..write(&a, None, Some("3"))
    };
    assert_eq!(written(store, also(at + 1)), None);
    let third = written(store, also(at)).unwrap();
    assert_eq!(entry(store, &a), Some((third, "3".to_owned())));

    let session = store.open_session(LIMIT, call()).unwrap();
    let of = |session, seen, value| Write {
        session: Some(session),
        ..write(&a, seen, value)
    };
    let unknown = "72bb46bb-c712-80dd-12c1-26184746bd1f";
    assert_eq!(written(store, of(unknown, Some(third), Some("4"))), None);
    let fourth = written(store, of(&session, Some(third), Some("4"))).unwrap();
    store.end_sessions(&[&session], call()).unwrap();
    assert_eq!(written(store, of(&session, Some(fourth), None)), None);
    assert!(written(store, write(&a, Some(fourth), None)).is_some());
    assert_eq!(written(store, of(&session, None, Some("5"))), None);
    assert!(written(store, write(&floor, Some(at), None)).is_some());
    assert!(store.list(call()).unwrap().is_empty());
}

/// Each has its own version, and the answers are in the order of the writes.
fn several_entries_are_written_each_by_itself(store: &dyn RegisterStore) {
    let [a, b, c, d] = ["a", "b", "c", "d"].map(key);
    assert_eq!(written(store, write(&a, None, None)), None);
    let made = [&d, &b, &a].map(|key| write(key, None, Some("1")));
    let made = store.write(&made, call()).unwrap();
    assert_eq!(made.iter().flatten().collect::<BTreeSet<_>>().len(), 3);
    let writes = [
        write(&d, made[0], Some("2")),
        write(&c, None, Some("2")),
        write(&b, made[0], Some("2")),
        write(&a, made[2], None),
    ];
    let done = store.write(&writes, call()).unwrap();
    let is_done: Vec<_> = done.iter().map(Option::is_some).collect();
    assert_eq!(is_done, [true, true, false, true]);
    let read = Read {
        keys: &[&a, &b, &c, &d],
        ..Read::default()
    };
    let entries = store.read(&read, call()).unwrap().entries;
    let versions: Vec<_> = entries
        .iter()
        .map(|it| Some(it.as_ref()?.version))
        .collect();
    assert_eq!(versions, [None, made[1], done[1], done[0]]);
    let listed = store.list(call()).unwrap().into_iter();
    let mut listed: Vec<_> = listed.map(|entry| entry.value).collect();
    listed.sort();
    assert_eq!(listed, ["1", "2", "2"]);
}

fn session_ends_unless_it_is_kept(store: &dyn RegisterStore) {
    let [short, long] = [(); 2].map(|()| store.open_session(LIMIT, call()).unwrap());
    assert!(kept(store, &[&short, &long], LIMIT).is_empty());
    let ttl = Duration::from_millis(200);
    assert!(kept(store, &[&short], ttl).is_empty());
    until("the session ends", || {
        !ended(store, &[&long, &short]).is_empty()
    });
    assert_eq!(
        ended(store, &[&long, &short, "unknown"]),
        [&*short, "unknown"]
    );
    assert_eq!(kept(store, &[&short, &long], LIMIT), [&*short]);
    store.end_sessions(&[&long, &short], call()).unwrap();
    assert_eq!(kept(store, &[&long], LIMIT), [&*long]);
}

/// An expired session that nobody has looked at is not kept, and its row goes with the next one that is opened.
fn expired_session_is_not_kept(store: &dyn RegisterStore) {
    let ttl = Duration::from_millis(100);
    let (first, second) = (
        store.open_session(ttl, call()).unwrap(),
        store.open_session(ttl, call()).unwrap(),
    );
    let opened = SystemClock.now();
    until("the ttl is over", || {
        SystemClock.now().saturating_since(opened) > 3 * ttl
    });
    assert_eq!(kept(store, &[&first], LIMIT), [&*first]);
    let third = store.open_session(LIMIT, call()).unwrap();
    store.end_sessions(&[&third], call()).unwrap();
    assert_eq!(ended(store, &[&second]), [&*second]);
}

pub(crate) fn names_are_bytes(store: &dyn RegisterStore) {
    let long = "ü".repeat(255);
    let names = [
        "a",
        "A",
        "a ",
        " a",
        "ä",
        "a\u{308}",
        "'",
        "\\",
        "%",
        "\u{1F512}",
        "a.",
        "a/b",
        "a_2f",
        "..",
        "%2e%2e",
        "ä \n\0?#&",
        &long,
    ];
    let keys: Vec<_> = names
        .iter()
        .map(|name| key(name))
        .chain([key(&format!("{long} "))])
        .collect();
    let writes: Vec<_> = keys
        .iter()
        .map(|key| write(key, None, Some(key.as_str())))
        .collect();
    let made = store.write(&writes, call()).unwrap();
    assert!(made.iter().all(Option::is_some), "{made:?}");
    for (key, version) in keys.iter().zip(made) {
        assert_eq!(
            entry(store, key),
            version.map(|it| (it, key.as_str().to_owned()))
        );
    }
    let session = store.open_session(LIMIT, call()).unwrap();
    let listed = store.list(call()).unwrap();
    let values: BTreeSet<_> = listed.iter().map(|entry| &*entry.value).collect();
    assert_eq!(values, keys.iter().map(Key::as_str).collect());
    assert_eq!(listed.len(), keys.len(), "and no session");
    store.end_sessions(&[&session], call()).unwrap();
    let value = "{\"o\":\"€\"} ".repeat(6_000);
    let a = entry(store, &keys[0]).map(|(version, _)| version);
    assert!(written(store, write(&keys[0], a, Some(&value))).is_some());
    assert_eq!(entry(store, &keys[0]).unwrap().1, value);
}

/// Threads add to numbers in entries of which each is written only if nobody has written it.
fn no_write_is_lost(store: &dyn RegisterStore) {
    const TIMES: u32 = 25;
    let keys = ["a", "b", "c"].map(key);
    let session = store.open_session(LIMIT, call()).unwrap();
    let add = |key: &Key| {
        let seen = entry(store, key);
        let count: u32 = seen.as_ref().map_or(0, |(_, count)| count.parse().unwrap());
        (seen.map(|(version, _)| version), (count + 1).to_string())
    };
    thread::scope(|scope| {
        for thread in 0..8 {
            let (keys, session) = (&keys, &session);
            scope.spawn(move || {
                let mut left = [TIMES; 3];
                while left != [0; 3] {
                    let mut at: Vec<_> = (0..3).filter(|at| left[*at] > 0).collect();
                    // Half of the threads write in the other order.
                    if thread % 2 == 0 {
                        at.reverse();
                    }
                    let next: Vec<_> = at.iter().map(|at| add(&keys[*at])).collect();
                    let writes = at.iter().zip(&next).map(|(at, (seen, value))| Write {
                        session: Some(session),
                        ..write(&keys[*at], *seen, Some(value))
                    });
                    let done = store.write(&writes.collect::<Vec<_>>(), call()).unwrap();
                    for (at, done) in at.iter().zip(done) {
                        left[*at] -= u32::from(done.is_some());
                    }
                }
            });
        }
    });
    for key in &keys {
        assert_eq!(entry(store, key).unwrap().1, (8 * TIMES).to_string());
    }
}

/// `lock` locks the row of `lock/a` in a transaction until its result is dropped.
pub(crate) fn row_that_a_transaction_has_locked_is_not_waited_for<T>(
    store: &dyn RegisterStore,
    lock: impl Fn() -> T,
) {
    let (a, b) = (key("a"), key("b"));
    let first = written(store, write(&a, None, Some("1")));
    let held = lock();
    for value in [None, Some("2")] {
        assert_eq!(written(store, write(&a, first, value)), None);
    }
    assert_eq!(written(store, write(&a, None, Some("2"))), None);
    let both = [write(&a, first, Some("2")), write(&b, None, Some("2"))];
    let done = store.write(&both, call()).unwrap();
    assert_eq!((done[0].is_some(), done[1].is_some()), (false, true));
    assert_eq!(entry(store, &a).map(|(version, _)| version), first);
    let session = store.open_session(LIMIT, call()).unwrap();
    assert!(kept(store, &[&session], LIMIT).is_empty());
    drop(held);
    until("the row is free again", || {
        written(store, write(&a, first, None)).is_some()
    });
}

/// `spoil` makes the value of the row of `lock/b` one that is no text.
pub(crate) fn row_of_another_program_hides_no_other(
    store: &dyn RegisterStore,
    spoil: impl FnOnce(),
) {
    let (a, b) = (key("a"), key("b"));
    let first = written(store, write(&a, None, Some("1"))).unwrap();
    written(store, write(&b, None, Some("1"))).unwrap();
    spoil();
    let keys = &[&a, &b];
    let read = Read {
        keys,
        ..Read::default()
    };
    let entries = store.read(&read, call()).unwrap().entries;
    let values = entries.iter().flatten().map(|it| (it.version, &*it.value));
    assert_eq!(values.collect::<Vec<_>>(), [(first, "1"), (0, "")]);
    let listed = store.list(call()).unwrap();
    assert!(listed.iter().any(|entry| entry.value == "1"), "{listed:?}");
}

/// Each write is committed, also one by itself after several in one transaction. The stores share a table.
pub(crate) fn writes_are_seen_by_another_program(
    store: &dyn RegisterStore,
    other: &dyn RegisterStore,
) {
    let [a, b, c] = ["a", "b", "c"].map(key);
    let both = [write(&a, None, Some("1")), write(&b, None, Some("1"))];
    store.write(&both, call()).unwrap();
    written(store, write(&c, None, Some("1"))).unwrap();
    for key in [a, b, c] {
        assert!(entry(other, &key).is_some(), "{key}");
    }
}

/// More than fit in one reply, each of them with a value of `size` bytes.
pub(crate) fn entries_are_listed(store: &dyn RegisterStore, size: usize) {
    let keys: Vec<_> = (0..300).map(|at| key(&format!("{at}"))).collect();
    let value = "v".repeat(size);
    for keys in keys.chunks(10) {
        let writes = keys.iter().map(|key| write(key, None, Some(&value)));
        let written = store.write(&writes.collect::<Vec<_>>(), call()).unwrap();
        assert!(written.iter().all(Option::is_some));
    }
    // A debug build computes for a second here, which takes a minute beside eight loops and other tests.
    let call = Call::until(SystemClock.now() + LIMIT * 10);
    assert_eq!(store.list(call).unwrap().len(), keys.len());
}
