//! What the facade exports, and the table of keys in its docs.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::Arc;

// Everything at once: that this compiles is the test of the names.
#[allow(unused_imports)]
use lockkeeper::{admin::*, backend::*, backends::*, clock::*, *};

#[cfg(all(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "quorum",
    feature = "redis",
    feature = "sqlite"
))]
#[test]
fn docs_list_every_key() {
    let drivers = drivers();
    let schemes = drivers.schemes().count();
    let mut table =
        "| key | schemes | takes | default | meaning |\n|---|---|---|---|---|\n".to_owned();
    for (key, of) in drivers.keys() {
        let of = match of.len() == schemes {
            true => "all".to_owned(),
            false => of.join(", "),
        };
        let (name, takes, default, meaning) = (key.name, key.takes, key.default, key.meaning);
        table += &format!("| `{name}` | {of} | {takes} | {default} | {meaning} |\n");
    }
    let docs = include_str!("../src/keys.md");
    assert!(docs == table, "src/keys.md is not\n{table}");
}

#[test]
fn methods_of_a_store_are_unambiguous() {
    let provider = local::MemoryProvider::new();
    assert!(provider.admin().is_some() && provider.location().starts_with("memory:"));
    let provider: Arc<dyn LockProvider> = Arc::new(provider);
    assert_eq!(provider.admin().is_some(), provider.backend() == "memory");
}

#[test]
fn options_of_a_backend_are_set_by_type() {
    /// Remembers the options that it is opened with.
    #[derive(Debug)]
    struct Reading;

    const COPIES: Key<u32> = Key::new("copies", Takes::Number(1, 9), "1", "how many there are");
    const ENCRYPTED: Key<bool> = Key::new("encrypted", Takes::FLAG, "off", "whether it is");

    impl Driver for Reading {
        fn schemes(&self) -> &'static [&'static str] {
            &["reading"]
        }

        fn keys(&self) -> &'static [KeySpec] {
            const { &[COPIES.spec, ENCRYPTED.spec] }
        }

        fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
            assert_eq!(context.value(&COPIES)?, Some(2));
            assert_eq!(context.value(&ENCRYPTED)?, Some(true));
            Err(Error::unreachable("all was read"))
        }
    }

    let drivers = Drivers::new().with(Reading);
    let open = |config: Config| drivers.open(&config).unwrap_err();
    let config = || Config::from_url("reading:").unwrap();
    let read = open(config().with(&COPIES, 2).with(&ENCRYPTED, true));
    assert!(read.is_unreachable(), "{read}");
    for (config, says) in [
        (
            config().with(&COPIES, 10),
            "`copies` takes a whole number from 1 to 9, and not \"10\"",
        ),
        (
            config().set("encrypted", "yes").unwrap(),
            "`encrypted` takes on, off, true or false",
        ),
        (config().with(&COPIES, 2).with(&COPIES, 2), "given twice"),
        (config().fallback("reading:?copies=0"), "from 1 to 9"),
    ] {
        let refused = open(config);
        assert_eq!(refused.kind(), ErrorKind::InvalidValue);
        assert!(refused.to_string().contains(says), "{refused}");
    }
}

#[test]
fn epoch_offset_moves_the_tokens_of_guards_and_of_holders() {
    let open = |query: &str| open(&format!("memory:offset{query}")).unwrap();
    let (first, moved) = (open(""), open("?epoch_offset=1h"));
    let before = first.lock("seat").unwrap().token();
    let guard = moved.lock("seat").unwrap();
    let hour = 3_600 << 24 << 7;
    assert!(guard.token().get() >= before.get() + hour);
    // Operators see the tokens of the guards.
    let deadline = SystemClock.now() + std::time::Duration::from_secs(60);
    let name = LockName::new("seat").unwrap();
    let admin = moved.admin().unwrap();
    let held = admin.held(Some(&name), deadline).unwrap();
    assert_eq!(held[0].token(), Some(guard.token()));
    let without = first.admin().unwrap().held(None, deadline).unwrap();
    assert_eq!(
        without[0].token().unwrap().get() + hour,
        guard.token().get()
    );
    assert!(admin.force_release(&held[0], deadline).unwrap());
    drop(guard);
    // The offset is too large for a token, and the lock does not stay behind.
    let error = open("?epoch_offset=100years").lock("seat").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
    assert!(error.to_string().contains("set a smaller one"), "{error}");
    assert!(first.try_lock("seat").unwrap().unwrap().token() > before);
}
