//! The names of locks on the server, as the server and as operators see them.

use lockkeeper_testkit::{MySqlKind, cases};

use crate::checks::soon;
use crate::store::{Case, open, start, start_own};

pub(crate) const CASES: &[Case] = cases![
    short_plain_names_are_unchanged,
    other_names_get_a_readable_part_and_a_hash,
    names_are_listed_whole_or_in_part,
];

/// The longest name that MySQL takes.
const MAX_BYTES: usize = 64;

fn short_plain_names_are_unchanged(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server, "namespace=shop");
    let longest = "x".repeat(MAX_BYTES - "shop:".len());
    for name in ["seat:42", "a/b_c-d.e@f#g", &longest] {
        let guard = keeper.lock(name).unwrap();
        assert_eq!(server.held().unwrap()[0].0, format!("shop:{name}"));
        guard.release().unwrap();
    }
}

fn other_names_get_a_readable_part_and_a_hash(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server, "namespace=shop");
    for (name, readable) in [
        ("Seat 42", "seat_42"),
        (&*"x".repeat(MAX_BYTES - 4), "xxxxxxxxxxxxxxxxxx"),
        (&"자리".repeat(80), "__________________"),
        ("'; --", "___--"),
        ("\0", "_"),
    ] {
        let guard = keeper.lock(name).unwrap();
        let shown = server.held().unwrap().remove(0).0;
        let (before, hash) = shown.split_once('~').unwrap();
        assert_eq!(before, format!("shop:{readable}"));
        assert_eq!(hash.len(), 40, "{hash}");
        assert!(
            hash.chars().all(|digit| digit.is_ascii_hexdigit()),
            "{hash}"
        );
        guard.release().unwrap();
    }
    // Names that MySQL compares as equal.
    let _held = keeper.lock("Seat 42").unwrap();
    let other = open(&server, "namespace=shop");
    assert!(other.try_lock("Seat 42").unwrap().is_none());
    drop(other.try_lock("SEAT 42").unwrap().unwrap());
}

fn names_are_listed_whole_or_in_part(kind: MySqlKind) {
    let server = start_own(kind);
    let mut root = server.client().unwrap();
    if kind == MySqlKind::MySql9 {
        root.execute("GRANT SELECT ON performance_schema.* TO 'keeper'@'%'")
            .unwrap();
    }
    // Names of another program.
    for name in ["mysql_migration_lock", "another program"] {
        root.execute(&format!("DO GET_LOCK('{name}', 0)")).unwrap();
    }
    let long = "x".repeat(MAX_BYTES);
    for (namespace, names) in [
        (
            "shop",
            [
                "a/b_c-d.e@f#g",
                "seat:42",
                "Seat 42",
                &long,
                "'; drop table t; -- ",
            ],
        ),
        ("My%20Shop", ["a", "b", "~", "ß", "_"]),
    ] {
        let keeper = open(&server, &format!("namespace={namespace}"));
        let _guards = names.map(|name| keeper.lock(name).unwrap());
        let other = open(&server, "namespace=other");
        assert_eq!(other.admin().unwrap().held(None, soon()).unwrap(), []);
        let admin = keeper.admin().unwrap();
        let listed = admin.held(None, soon()).unwrap();
        assert_eq!(listed.len(), names.len(), "{listed:?}");
        // The namespace is as legible as what the server keeps of it.
        let all = admin.held_in_all_namespaces(soon()).unwrap().into_iter();
        let legible = namespace.to_lowercase().replace("%20", "_");
        let own = listed.iter().map(|held| (legible.clone(), held.clone()));
        assert_eq!(all.collect::<Vec<_>>(), own.collect::<Vec<_>>());
        for held in &listed {
            let is_known = if held.is_whole {
                names.contains(&held.name.as_str())
            } else {
                held.name.contains('~')
            };
            assert!(is_known, "{held:?}");
            // What is listed can be released by force. Names that share a session are freed together.
            admin.force_release(held, soon()).unwrap();
        }
        let whole = listed.iter().filter(|held| held.is_whole).count();
        assert_eq!(whole, if namespace == "shop" { 2 } else { 0 }, "{listed:?}");
    }
}
