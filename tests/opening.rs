//! Mistakes in a URL or a config. Each mistake has an error kind of its own, and its error says what to
//! do. It is found before a store is contacted.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::backend::{
    AcquireRequest, Backend, Capabilities, Driver, Drivers, Grant, Key, KeySpec, LockProvider,
    OpenContext, Operation, StoreInfo, Takes,
};
use lockkeeper::{Config, Error, ErrorKind, Observer};

const PASSWORD: Key<String> = Key::new(
    "password",
    Takes::Text("text"),
    "none",
    "what to log in with",
);

/// A driver that cannot reach its store, and counts how often it is opened. The store at the host `full` replies.
#[derive(Clone, Debug, Default)]
struct Unreachable(Arc<AtomicUsize>);

impl Driver for Unreachable {
    fn schemes(&self) -> &'static [&'static str] {
        &["far"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        const { &[PASSWORD.spec] }
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(match context.url().host() {
            Some("full") => Error::new(ErrorKind::Unavailable, "no connection is free"),
            _ => Error::unreachable("no route to host"),
        })
    }
}

/// A driver whose store takes only leases of a minute and more.
#[derive(Debug)]
struct Slow;

impl Driver for Slow {
    fn schemes(&self) -> &'static [&'static str] {
        &["slow"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        &[]
    }

    fn open(&self, _: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        Ok(Arc::new(Slow))
    }
}

impl StoreInfo for Slow {
    fn backend(&self) -> &'static str {
        "slow"
    }

    fn location(&self) -> String {
        "slow:".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
            .with_min_ttl(Duration::from_secs(60))
            .with_ttl_step(Duration::from_secs(1))
    }
}

impl Backend for Slow {
    type Lease = ();

    fn batch(&self, _: &mut [Operation<'_, ()>]) {
        panic!("no test locks here");
    }

    fn acquire(&self, _: &AcquireRequest<'_>) -> Result<Option<Grant<()>>, Error> {
        panic!("no test locks here");
    }
}

fn drivers(far: &Unreachable) -> Drivers {
    let drivers = lockkeeper::backend::drivers().with(far.clone()).with(Slow);
    drivers.without(&["later"], "later")
}

fn refused(drivers: &Drivers, url: &str) -> Error {
    Config::from_url(url)
        .and_then(|config| drivers.open(&config))
        .expect_err(url)
}

#[test]
fn each_mistake_has_its_own_kind_and_reaches_no_store() {
    use ErrorKind::{
        FeatureDisabled, InvalidName, InvalidTtl, InvalidUrl, InvalidValue, InvalidWait,
        TtlTooShort, UnknownKey, UnknownScheme, Unsupported,
    };

    let far = Unreachable::default();
    let drivers = drivers(&far);
    for (url, kind, says) in [
        ("no url at all", InvalidUrl, "sqlite:/var/lib"),
        ("far:/x#y", InvalidUrl, "%23"),
        ("far://h1:1,h2/", InvalidUrl, "several hosts"),
        ("far:?ttl=-1s", InvalidTtl, "from 100ms"),
        ("oracle://h", UnknownScheme, "memory:, sqlite:"),
        ("oracle://h", UnknownScheme, "with other features later:"),
        ("sqlit:/x", UnknownScheme, "did you mean `sqlite:`?"),
        ("latr://h", UnknownScheme, "did you mean `later:`?"),
        ("later://h", FeatureDisabled, "feature `later`"),
        ("far:?tll=5s", UnknownKey, "did you mean `ttl`?"),
        ("far:?pasword=x", UnknownKey, "did you mean `password`?"),
        ("memory:?password=x", UnknownKey, "there are namespace"),
        ("far:?ttl=0s", InvalidTtl, "100ms or more"),
        (
            "far:?ttl=soon",
            InvalidTtl,
            "a duration from 100ms to 100years",
        ),
        ("far:?ttl=1000years", InvalidTtl, "a hundred years or less"),
        ("far:?ttl=99ms", TtlTooShort, "100ms or more"),
        ("slow:?ttl=60500ms", InvalidTtl, "multiple of 1s"),
        ("slow:?ttl=59s", TtlTooShort, "60s or more"),
        ("far:?wait=1000years", InvalidWait, "or `forever`"),
        (
            "far:?wait=999999999999999999999s",
            InvalidWait,
            "or forever",
        ),
        ("far:?namespace=", InvalidName, "1 to 512 bytes"),
        ("far:?lease=eternal", InvalidValue, "renewed or fixed"),
        ("far:?handover_max=many", InvalidValue, "0 to 127"),
        ("far:?handover_max=128", InvalidValue, "0 to 127"),
        ("far:?handover_max=4294967296", InvalidValue, "0 to 127"),
        ("far:?handover_time=1000years", InvalidValue, "to 100years"),
        ("far:?margin=1000years", InvalidValue, "to 100years"),
        ("far:?require=cross_hosts", InvalidValue, "cross_host"),
        ("far:?ttl=1s&ttl=2s", InvalidValue, "say it once"),
        (
            "memory:?require=cross_host",
            Unsupported,
            "use another store",
        ),
        (
            "memory:?require=cross_process",
            Unsupported,
            "use another store",
        ),
        (
            "far:?fallback=memory:%3Fttl%3D5s",
            InvalidValue,
            "on the first store",
        ),
        ("far:?fallback=memory:%3Fnope%3D5s", UnknownKey, "`nope`"),
        ("far:?fallback=nope:", UnknownScheme, "`nope:`"),
        (
            "far:?fallback=memory:&require=cross_host",
            Unsupported,
            "exclude each other",
        ),
        (
            "far:?fallback=memory:&open_wait=forever",
            InvalidWait,
            "never try the fallback",
        ),
    ] {
        let error = refused(&drivers, url);
        assert_eq!(error.kind(), kind, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
    assert_eq!(far.0.load(Ordering::SeqCst), 0, "a store was contacted");
}

#[test]
fn no_error_contains_secrets() {
    let far = Unreachable::default();
    for url in [
        "far://me:s3cret@host/",
        "far://me:s3cret@host/?ttl=0s",
        "far:?pasword=s3cret",
        "far:?password=s3cret&password=s3cret",
        "far:?password=s3cret",
        "nope://me:s3cret@host",
    ] {
        let error = refused(&drivers(&far), url);
        assert!(
            !format!("{error} {error:?}").contains("s3cret"),
            "{error:?}"
        );
        if let Ok(config) = Config::from_url(url) {
            assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
        }
    }
}

#[derive(Default)]
struct Fallbacks(Mutex<Vec<(String, String, ErrorKind)>>);

impl Observer for Fallbacks {
    fn fallback(&self, from: &str, to: &str, reason: &Error) {
        let used = (from.to_owned(), to.to_owned(), reason.kind());
        self.0.lock().unwrap().push(used);
    }
}

#[test]
fn fallback_is_used_only_if_store_is_unreachable() {
    let far = Unreachable::default();
    let used = Arc::new(Fallbacks::default());
    let config = Config::from_url("far://me:s3cret@host/?ttl=7s")
        .unwrap()
        .set("fallback", "memory:")
        .unwrap()
        .observer(Arc::clone(&used) as _);
    let keeper = drivers(&far).open(&config).unwrap();
    assert_eq!(keeper.backend(), "memory");
    let guard = keeper.lock("a").unwrap();
    assert!(
        guard.remaining() < std::time::Duration::from_secs(7),
        "the fallback has the ttl of the first store"
    );
    assert_eq!(
        *used.0.lock().unwrap(),
        [(
            "far://me:***@host/".to_owned(),
            "memory:".to_owned(),
            ErrorKind::Unavailable
        )]
    );

    // A mistake does not lead to the fallback.
    let error = refused(&drivers(&far), "sqlite:/nowhere/x.db?fallback=memory:");
    assert_ne!(error.kind(), ErrorKind::Unavailable);
    // A store that other programs may use meanwhile does not, either.
    let error = refused(&drivers(&far), "far://full/?fallback=memory:");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // If no store is reachable, the error is that of the last one.
    let error = refused(&drivers(&far), "far:?fallback=far:");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl Observer for Warnings {
    fn warning(&self, store: &str, text: &str) {
        assert!(text.contains("tokens may become smaller"), "{text}");
        self.0.lock().unwrap().push(store.to_owned());
    }
}

/// The tokens of `far:` do not follow the clock, and those of `memory:` do.
#[test]
fn opening_warns_of_each_listed_store_whose_tokens_may_become_smaller() {
    let drivers = drivers(&Unreachable::default());
    for (url, stores) in [
        ("memory:", &[][..]),
        ("memory:?fallback=memory:other", &[]),
        ("far:a?fallback=memory:", &["far:a"]),
        ("memory:?fallback=far:b", &["far:b"]),
        ("far:a?fallback=far:b&fallback=memory:", &["far:a", "far:b"]),
        ("far:a?fallback=memory:&epoch_offset=0s", &[]),
        ("far:a?fallback=memory:&epoch_offset=1h", &[]),
    ] {
        let warnings = Arc::new(Warnings::default());
        let config = Config::from_url(url).unwrap();
        let config = config.observer(Arc::clone(&warnings) as _);
        let keeper = drivers.open(&config).unwrap();
        assert_eq!(keeper.backend(), "memory");
        assert_eq!(*warnings.0.lock().unwrap(), stores, "{url}");
    }
}

#[test]
fn disabled_feature_is_named() {
    let schemes: Vec<_> = lockkeeper::backend::drivers().schemes().collect();
    assert!(schemes.contains(&"memory"));
    if !cfg!(feature = "sqlite") {
        let error = lockkeeper::open("sqlite:/tmp/x.db").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FeatureDisabled);
    }
}
