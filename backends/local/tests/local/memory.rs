//! The in-process store.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    Clock, Config, Drivers, ErrorKind, LockKeeper, LockProvider, Wait, epoch_at,
};
use lockkeeper_local::{MemoryDriver, MemoryProvider};

use crate::modes::{TestStore, mode_cases};
use crate::{manual_clock, until};

fn keeper(provider: &MemoryProvider, clock: &Arc<dyn Clock>) -> LockKeeper {
    LockKeeper::builder(Arc::new(provider.clone()))
        .clock(Arc::clone(clock))
        .handover_max(0)
        .wait(Wait::Forever)
        .build()
        .unwrap()
}

#[test]
fn stores_are_shared_by_name_and_namespace_until_their_last_user() {
    let drivers = Drivers::new().with(MemoryDriver);
    let open = |url: &str| drivers.open(&Config::from_url(url).unwrap()).unwrap();
    let first = open("memory:meet");
    let held = first.lock("seat").unwrap();
    assert!(open("memory:meet").try_lock("seat").unwrap().is_none());
    for other in ["memory:", "memory:other", "memory:meet?namespace=shop"] {
        assert!(open(other).try_lock("seat").unwrap().is_some(), "{other}");
    }
    let token = held.token();
    drop(first);
    assert!(
        open("memory:meet").try_lock("seat").unwrap().is_none(),
        "a guard outlives its keeper"
    );
    drop(held);
    until("the store has ended", || {
        open("memory:meet").try_lock("seat").unwrap().is_some()
    });
    assert!(open("memory:meet").lock("seat").unwrap().token() > token);
}

#[test]
fn epochs_follow_the_wall_clock() {
    let second = 1 << 24;
    let (clock, shared) = manual_clock();
    let stores = [
        MemoryProvider::new(),
        MemoryProvider::with_clock(Arc::clone(&shared)),
    ];
    let keepers = [
        LockKeeper::builder(Arc::new(stores[0].clone()))
            .build()
            .unwrap(),
        keeper(&stores[1], &shared),
    ];
    let mut last = 0;
    for _ in 0..3 {
        for keeper in &keepers {
            let before = epoch_at(SystemTime::now()) - second;
            let epoch = keeper.lock("seat").unwrap().token().get() >> 7;
            let after = epoch_at(SystemTime::now()) + second;
            assert!((before..after).contains(&epoch) && epoch > last, "{epoch}");
            last = epoch;
        }
        clock.advance(Duration::from_secs(10));
    }
}

#[test]
fn host_in_the_url_is_refused() {
    let drivers = Drivers::new().with(MemoryDriver);
    for url in ["memory://host", "memory://host:1/x", "memory://user@host/"] {
        let error = drivers.open(&Config::from_url(url).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}");
        assert!(error.to_string().contains("memory:NAME"), "{error}");
    }
}

struct MemoryStore(MemoryProvider);

impl TestStore for MemoryStore {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self(MemoryProvider::with_clock(clock))
    }

    fn open(&self) -> Arc<dyn LockProvider> {
        Arc::new(self.0.clone())
    }

    fn assert_empty(&self) {
        assert_eq!(self.0.held(), []);
    }
}

mod modes {
    super::mode_cases!(super::MemoryStore);
}
