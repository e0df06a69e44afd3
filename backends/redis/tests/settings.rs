//! What can be wrong with the settings. What can be wrong with a server is in the workspace's
//! `tests/redis_faults`.

#![allow(clippy::expect_used, reason = "that is how a test fails")]

use lockkeeper_core::{Config, Drivers, Error, ErrorKind};
use lockkeeper_redis::{RedisClusterProvider, RedisDriver, RedisOptions, RedisProvider};

fn refused(url: &str) -> Error {
    let config = Config::from_url(url);
    let opened = config.and_then(|config| Drivers::new().with(RedisDriver).open(&config));
    opened.expect_err(url)
}

#[test]
fn every_number_has_a_range() {
    for (key, values, range) in [
        (
            "pool_size",
            ["0", "1001", "4000000000", "99999999999"].as_slice(),
            "from 1 to 1000",
        ),
        (
            "db",
            &["-1", "2147483648", "99999999999"],
            "from 0 to 2147483647",
        ),
        ("replicas", &["-1", "1001", "99999999999"], "from 0 to 1000"),
        ("connect_timeout", &["0ns", "86401s"], "from 1ms to 1day"),
        ("response_timeout", &["0ns", "86401s"], "from 1ms to 1day"),
    ] {
        for value in values {
            let error = refused(&format!("redis://127.0.0.1:1/?{key}={value}"));
            assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error:?}");
            for word in [key, value, range] {
                assert!(error.to_string().contains(word), "no {word:?} in {error:?}");
            }
        }
    }
}

#[test]
fn settings_are_checked_before_anything_is_connected() {
    // No server listens on the port, and none is needed.
    for (url, kind, word) in [
        ("redis:///0", ErrorKind::InvalidUrl, "host"),
        ("redis://127.0.0.1:1/x", ErrorKind::InvalidValue, "db"),
        ("redis://127.0.0.1:1/1?db=2", ErrorKind::InvalidValue, "db"),
        (
            "redis://a:s3cret@127.0.0.1:1/?password=s3cret",
            ErrorKind::InvalidValue,
            "password",
        ),
        (
            "redis://a@127.0.0.1:1/",
            ErrorKind::InvalidValue,
            "password",
        ),
        (
            "redis://127.0.0.1:1/?pool_size=0",
            ErrorKind::InvalidValue,
            "pool_size",
        ),
        (
            "redis://127.0.0.1:1/?pool_size=x",
            ErrorKind::InvalidValue,
            "pool_size",
        ),
        (
            "redis://127.0.0.1:1/?connect_timeout=0s",
            ErrorKind::InvalidValue,
            "connect_timeout",
        ),
        (
            "redis://127.0.0.1:1/?response_timeout=x",
            ErrorKind::InvalidValue,
            "response_timeout",
        ),
        (
            "redis://127.0.0.1:1/?ca_file=/x",
            ErrorKind::InvalidValue,
            "rediss",
        ),
        (
            "rediss://127.0.0.1:1/?ca_file=/nowhere",
            ErrorKind::InvalidValue,
            "ca_file",
        ),
        (
            "redis://127.0.0.1:1/?poolsize=2",
            ErrorKind::UnknownKey,
            "pool_size",
        ),
        // What other clients call it.
        (
            "rediss://127.0.0.1:1/?ssl_cert_reqs=s3cret",
            ErrorKind::UnknownKey,
            "leave it out",
        ),
        (
            "redis://127.0.0.1:1/?ssl=s3cret",
            ErrorKind::UnknownKey,
            "`rediss://`",
        ),
        (
            "redis://127.0.0.1:1/?sentinel_password=s3cret",
            ErrorKind::InvalidValue,
            "redis+sentinel",
        ),
        (
            "redis+sentinel://127.0.0.1:1/a?sentinel_user=a",
            ErrorKind::InvalidValue,
            "sentinel_password",
        ),
        (
            "redis+sentinel:///mymaster",
            ErrorKind::InvalidUrl,
            "sentinel-1",
        ),
        (
            "redis+sentinel://127.0.0.1:1,127.0.0.1:2",
            ErrorKind::InvalidUrl,
            "mymaster",
        ),
        (
            "redis+sentinel://127.0.0.1:1/a?ca_file=/x",
            ErrorKind::InvalidValue,
            "rediss",
        ),
        ("redis+cluster:///", ErrorKind::InvalidUrl, "node-1"),
        (
            "redis+cluster://127.0.0.1:1,127.0.0.1:2/3",
            ErrorKind::InvalidUrl,
            "no database",
        ),
        (
            "redis+cluster://127.0.0.1:1/?db=1",
            ErrorKind::InvalidValue,
            "namespace",
        ),
        (
            "redis+cluster://127.0.0.1:1/?ca_file=/x",
            ErrorKind::InvalidValue,
            "rediss+cluster",
        ),
        (
            "rediss+cluster://:s3cret@127.0.0.1:1/?ca_file=/nowhere",
            ErrorKind::InvalidValue,
            "ca_file",
        ),
        (
            "redis://127.0.0.1:1,127.0.0.1:2/",
            ErrorKind::InvalidUrl,
            "several hosts",
        ),
        ("unix:", ErrorKind::InvalidUrl, "socket"),
        ("unix://host/x", ErrorKind::InvalidUrl, "socket"),
    ] {
        let error = refused(url);
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.to_string().contains(word), "no {word:?} in {error:?}");
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }
}

#[test]
fn options_are_for_their_provider() {
    let cluster = RedisOptions::cluster("127.0.0.1", 1).and_node("127.0.0.1", 2);
    let single = RedisOptions::tcp("127.0.0.1", 1);
    let errors = [
        RedisProvider::open(&cluster, "").map(drop),
        RedisClusterProvider::open(&single, "").map(drop),
    ];
    for (opened, word) in errors
        .into_iter()
        .zip(["RedisClusterProvider", "RedisProvider"])
    {
        let error = opened.expect_err(word);
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
    }
}
