//! Tickets, resumed in the process that has just ended the lock.

use std::thread;

use lockkeeper_core::ErrorKind;

use crate::answers::{Releases, Sends};
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

/// A resumption that waits for a release, and one that is queued behind another request.
#[test]
fn close_cancels_a_resumption() {
    for sends in [Sends::Nothing, Sends::Owed] {
        let (store, keeper) = batching();
        store.sends(sends);
        let ticket = keeper.lock("a").unwrap().detach().unwrap();
        store.releases(Releases::Hang);
        drop(keeper.resume(&ticket).unwrap());
        let verb = match sends {
            Sends::Owed => "collect",
            _ => "release",
        };
        eventually("the release should be asked for", || {
            store.clock.advance(SECOND / 100);
            store.count("a", verb) > 0
        });
        let resumed = thread::scope(|scope| {
            let resuming = scope.spawn(|| keeper.resume(&ticket));
            give_time();
            let closing = scope.spawn(|| keeper.close());
            let resumed = resuming.join().unwrap();
            store.releases(Releases::Work);
            closing.join().unwrap();
            resumed
        });
        assert_fails(resumed, ErrorKind::Cancelled);
    }
}
