//! Providers of one store whose replies are lost, and whose writes arrive late.

#![allow(clippy::expect_used, clippy::unwrap_used, unreachable_pub, dead_code)]

mod map_store;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{LeasePolicy, LockKeeper, SystemClock, Wait};
use lockkeeper_register::RegisterProvider;

use map_store::{Faults, Map, MapStore};

const PROVIDERS: usize = 4;
const ROUNDS: usize = 150;
const LIMIT: Duration = Duration::from_secs(60);

fn keeper(map: &Arc<Map>) -> LockKeeper {
    let store = MapStore::new(map, "lost");
    let provider = RegisterProvider::new(store, Arc::new(SystemClock)).unwrap();
    let ttl = Duration::from_secs(600);
    let builder = LockKeeper::builder(Arc::new(provider)).lease(LeasePolicy::Renewed { ttl });
    builder.wait(Wait::AtMost(LIMIT)).build().unwrap()
}

/// Each provider locks two names in turn, with a wait and by attempts.
fn contend(keeper: &LockKeeper, inside: &[AtomicUsize; 2], tokens: &[AtomicU64; 2]) {
    for round in 0..ROUNDS {
        let name = round % 2;
        let text = ["a", "b"].get(name).unwrap();
        let guard = match round % 3 {
            // What an attempt finds may be busy, or not known.
            0 => keeper.try_lock(*text).ok().flatten(),
            _ => Some(keeper.lock(*text).expect("it asks again")),
        };
        let Some(guard) = guard else {
            continue;
        };
        let (inside, last) = (inside.get(name).unwrap(), tokens.get(name).unwrap());
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold {text}");
        let token = guard.token().get();
        assert!(last.swap(token, Ordering::SeqCst) < token, "tokens grow");
        thread::yield_now();
        inside.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
    }
}

#[test]
fn lost_replies_and_late_writes_do_no_harm() {
    for notifies in [true, false] {
        let faults = Faults {
            loses_one_in: 4,
            ..Faults::default()
        };
        let map = Arc::new(Map::new(notifies, faults));
        let (inside, tokens) = (Default::default(), Default::default());
        let keepers: Vec<_> = (0..PROVIDERS).map(|_| keeper(&map)).collect();
        thread::scope(|scope| {
            for keeper in &keepers {
                scope.spawn(|| contend(keeper, &inside, &tokens));
            }
        });
        map.set(|faults| faults.loses_one_in = 0);
        let until = Instant::now() + LIMIT;
        while keepers.iter().any(|keeper| keeper.pending_releases() > 0) {
            assert!(Instant::now() < until, "the releases do not end");
            thread::park_timeout(Duration::from_millis(5));
        }
        drop(keepers);
        // A write that arrives after the end of its provider makes nothing that lives.
        let last = keeper(&map);
        for (name, token) in ["a", "b"].into_iter().zip(&tokens) {
            let guard = last.lock(name).unwrap();
            assert!(guard.token().get() > token.load(Ordering::SeqCst));
        }
        drop(last);
        while !map.held().is_empty() {
            assert!(Instant::now() < until, "{:?} is left", map.held());
            thread::park_timeout(Duration::from_millis(5));
        }
    }
}
