//! What keepers, guards and similar types show of themselves.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    AcquireOptions, AcquireRequest, Admin, Backend, Capabilities, Capability, Error, ErrorKind,
    Finding, Grant, HeldName, HostInstant, LeasePolicy, LockKeeper, LockName, MAX_HANDOVERS, Mode,
    Operation, ReentrantKeeper, Released, Renewal, StoreInfo, Usage,
};

use crate::answers::Renewals;
use crate::steps::{SECOND, assert_fails, batching, fixed, scripted};

/// A store that answers operators, and grants everything.
#[derive(Debug)]
struct Operated;

impl StoreInfo for Operated {
    fn backend(&self) -> &'static str {
        "operated"
    }

    fn location(&self) -> String {
        "operated://there".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
            .with(Capability::Shared)
            .with_least_margin(20)
    }

    fn usage(&self) -> Option<Usage> {
        Some(Usage {
            commands: 3,
            connections: 2,
        })
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

impl Backend for Operated {
    type Lease = ();

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<()>>, Error> {
        if request.name().as_str() == "busy" {
            return Ok(None);
        }
        Ok(Some(Grant {
            lease: (),
            epoch: 1,
            asked_at: request.now(),
            slot: 0,
        }))
    }

    fn batch(&self, batch: &mut [Operation<'_, ()>]) {
        for operation in batch {
            match operation {
                Operation::Acquire(it) => it.answer = Some(Backend::acquire(self, it.request)),
                Operation::Renew(it) => it.answer = Some(Ok(Renewal::Renewed)),
                Operation::Release(it) => it.answer = Some(Ok(Released::Done)),
            }
        }
    }
}

impl Admin for Operated {
    fn held(&self, _: Option<&LockName>, _: HostInstant) -> Result<Vec<HeldName>, Error> {
        let mut held = HeldName::new("a", "mark");
        held.epoch = Some(5);
        held.holder.pid = Some(7);
        held.holder.host = Some("web-1".to_owned());
        held.holder.label = Some("the job".to_owned());
        let since = SystemTime::now() - Duration::from_millis(90_500);
        held.holder.since = Some(since);
        Ok(vec![held])
    }

    fn force_release(&self, held: &HeldName, _: HostInstant) -> Result<bool, Error> {
        Ok(held.mark == "mark")
    }

    fn examine(&self, _: HostInstant) -> Result<Vec<Finding>, Error> {
        Err(Error::new(ErrorKind::Unavailable, "gone"))
    }

    fn cannot_tell(&self) -> &'static [&'static str] {
        &["the holder"]
    }
}

#[test]
fn keeper_tells_its_settings_and_those_of_its_store() {
    let lease = LeasePolicy::Fixed { ttl: 40 * SECOND };
    let offset = Duration::from_secs(7);
    let keeper = LockKeeper::builder(Arc::new(Operated))
        .lease(lease)
        .max_hold(9 * SECOND)
        .margin(3 * SECOND)
        .handover_max(MAX_HANDOVERS)
        .epoch_offset(offset)
        .build()
        .unwrap();
    assert_eq!(keeper.lease(), lease);
    assert_eq!(keeper.max_hold(), Some(9 * SECOND));
    assert_eq!(keeper.margin(SECOND), SECOND / 2);
    assert_eq!(keeper.margin(40 * SECOND), 3 * SECOND);
    assert_eq!(
        keeper.margin(200 * SECOND),
        10 * SECOND,
        "that of the store"
    );
    assert_eq!(keeper.backend(), "operated");
    assert_eq!(keeper.location(), "operated://there");
    assert!(keeper.capabilities().has(Capability::Shared));
    let usage = keeper.usage().unwrap();
    assert_eq!((usage.commands, usage.connections), (3, 2));

    let (admin, at) = (keeper.admin().unwrap(), HostInstant::NEVER);
    let held = admin.held(None, at).unwrap();
    assert!(held[0].epoch.unwrap() > 5, "the offset is added");
    assert!(admin.force_release(&held[0], at).unwrap());
    assert!(admin.examine(at).is_err());
    assert_eq!(admin.cannot_tell(), ["the holder"]);

    let (_, keeper) = scripted();
    assert!(keeper.admin().is_none() && keeper.usage().is_none());
    assert_eq!(keeper.max_hold(), None);
    assert_eq!(keeper.margin(5 * SECOND), SECOND / 2);
    assert_eq!(keeper.margin(60 * SECOND), SECOND);
}

#[test]
fn error_of_a_wait_names_the_holder() {
    let keeper = LockKeeper::builder(Arc::new(Operated)).build().unwrap();
    let holder =
        "another holder had the lock for all of 10s: pid 7 on web-1 [the job], for 1m 30s;";
    for error in [
        keeper.lock("busy").unwrap_err(),
        keeper.lock_all(["busy"]).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().starts_with(holder), "{error}");
    }
    // The store is not asked who it is.
    let _held = keeper.lock("a").unwrap();
    let options = AcquireOptions::new().wait(Duration::from_millis(10));
    for error in [
        keeper.lock_with("a", &options).unwrap_err(),
        keeper.lock_shared_with("a", &options).unwrap_err(),
        keeper.lock_all_with(["a", "b"], &options).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(
            error.to_string().contains("a guard of this process"),
            "{error}"
        );
        assert!(error.to_string().contains("`ReentrantKeeper`"), "{error}");
    }
}

#[test]
fn guards_tell_their_lock_and_for_how_long_it_is_held() {
    let (store, keeper) = batching();
    let guard = keeper.acquire("a", &fixed(12 * SECOND)).unwrap().unwrap();
    assert_eq!(guard.name().as_str(), "a");
    assert_eq!(guard.mode(), Mode::Exclusive);
    assert_eq!(guard.remaining(), 11 * SECOND);
    store.clock.advance(2 * SECOND);
    assert_eq!(guard.remaining(), 9 * SECOND);
    drop(guard);

    let set = keeper.lock_all(["b", "c"]).unwrap();
    let names = set.guards().iter().map(|guard| guard.name().as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["b", "c"]);
    assert!(set.is_held());
    // Each request moves the clock a little.
    let almost = 11 * SECOND - Duration::from_micros(1)..=11 * SECOND;
    assert!(almost.contains(&set.remaining()));
    store.clock.advance(2 * SECOND);
    set.renew().unwrap();
    assert_eq!(set.remaining(), 11 * SECOND);
    assert_eq!(["b", "c"].map(|name| store.count(name, "renew")), [1, 1]);
    store.renewals("c", Renewals::Lost);
    assert_fails(set.renew(), ErrorKind::Lost);
    assert!(!set.is_held() && set.remaining().is_zero());
    drop(set);

    let keeper = ReentrantKeeper::new(keeper);
    let outer = keeper.lock_shared("d").unwrap();
    assert_eq!((outer.mode(), outer.depth()), (Mode::Shared, 1));
    let inner = keeper.lock_shared("d").unwrap();
    assert_eq!((outer.depth(), inner.depth()), (2, 2));
    assert_eq!(outer.token(), inner.token());
    drop((outer, inner));
    keeper.close();
    assert_fails(keeper.lock("d"), ErrorKind::Cancelled);
}

/// Programs print them where they log.
#[test]
fn debug_texts_name_the_lock() {
    let (_, keeper) = scripted();
    let guard = keeper.lock("seat:1").unwrap();
    let set = keeper.lock_all(["seat:2"]).unwrap();
    let semaphore = keeper.semaphore("seat:3", 2).unwrap();
    let permit = semaphore.acquire().unwrap();
    let reentrant = ReentrantKeeper::new(keeper.clone());
    let outer = reentrant.lock("seat:4").unwrap();
    let leader = keeper.lead("seat:5", |leader| ControlFlow::Break(format!("{leader:?}")));
    assert_eq!(semaphore.name().as_str(), "seat:3");
    let texts = [
        (format!("{keeper:?}"), "settings"),
        (format!("{guard:?}"), "seat:1"),
        (format!("{:?}", guard.lost_signal()), "seat:1"),
        (format!("{set:?}"), "seat:2"),
        (format!("{:?}", set.lost_signal()), "seat:2"),
        (format!("{semaphore:?}"), "seat:3"),
        (format!("{permit:?}"), "seat:3"),
        (format!("{outer:?}"), "seat:4"),
        (leader.unwrap(), "seat:5"),
    ];
    for (text, part) in texts {
        assert!(text.contains(part), "{text}");
    }
}
