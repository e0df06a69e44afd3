//! Mistakes in the settings of each store. Each mistake has its own kind of error, which names the mistake and
//! shows no secret. It is found before the store is contacted, also if the store is a fallback and the first store
//! is up.
//!
//! `opening.rs` tests mistakes in the settings that all stores have in common. The suite of each server tests what
//! can be wrong with the server.

#![allow(clippy::unwrap_used, reason = "that is how a test fails")]

use lockkeeper::{Config, ErrorKind};

use ErrorKind::{InvalidUrl, InvalidValue, UnknownKey};

/// A URL or what follows its scheme, and the error.
type Row = (&'static str, ErrorKind, &'static str);

const LOCAL_AND_HTTP: &[Row] = &[
    ("memory://b", InvalidUrl, "no host, port or user"),
    ("sqlite:", InvalidUrl, "needs the path"),
    ("consul:b", InvalidUrl, "names no host"),
    ("consul://h/shop", InvalidUrl, "has no path"),
    ("consul://me:secret@h", InvalidValue, "ACL token"),
    (
        "consul://h?acl_token=sec%0Aret",
        InvalidValue,
        "no ACL token has",
    ),
    (
        "consul://h?datacenter=a%26b",
        InvalidValue,
        "letters, digits",
    ),
    ("etcd:b", InvalidUrl, "names no host"),
    ("etcd://h/shop", InvalidUrl, "has no path"),
    ("etcd://me@h", InvalidValue, "both `user` and `password`"),
    (
        "quorum:?member=memory:a&member=memory:b&member=sqlite://",
        InvalidUrl,
        "needs the path",
    ),
];

const REDIS: &[Row] = &[
    ("redis:///0", InvalidUrl, "host"),
    ("redis://h/x", InvalidValue, "db"),
    ("redis://h/1?db=2", InvalidValue, "db"),
    (
        "redis://a:s3cret@h/?password=s3cret",
        InvalidValue,
        "password",
    ),
    ("redis://a@h/", InvalidValue, "without a password"),
    ("redis:b", InvalidUrl, "names no host"),
    ("redis://h/?db=-1", InvalidValue, "from 0 to 2147483647"),
    (
        "redis://h/?db=2147483648",
        InvalidValue,
        "from 0 to 2147483647",
    ),
    (
        "redis://h/?db=99999999999",
        InvalidValue,
        "from 0 to 2147483647",
    ),
    ("redis://h/?replicas=-1", InvalidValue, "from 0 to 1000"),
    ("redis://h/?replicas=1001", InvalidValue, "from 0 to 1000"),
    (
        "redis://h/?replicas=99999999999",
        InvalidValue,
        "from 0 to 1000",
    ),
    ("redis://h/?ca_file=/x", InvalidValue, "rediss"),
    ("rediss://h/?ca_file=/nowhere", InvalidValue, "ca_file"),
    (
        "rediss://h/?ssl_cert_reqs=s3cret",
        UnknownKey,
        "leave it out",
    ),
    ("redis://h/?ssl=s3cret", UnknownKey, "`rediss://`"),
    (
        "redis://h/?sentinel_password=s3cret",
        InvalidValue,
        "redis+sentinel",
    ),
    (
        "redis+sentinel://h/a?sentinel_user=a",
        InvalidValue,
        "sentinel_password",
    ),
    ("redis+sentinel:///mymaster", InvalidUrl, "sentinel-1"),
    ("redis+sentinel://h,i", InvalidUrl, "mymaster"),
    ("redis+sentinel://h/a?ca_file=/x", InvalidValue, "rediss"),
    ("redis+cluster:///", InvalidUrl, "node-1"),
    ("redis+cluster://h,i/3", InvalidUrl, "no database"),
    ("redis+cluster://h/?db=1", InvalidValue, "namespace"),
    (
        "redis+cluster://h/?ca_file=/x",
        InvalidValue,
        "rediss+cluster",
    ),
    (
        "rediss+cluster://:s3cret@h/?ca_file=/nowhere",
        InvalidValue,
        "ca_file",
    ),
    ("redis://h,i/", InvalidUrl, "several hosts"),
    ("valkey:", InvalidUrl, "names no host"),
    ("valkey://h/?ca_file=/x", InvalidValue, "rediss"),
    ("valkeys://h/?ca_file=/nowhere", InvalidValue, "ca_file"),
    ("unix:", InvalidUrl, "socket"),
    ("unix://host/x", InvalidUrl, "socket"),
];

const MYSQL: &[Row] = &[
    ("", InvalidUrl, "host"),
    ("shop", InvalidUrl, "names no host"),
    ("//h/?socket=/x", InvalidUrl, "socket"),
    ("//h/a?db=b", InvalidValue, "`db` is given twice"),
    ("//a:s3cret@h/?password=s3cret", InvalidValue, "password"),
    ("//h/?tls=maybe", InvalidValue, "tls"),
    ("//h/?ca_file=/x", InvalidValue, "tls=on"),
    ("//h/?tls=on&ca_file=/nowhere", InvalidValue, "ca_file"),
    ("?socket=/x&tls=on", InvalidValue, "not encrypted"),
    ("//h/?ssl-mode=s3cret", InvalidValue, "DISABLED, REQUIRED"),
    ("//h/?ssl-mode=PREFERRED", InvalidValue, "plain text"),
    ("//h/?ssl-mode=required&tls=on", InvalidValue, "one of them"),
    (
        "//h/?ssl-mode=VERIFY_CA&ssl-ca=/nowhere",
        InvalidValue,
        "ca_file",
    ),
    ("//h/?ssl-ca=/x", InvalidValue, "tls=on"),
    ("//h/?useSSL=true", UnknownKey, "`tls=on`"),
];

const POSTGRES: &[Row] = &[
    ("", InvalidUrl, "host"),
    ("shop", InvalidUrl, "names no host"),
    ("//u@h/?socket=/x", InvalidUrl, "socket"),
    ("//h/", InvalidValue, "names no user"),
    ("//u@h/a?db=b", InvalidValue, "db"),
    ("//u@h/a%00b", InvalidValue, "NUL"),
    ("//u:s3cret@h/?password=s3cret", InvalidValue, "password"),
    ("//u@h/?tls=maybe", InvalidValue, "tls"),
    ("//u@h/?ca_file=/x", InvalidValue, "tls=on"),
    ("//u@h/?tls=on&ca_file=/nowhere", InvalidValue, "ca_file"),
    ("?socket=/x&user=u&tls=on", InvalidValue, "socket"),
    ("//u@h/?sslmode=s3cret", InvalidValue, "verify-full"),
    ("//u@h/?sslmode=prefer", InvalidValue, "plain text"),
    ("//u@h/?sslmode=allow", InvalidValue, "plain text"),
    (
        "//u@h/?sslmode=disable&tls=off",
        InvalidValue,
        "one of them",
    ),
    (
        "//u@h/?sslmode=require&sslrootcert=/nowhere",
        InvalidValue,
        "ca_file",
    ),
    (
        "//u@h/?sslmode=require&sslrootcert=/x&ca_file=/x",
        InvalidValue,
        "ca_file",
    ),
    (
        "//u@h/?sslmode=disable&sslrootcert=/x",
        InvalidValue,
        "tls=on",
    ),
    ("//u@h/?sslcert=/x", UnknownKey, "`cert_file`"),
    ("//u@h/?sslkey=/x", UnknownKey, "`key_file`"),
    ("//u@h/?application_name=x", UnknownKey, "leave it out"),
    ("//u@h/?connect_timeout=10", InvalidValue, "30s"),
    ("//u@h/?cert_file=/x&key_file=/x", InvalidValue, "tls=on"),
];

/// No store is contacted: the host is none.
#[track_caller]
fn is_refused(url: &str, kind: ErrorKind, says: &[&str]) {
    let first = Config::from_url("memory:").unwrap().fallback(url);
    for config in [Config::from_url(url), Ok(first)] {
        let opened = config.and_then(|config| lockkeeper::open_config(&config));
        let error = opened.map(drop).unwrap_err();
        assert_eq!(error.kind(), kind, "{url}: {error:?}");
        let text = error.to_string();
        for word in says {
            assert!(text.contains(word), "{url}: no {word:?} in {text}");
        }
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }
}

#[test]
fn mistakes_have_their_own_errors() {
    for (schemes, rows) in [
        (&[""][..], LOCAL_AND_HTTP),
        (&[""], REDIS),
        (&["mysql:", "mariadb:"], MYSQL),
        (&["postgres:", "postgresql:"], POSTGRES),
    ] {
        for scheme in schemes {
            for (rest, kind, word) in rows {
                is_refused(&format!("{scheme}{rest}"), *kind, &[word]);
            }
        }
    }
}

#[test]
fn numbers_and_keys_of_all_servers_are_checked() {
    for server in [
        "redis://h",
        "mysql://h",
        "postgres://u@h",
        "etcd://h",
        "consul://h",
    ] {
        for (key, values, range) in [
            (
                "pool_size",
                &["0", "1001", "4000000000", "40000000000", "-1", "x"][..],
                "1 to 1000",
            ),
            ("connect_timeout", &["0s", "2days", "86401s"], "1ms to 1day"),
            ("response_timeout", &["1us", "25h", "x"], "1ms to 1day"),
        ] {
            for value in values {
                let url = format!("{server}/?{key}={value}");
                is_refused(&url, InvalidValue, &[key, value, range]);
            }
        }
        let url = format!("{server}/?poolsize=2");
        is_refused(&url, UnknownKey, &["pool_size"]);
    }
}
