//! Releases that a drop sends and does not wait for: who reads the reply, and what comes of a reply that is lost.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, Error, ErrorKind, FencingToken, LockKeeper, Mode, ObservedLock, Observer,
    Released,
};

use crate::answers::{Grants, Releases, Sends};
use crate::dropped::{Ends, observed};
use crate::reports::outages_of;
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

/// The longest that a reply is owed.
const COLLECTED: Duration = Duration::from_millis(10);

/// Returns a store that owes the replies to releases.
fn owing() -> (Arc<ScriptedStore>, LockKeeper, Ends) {
    let store = ScriptedStore::with_batches();
    store.sends(Sends::Owed);
    let (keeper, ends) = observed(store.builder());
    (store, keeper, ends)
}

fn batches(store: &ScriptedStore) -> Vec<usize> {
    let mut batches = Vec::new();
    store.set(|state| batches = std::mem::take(&mut state.batches));
    batches
}

/// Has the keeper's timer collect what is owed.
fn pass_time(store: &ScriptedStore, what: &str, is_done: impl Fn() -> bool) {
    eventually(what, || {
        store.clock.advance(COLLECTED);
        is_done()
    });
}

#[test]
fn drop_returns_while_the_store_does_not_answer() {
    let (store, keeper, ends) = owing();
    let [a, b] = lock_each(&keeper, ["a", "b"]);
    store.releases(Releases::Hang);
    drop(a);
    // Something is owed: it is queued.
    drop(b);
    store.wait_for("a", "collect", 1);
    assert!(ends.is_empty());
    assert_eq!(keeper.pending_releases(), 2);
    store.releases(Releases::Work);
    ends.expect_done(2);
    eventually("all is released", || keeper.pending_releases() == 0);
    assert_eq!(store.count("a", "release"), 0, "it was sent");
}

#[test]
fn next_request_of_the_name_goes_behind_the_release() {
    let (store, keeper, ends) = owing();
    drop(keeper.lock("a").unwrap());
    assert!(ends.is_empty());
    batches(&store);
    let guard = keeper.try_lock("a").unwrap().expect("it is free");
    ends.expect("a", Ok(Released::Done));
    assert_eq!(batches(&store), [2]);
    store.set(|state| assert!(state.batches_by_keepers.iter().all(|by| !by)));
    assert_eq!(guard.token().get() % 2, 0, "it was granted anew");
    drop(guard);
}

#[test]
fn requests_of_all_kinds_take_the_reply_along() {
    let (store, keeper, ends) = owing();
    let held = keeper.lock("held").unwrap();
    let requests: [&dyn Fn(); 4] = [
        &|| drop(keeper.try_lock_all(["b", "c"]).unwrap().unwrap()),
        &|| held.renew().unwrap(),
        &|| keeper.lock("d").unwrap().release().map(drop).unwrap(),
        &|| assert!(keeper.try_lock("held").unwrap().is_none()),
    ];
    for request in requests {
        drop(keeper.lock("a").unwrap());
        let before = store.count("a", "collect");
        request();
        assert!(store.count("a", "collect") <= before + 1);
        pass_time(&store, "all is released", || keeper.pending_releases() == 0);
        while !ends.is_empty() {}
    }
    // On a busy machine, the thread of the former request may not have ended: then the release goes with the next batch.
    let of = |verb| store.count("a", verb);
    assert_eq!(of("collect") + of("release"), 4);
    assert_ne!(of("collect"), 0);
}

#[test]
fn keeper_collects_a_reply_that_nobody_takes_along() {
    let (store, keeper, ends) = owing();
    drop(keeper.lock("a").unwrap());
    give_time();
    assert_eq!(store.count("a", "collect"), 0);
    pass_time(&store, "it is collected", || keeper.pending_releases() == 0);
    ends.expect("a", Ok(Released::Done));
    assert_eq!(store.count("a", "collect"), 1);
}

#[test]
fn release_whose_reply_is_lost_is_repeated_and_keeps_the_name() {
    for (how, end) in [
        (Releases::ReplyLost, Err(ErrorKind::Unknown)),
        (Releases::RequestLost, Ok(Released::Done)),
    ] {
        let (store, keeper, ends) = owing();
        drop(keeper.lock("a").unwrap());
        store.releases(how);
        // Its own reply is lost with that of the release, and it is repeated behind that.
        let guard = keeper.lock("a").unwrap();
        ends.expect("a", end);
        assert_eq!(store.count("a", "release"), 1, "{how:?}");
        assert!(guard.is_held());
    }
}

/// The one that reads the reply asks for another name.
#[test]
fn name_is_not_asked_for_while_its_release_is_repeated() {
    let (store, keeper, ends) = owing();
    drop(keeper.lock("a").unwrap());
    store.releases(Releases::Unreachable);
    // Also in the outage that begins, attempts are told the truth.
    let [a, b] = ["a", "b"].map(|name| spawn_acquire(&keeper, name, forever()));
    store.wait_for("a", "release", 3);
    assert_fails(keeper.try_lock("a"), ErrorKind::Unavailable);
    assert_eq!(store.count("a", "acquire"), 1);
    assert!(ends.is_empty());
    store.releases(Releases::Work);
    let _guards = [granted(a), granted(b)];
    ends.expect("a", Err(ErrorKind::Unknown).or(Ok(Released::Done)));
}

#[test]
fn single_attempt_behind_a_release_that_fails_is_not_busy() {
    let (store, keeper, _ends) = owing();
    drop(keeper.lock("a").unwrap());
    store.releases(Releases::Unreachable);
    let attempt = spawn_acquire(&keeper, "a", AcquireOptions::new().wait(Duration::ZERO));
    pass_time(&store, "the attempt ends", || attempt.is_finished());
    // Its own reply was lost with that of the release, which on a busy machine had failed before.
    let kinds = [ErrorKind::Unknown, ErrorKind::Unavailable];
    assert!(kinds.contains(&failed(attempt).kind()));
    assert_eq!(store.count("a", "acquire"), 1);
    store.releases(Releases::Work);
}

/// What reads the reply hangs, and other requests overtake it.
#[test]
fn request_for_the_name_does_not_overtake_what_reads_the_reply() {
    let (store, keeper, ends) = owing();
    drop(keeper.lock("a").unwrap());
    store.releases(Releases::Hang);
    let hanging = spawn_acquire(&keeper, "b", forever());
    store.wait_for("a", "collect", 1);
    let same = spawn_acquire(&keeper, "a", forever());
    drop(granted(spawn_acquire(&keeper, "c", forever())));
    give_time();
    assert_eq!(store.count("a", "acquire"), 1);
    assert!(!same.is_finished() && !hanging.is_finished());
    store.releases(Releases::Work);
    ends.expect_done(2);
    drop([granted(same), granted(hanging)]);
}

#[test]
fn drop_sends_nothing_in_an_outage_and_for_a_lost_guard() {
    let (store, keeper, ends) = owing();
    let lost = keeper.acquire("a", &fixed(2 * SECOND)).unwrap().unwrap();
    store.clock.advance(2 * SECOND);
    drop(lost);
    ends.expect("a", Ok(Released::AlreadyLost));
    let guard = keeper.lock("b").unwrap();
    store.grants(Grants::Unreachable(Duration::ZERO));
    assert_fails(keeper.try_lock("c"), ErrorKind::Unavailable);
    drop(guard);
    assert_eq!(store.count("a", "send") + store.count("b", "send"), 0);
    store.grants(Grants::Work);
    drop(keeper.try_lock("c").unwrap());
    pass_time(&store, "all is released", || keeper.pending_releases() == 0);
}

#[test]
fn set_is_dropped_without_a_wait() {
    let (store, keeper, ends) = owing();
    let guards = keeper.lock_all(["a", "b", "far c"]).unwrap();
    store.releases(Releases::Hang);
    drop(guards);
    store.wait_for("b", "release", 1);
    assert_eq!(keeper.pending_releases(), 3);
    assert!(ends.is_empty());
    store.releases(Releases::Work);
    ends.expect_done(3);
    drop(keeper.lock_all(["a", "b", "far c"]).unwrap());
}

#[test]
fn store_that_sends_nothing_has_a_thread_of_the_keeper_release() {
    for store in [ScriptedStore::new(), ScriptedStore::with_batches()] {
        store.sends(Sends::Nothing);
        let (keeper, ends) = observed(store.builder());
        for _ in 0..3 {
            drop(keeper.lock("a").unwrap());
            ends.expect("a", Ok(Released::Done));
        }
        assert_eq!(store.releases_by_keepers("a"), [true; 3]);
    }
}

/// No batch of it takes the reply along, so a thread of the keeper releases the lease.
#[test]
fn what_a_store_without_batches_has_sent_is_released_again() {
    let store = ScriptedStore::new();
    store.sends(Sends::Owed);
    let (keeper, ends) = observed(store.builder());
    drop(keeper.lock("a").unwrap());
    ends.expect("a", Ok(Released::Done));
    assert_eq!(store.releases_by_keepers("a"), [true]);
    assert_eq!(store.count("a", "collect"), 0);
}

#[test]
fn reader_and_permit_go_behind_the_release_of_another() {
    let (store, keeper, ends) = owing();
    let shared = AcquireOptions::new().mode(Mode::Shared);
    drop(keeper.acquire("a", &shared).unwrap());
    drop(keeper.lock("a").unwrap());
    let permits = keeper.semaphore("a", 1).unwrap();
    drop(permits.acquire().unwrap());
    drop(permits.acquire().unwrap());
    pass_time(&store, "all is released", || keeper.pending_releases() == 0);
    ends.expect_done(4);
}

#[test]
fn end_of_the_keeper_collects_what_is_owed() {
    let (store, keeper, ends) = owing();
    drop(keeper.lock("a").unwrap());
    drop(keeper);
    assert_eq!(store.count("a", "collect"), 1);
    ends.expect("a", Ok(Released::Done));
    eventually("the store is closed", || Arc::strong_count(&store) == 1);

    let (store, keeper, ends) = owing();
    let guard = keeper.lock("a").unwrap();
    drop(keeper);
    drop(guard);
    ends.expect("a", Ok(Released::Done));
    eventually("the store is closed", || Arc::strong_count(&store) == 1);

    let (store, keeper, ends) = owing();
    drop(keeper.lock("a").unwrap());
    keeper.close();
    ends.expect("a", Ok(Released::Done));
    eventually("all is released", || keeper.pending_releases() == 0);
    assert_eq!(store.count("a", "collect"), 1);
}

/// The keeper ends while the store does not answer: nothing waits longer for that than before.
#[test]
fn end_of_the_keeper_loses_no_release_whose_reply_does_not_come() {
    let (store, keeper, ends) = owing();
    let guard = keeper.lock("a").unwrap();
    drop(keeper);
    store.releases(Releases::Hang);
    let dropping = thread::spawn(move || drop(guard));
    store.wait_for("a", "collect", 1);
    dropping.join().unwrap();
    assert!(ends.is_empty());
    store.releases(Releases::RequestLost);
    ends.expect("a", Ok(Released::Done));
    eventually("the store is closed", || Arc::strong_count(&store) == 1);
}

/// Returns from no report before the test ends.
struct Stuck(Mutex<Receiver<()>>);

impl Observer for Stuck {
    fn released(
        &self,
        _: &ObservedLock<'_>,
        _: FencingToken,
        _: Duration,
        _: &Result<Released, Error>,
    ) {
        let _ = self.0.lock().unwrap().recv();
    }
}

/// The observer's code may ask for the very name that this request is about.
#[test]
fn request_that_takes_the_reply_along_does_not_run_the_observer() {
    let store = ScriptedStore::with_batches();
    store.sends(Sends::Owed);
    let (end, ended) = channel();
    let observer = Arc::new(Stuck(Mutex::new(ended)));
    let keeper = store.builder().observer(observer).build().unwrap();
    drop(keeper.lock("a").unwrap());
    let taking = spawn_acquire(&keeper, "b", forever());
    eventually("it is granted", || taking.is_finished());
    let guard = granted(taking);
    assert_eq!(store.count("a", "collect"), 1);
    assert_eq!(keeper.pending_releases(), 1, "it is reported later");
    drop(end);
    drop(guard);
}

/// A few threads send all requests, and the observer's code may ask for another name.
#[test]
fn threads_that_send_releases_do_not_run_the_observer() {
    let store = ScriptedStore::with_batches();
    store.sends(Sends::Nothing);
    let (end, ended) = channel();
    let observer = Arc::new(Stuck(Mutex::new(ended)));
    let keeper = store.builder().observer(observer).build().unwrap();
    let names: Vec<_> = (0..8).map(|number| format!("{number}")).collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| keeper.lock(name).unwrap())
        .collect();
    for (name, guard) in names.iter().zip(guards) {
        drop(guard);
        store.wait_for(name, "release", 1);
    }
    let other = spawn_acquire(&keeper, "b", forever());
    eventually("it is granted", || other.is_finished());
    drop(end);
    drop(granted(other));
}

/// The server has closed the connection while the host was suspended, say.
#[test]
fn reply_that_was_lost_during_a_pause_is_no_outage() {
    let store = ScriptedStore::with_batches();
    store.sends(Sends::Owed);
    let (keeper, told) = outages_of(&store);
    drop(keeper.lock("a").unwrap());
    store.releases(Releases::RequestLost);
    store.clock.advance(SECOND);
    pass_time(&store, "all is released", || keeper.pending_releases() == 0);
    assert_eq!(store.count("a", "release"), 1);
    drop(keeper);
    told.expect_nothing();
}
