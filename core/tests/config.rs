//! A config from a URL, from code and from a file is the same config, and shows no secret.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::{
    Capability, Config, Driver, Drivers, Error, ErrorKind, Key, KeySpec, LeasePolicy, LockProvider,
    MAX_DURATION, OpenContext, Takes, Wait,
};

const RESTART_GRACE: Key<Duration> = Key::new(
    "restart_grace",
    Takes::Duration(Duration::ZERO, MAX_DURATION),
    "0s",
    "how long a server that was just started grants nothing",
);

/// Opens nothing, and remembers the namespace, the path and the `restart_grace` that it was asked for.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Driver for Recorder {
    fn schemes(&self) -> &'static [&'static str] {
        &["store"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        const { &[RESTART_GRACE.spec] }
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let mut opened = format!("{} {}", context.namespace(), context.url().path());
        if let Some(grace) = context.value(&RESTART_GRACE)? {
            opened += &format!(" {grace:?}");
        }
        self.0.lock().unwrap().push(opened);
        Err(Error::unreachable("a recorder opens nothing"))
    }
}

/// A recorder of stores that have no `restart_grace`.
#[derive(Debug)]
struct Graceless(Recorder);

impl Driver for Graceless {
    fn schemes(&self) -> &'static [&'static str] {
        &["graceless"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        &[]
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        self.0.open(context)
    }
}

/// Returns the namespaces and paths that were opened, or what is wrong with the config.
fn opened(config: &Config) -> Result<Vec<String>, Error> {
    let recorder = Recorder::default();
    let drivers = Drivers::new()
        .with(recorder.clone())
        .with(Graceless(recorder.clone()));
    let checked = drivers.check(config);
    assert!(recorder.0.lock().unwrap().is_empty(), "it opens nothing");
    let error = drivers.open(config).unwrap_err();
    match error.is_unreachable() {
        true => checked.map(|()| recorder.0.lock().unwrap().clone()),
        false => {
            assert_eq!(checked.unwrap_err().kind(), error.kind());
            Err(error)
        }
    }
}

#[test]
fn typed_settings_are_the_keys_of_a_url() {
    let ttl = Duration::from_millis(1_500);
    let store = || Config::from_url("store:one").unwrap();
    let config = store()
        .lease(LeasePolicy::Fixed { ttl })
        .wait(Wait::Forever)
        .margin(Duration::from_nanos(1_000_001))
        .handover_max(3)
        .handover_time(Duration::ZERO)
        .epoch_offset(Duration::from_secs(3_600))
        .namespace("shop")
        .require(Capability::CrossProcess)
        .fallback("store:two");
    assert_eq!(opened(&config).unwrap(), ["shop one", "shop two"]);
    assert_eq!(opened(&config.without("fallback")).unwrap(), ["shop one"]);
    for (config, kind) in [
        (store().ttl(Duration::MAX), ErrorKind::InvalidTtl),
        (
            store().wait(Wait::AtMost(Duration::MAX)),
            ErrorKind::InvalidWait,
        ),
        (store().handover_max(128), ErrorKind::InvalidValue),
        (store().epoch_offset(Duration::MAX), ErrorKind::InvalidValue),
        (store().namespace(""), ErrorKind::InvalidName),
        (store().ttl(ttl).ttl(ttl), ErrorKind::InvalidValue),
        (
            store().set("ttl", "1s").unwrap().ttl(ttl),
            ErrorKind::InvalidValue,
        ),
    ] {
        assert_eq!(opened(&config).unwrap_err().kind(), kind, "{config:?}");
    }
}

#[test]
fn values_of_a_url_mean_the_same_as_elsewhere() {
    let url = Config::from_url("store:a+b?namespace=shop+eu").unwrap();
    let set = Config::from_url("store:a+b").unwrap().namespace("shop+eu");
    assert_eq!(opened(&url).unwrap(), ["shop+eu a+b"]);
    assert_eq!(opened(&set).unwrap(), ["shop+eu a+b"]);
}

#[test]
fn longest_of_all_times_is_refused_without_a_panic() {
    let last_second = "store:?ttl=18446744073709551615s1000ms";
    // A panic that is caught still calls the hook, which prints it.
    let panics = Arc::new(AtomicBool::new(false));
    let (counted, hook) = (Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        counted.store(true, Ordering::SeqCst);
        hook(panic);
    }));
    let config = Config::from_url(last_second);
    let error = config.and_then(|config| opened(&config)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidTtl, "{error:?}");
    assert!(!panics.load(Ordering::SeqCst));
    let parts = Config::from_url("store:?ttl=1m 2.5s30ms").unwrap();
    assert_eq!(opened(&parts).unwrap().len(), 1);
}

#[test]
fn fallback_inherits_restart_grace_if_its_driver_takes_the_key() {
    for (url, stores) in [
        (
            "store:a?restart_grace=30s&fallback=store:b&fallback=store:c%3Frestart_grace=5s",
            ["default a 30s", "default b 30s", "default c 5s"],
        ),
        (
            "store:a?restart_grace=30s&fallback=graceless:b&fallback=store:c",
            ["default a 30s", "default b", "default c 30s"],
        ),
        (
            "graceless:a?fallback=store:b&fallback=store:c%3Frestart_grace=5s",
            ["default a", "default b", "default c 5s"],
        ),
    ] {
        let config = Config::from_url(url).unwrap();
        assert_eq!(opened(&config).unwrap(), stores, "{url}");
    }
}

#[test]
fn list_without_values_is_refused_in_code_as_in_a_url() {
    for (key, kind) in [
        ("require", ErrorKind::InvalidValue),
        ("fallback", ErrorKind::InvalidUrl),
    ] {
        let in_url = Config::from_url(&format!("store:?{key}=")).unwrap();
        let refused = opened(&in_url).unwrap_err();
        assert_eq!(refused.kind(), kind);
        for value in ["", " ", "\t\n"] {
            let in_code = Config::from_url("store:").unwrap().set(key, value);
            let error = opened(&in_code.unwrap()).unwrap_err();
            assert_eq!(error.to_string(), refused.to_string(), "{key} {value:?}");
        }
    }
}

#[cfg(feature = "serde")]
#[test]
fn table_has_the_same_keys() {
    let text = r#"{"url": "store:x", "ttl": "5s", "handover_max": 3, "require": ["cross_host"],
        "namespace": "shop", "fallback": []}"#;
    let config: Config = serde_json::from_str(text).unwrap();
    assert_eq!(opened(&config).unwrap(), ["shop x"]);
    for (text, says) in [
        (r#"{"ttl": "5s"}"#, "url"),
        (r#"{"url": "store:", "ttl": 0.5}"#, "`ttl` takes"),
        (r#"{"url": "store:", "shop": {}}"#, "`shop` takes"),
        (
            r#"{"url": "store:", "shop": []}"#,
            "`shop` has an empty list",
        ),
        (r#"{"url": "store:", "ttl": []}"#, "`ttl` has an empty list"),
    ] {
        let error = serde_json::from_str::<Config>(text).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn parts_of_a_url_are_decoded_and_shown_without_the_password() {
    for (text, login, address, path, shown) in [
        ("memory:", "", "", "", "memory:"),
        ("memory:a:b", "", "", "a:b", "memory:a%3Ab"),
        (" SQLite:/a%20b?ttl=1s\n", "", "", "/a b", "sqlite:/a%20b"),
        ("sqlite:a@b.db", "", "", "a@b.db", "sqlite:a%40b.db"),
        ("sqlite:///a@b.db", "", "", "/a@b.db", "sqlite:/a%40b.db"),
        ("sqlite://a/b.db", "", "", "a/b.db", "sqlite:a/b.db"),
        ("SQLite://b.db", "", "", "b.db", "sqlite:b.db"),
        ("sqlite:50%.db", "", "", "50%.db", "sqlite:50%25.db"),
        ("unix:/run/é", "", "", "/run/é", "unix:/run/%C3%A9"),
        ("redis://H_1.x", "", "H_1.x", "", "redis://H_1.x"),
        ("redis://h?ttl=1s", "", "h", "", "redis://h"),
        ("redis://h:/", "", "h", "/", "redis://h/"),
        ("redis://[0::1]:7/2", "", "::1 7", "/2", "redis://[::1]:7/2"),
        ("redis://[::1]", "", "::1", "", "redis://[::1]"),
        ("redis://:p@h", " p", "h", "", "redis://:***@h"),
        ("redis://me@h", "me", "h", "", "redis://me@h"),
        (
            "etcd://:p@h1:1,h2,[::1]:3/x",
            " p",
            "h1 1",
            "/x",
            "etcd://:***@h1:1,h2,[::1]:3/x",
        ),
        (
            "mysql://m%40:%3A:%25@h:65535/d",
            "m@ ::%",
            "h 65535",
            "/d",
            "mysql://m%40:***@h:65535/d",
        ),
    ] {
        let config = Config::from_url(text).expect(text);
        let url = config.url();
        let port = url.port().map(|port| port.to_string());
        let both = |first: Option<&str>, second: Option<&str>| {
            let second = second.map(|it| format!(" {it}")).unwrap_or_default();
            format!("{}{second}", first.unwrap_or_default())
        };
        assert_eq!(both(url.username(), url.password()), login, "{text}");
        assert_eq!(both(url.host(), port.as_deref()), address, "{text}");
        assert_eq!(url.path(), path, "{text}");
        assert_eq!(url.to_string(), shown, "{text}");
        assert!(format!("{config:?}").contains(shown), "{config:?}");
    }
}

#[test]
fn url_may_name_several_hosts() {
    for (text, hosts) in [
        ("memory:", &[][..]),
        ("redis://h", &[("h", None)]),
        ("etcd://h1:1,h2/", &[("h1", Some(1)), ("h2", None)]),
        (
            "etcd://me:p,w@h1,[0::1]:7,10.0.0.1:2?a=b,c",
            &[("h1", None), ("::1", Some(7)), ("10.0.0.1", Some(2))],
        ),
    ] {
        let config = Config::from_url(text).expect(text);
        assert_eq!(config.url().hosts().collect::<Vec<_>>(), hosts, "{text}");
    }
}

#[test]
fn what_is_no_url_is_refused() {
    for (text, says) in [
        ("", "not a store's URL"),
        ("/srv/locks.db", "not a store's URL"),
        ("no url: at all", "not a store's URL"),
        ("memory:#", "%23"),
        ("sqlite:/%ff", "not UTF-8"),
        ("memory:?namespace=%ff", "not UTF-8"),
        ("redis://h:x/", "port"),
        ("redis://h:+1/", "port"),
        ("redis://h:65536/", "port"),
        ("redis://a b/", "host"),
        ("redis://::1/", "host"),
        ("redis://[::1/", "host"),
        ("redis://[h]/", "host"),
        ("redis://h1:1,h2:x/", "port"),
        ("redis://h1:1,::1/", "host"),
        ("redis://h1,,h2/", "empty host"),
        ("redis://,h2/", "empty host"),
        ("redis://h1,/", "empty host"),
    ] {
        let error = Config::from_url(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{text}");
        assert!(error.to_string().contains(says), "{text}: {error}");
    }
}

#[test]
fn no_part_of_a_password_is_shown() {
    for url in [
        "redis://bob:1234/s3cret@h:1/",
        "redis://bob:?s3cret@h/",
        "mysql://bob:4711?s3cret@h/",
        "mysql://bob:1234/s3cret@h/",
        "redis://bob:12#s3cret@h/",
        "redis://bob:s3cret/x@h/",
        "redis://bob:p@1234/s3cret@h/",
        "redis://bob:p@s3cret@h/",
        "redis://bob:50%s3cret@h/",
        "redis://bob:s3cret?1234=1@h/",
        "redis://s3cret$1234",
        "redis://h?password=1234&s3cret",
        "quorum:?member=redis://:12&s3cret@h1&member=redis://h2",
        "quorum:?member=redis://:12&s3cret&34@h1&member=redis://h2",
        "quorum:?member=redis://:12&s3cret=x@h1&member=redis://h2",
    ] {
        let error = Config::from_url(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}");
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("%40"), "{shown}");
        assert!(
            !shown.contains("s3cret") && !shown.contains("1234"),
            "{shown}"
        );
    }
    for url in [
        "sqlite:/srv/a@b.db",
        "redis://me:x@h/1",
        "redis://h/1?fallback=redis://me:x@other/",
        "mysql://h?fallback=mysql://other/&user=me@h",
        "mysql:?socket=/run/a@b.sock",
    ] {
        assert!(Config::from_url(url).is_ok(), "{url}");
    }
}
