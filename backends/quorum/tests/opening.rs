//! What a config says about the ttl and about members that restarted.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "this is a test program"
)]

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, Config, Driver, Drivers, Error, ErrorKind, KeySpec, LeasePolicy, LockProvider,
    OpenContext,
};
use lockkeeper_local::MemoryDriver;
use lockkeeper_quorum::QuorumDriver;

/// A driver that cannot reach its store `far:`, and reaches `loading:`, which does not serve yet. They take
/// `restart_grace`, and their errors show it.
#[derive(Debug)]
struct Unreachable;

impl Driver for Unreachable {
    fn schemes(&self) -> &'static [&'static str] {
        &["far", "loading"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        const { &[QuorumDriver::RESTART_GRACE.spec] }
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let grace = context.value(&QuorumDriver::RESTART_GRACE)?;
        Err(match context.url().scheme() {
            "far" => Error::unreachable(format!("no route; {grace:?}")),
            _ => Error::new(ErrorKind::Unavailable, format!("loading; {grace:?}")),
        })
    }
}

fn drivers() -> Drivers {
    let drivers = Drivers::new().with(Unreachable).with(MemoryDriver);
    drivers.with(QuorumDriver)
}

const MEMBERS: &str = "member=memory:a&member=memory:b&member=memory:c";

#[test]
fn restart_grace_below_the_ttl_is_refused() {
    let url = format!("quorum:?{MEMBERS}&ttl=30s&restart_grace=5s");
    let error = drivers().check(&Config::from_url(&url).unwrap());
    let error = error.expect_err("it would grant nothing");
    assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
    assert!(error.to_string().contains("raise it"), "{error}");
}

#[test]
fn member_that_restarted_waits_as_long_as_members_keep_a_lease() {
    let url = "quorum:?member=far:a&member=far:b&member=far:c&ttl=30s";
    let error = drivers().open(&Config::from_url(url).unwrap());
    let shown = format!("{:?}", error.expect_err("no member can be reached"));
    assert!(shown.contains("Some(30.032s)"), "{shown}");
}

/// Such a quorum may have locks, so no fallback is opened.
#[test]
fn quorum_is_unreachable_if_a_majority_is_in_any_order() {
    for (members, is_unreachable) in [
        ("member=far:b&member=loading:c", false),
        ("member=loading:b&member=far:c", false),
        ("member=far:b&member=far:c", true),
    ] {
        let url = format!("quorum:?member=memory:a&{members}");
        let error = drivers().open(&Config::from_url(&url).unwrap());
        let error = error.expect_err("one member does not suffice");
        assert_eq!(error.is_unreachable(), is_unreachable, "{error:?}");
    }
}

#[test]
fn fallback_inherits_restart_grace_if_it_allows_the_ttl() {
    for (grace, ttl) in [("5s", 30), ("60s", 60)] {
        let url = format!("far:?ttl=30s&restart_grace={grace}");
        let config = Config::from_url(&url).unwrap();
        let config = config.fallback(&format!("quorum:?{MEMBERS}"));
        let keeper = drivers().open(&config).expect(grace);
        let ttl = Duration::from_secs(ttl);
        let lasting = AcquireOptions::new().lease(LeasePolicy::Renewed { ttl });
        drop(keeper.lock_with("a", &lasting).expect(grace));
    }
}
