//! Several names whose batch was refused, and which no other holder has.

use std::time::Duration;

use lockkeeper_core::{AcquireOptions, CancelToken, ErrorKind, Outage};

use crate::answers::Grants;
use crate::scripted_store::ScriptedStore;
use crate::steps::{assert_fails, batching};

/// A batch does not wait for a connection. An acquisition of its own does, and that is no outage.
#[test]
fn set_whose_batch_finds_no_connection_asks_for_each_name() {
    let store = ScriptedStore::with_batches();
    let keeper = store.builder().outage(Outage::Fail).build().unwrap();
    store.grants(Grants::BatchExhausted);
    let guards = keeper.lock_all(["a", "b"]).unwrap();
    assert!(guards.is_held());
    store.set(|state| assert_eq!(state.batches.first(), Some(&2)));
}

#[test]
fn set_that_is_cancelled_before_it_asks_is_not_busy() {
    let (_, keeper) = batching();
    let cancel = CancelToken::new();
    cancel.cancel();
    let options = AcquireOptions::new().wait(Duration::ZERO).cancel(&cancel);
    assert_fails(
        keeper.acquire_all(["a", "b"], &options),
        ErrorKind::Cancelled,
    );
}
