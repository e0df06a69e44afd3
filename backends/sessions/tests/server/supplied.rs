//! Connections that the application makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, ErrorKind, LeasePolicy};
use lockkeeper_testkit::{StoreKind, cases};

use crate::checks::{REPLY_LIMIT, is_refused};
use crate::store::{Case, Via, keeper, open, provider_by, start};

pub(crate) const CASES: &[Case] = cases![second_server_is_refused];

fn second_server_is_refused(kind: StoreKind) {
    let (server, other) = (start(kind), start(kind));
    let has_moved = Arc::new(AtomicBool::new(false));
    let addrs = [&server, &other].map(|server| server.single_addr().unwrap());
    let moved = Arc::clone(&has_moved);
    let choose = move || addrs[usize::from(moved.load(Ordering::SeqCst))];
    let via = Via {
        pool_size: 10,
        response_timeout: REPLY_LIMIT,
    };
    let keeper = keeper(&provider_by(kind, via, choose).unwrap());
    let _held = keeper.lock("a").unwrap();
    assert!(open(&*server, "").try_lock("a").unwrap().is_none());
    has_moved.store(true, Ordering::SeqCst);
    // A lease of another ttl needs a session of its own.
    let ttl = Duration::from_secs(7);
    let options = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let acquired = keeper.acquire("b", &options);
    is_refused(acquired, ErrorKind::Incompatible, &["two servers"]);
}
