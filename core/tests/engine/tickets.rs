//! Tickets, resumed in the process that has just ended the lock.

use std::thread;

use lockkeeper_core::ErrorKind;

use crate::answers::Releases;
use crate::steps::*;

/// What waits behind a release that hangs overtakes it on another connection.
#[test]
fn resumption_waits_for_the_release_of_a_drop() {
    let (store, keeper) = batching();
    let ticket = keeper.lock("a").unwrap().detach().unwrap();
    store.releases(Releases::Hang);
    drop(keeper.resume(&ticket).unwrap());
    store.wait_for("a", "release", 1);
    let asked = store.count("a", "acquire");

    let resumed = thread::scope(|scope| {
        let resuming = scope.spawn(|| keeper.resume(&ticket));
        eventually("the resumption should give up", || {
            store.clock.advance(SECOND / 10);
            resuming.is_finished()
        });
        resuming.join().unwrap()
    });
    assert_fails(resumed, ErrorKind::Unavailable);
    assert_eq!(store.count("a", "acquire"), asked);

    store.releases(Releases::Work);
    eventually("the release should end", || keeper.pending_releases() == 0);
    assert_fails(keeper.resume(&ticket), ErrorKind::Lost);
}
