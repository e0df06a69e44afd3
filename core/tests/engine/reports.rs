//! The reports of acquisitions, releases and outages to observers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use lockkeeper_core::{
    CancelToken, Error, ErrorKind, FencingToken, LockGuard, LockKeeper, ObservedLock, Observer,
    Released,
};

use crate::answers::{Grants, Releases, Renewals};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

/// Sends each event as a line, behind a label.
struct Lines(&'static str, Mutex<Sender<String>>);

impl Lines {
    fn send(&self, lock: &ObservedLock<'_>, event: &str) {
        let (name, mode, store) = (lock.name, lock.mode, lock.store);
        assert_eq!(store, "scripted:");
        let line = format!("{}{event} {mode} {name}", self.0);
        let _ = self.1.lock().unwrap().send(line);
    }
}

impl Observer for Lines {
    fn requested(&self, lock: &ObservedLock<'_>) {
        self.send(lock, "requested");
    }

    fn acquired(&self, lock: &ObservedLock<'_>, _: FencingToken, waited: Duration, given: bool) {
        let given = if given { "given" } else { "granted" };
        self.send(lock, &format!("{given} after {}s", waited.as_secs()));
    }

    fn contended(&self, lock: &ObservedLock<'_>) {
        self.send(lock, "contended");
    }

    fn not_acquired(&self, lock: &ObservedLock<'_>, _: Duration, error: Option<&Error>) {
        self.send(lock, &format!("{:?}", error.map(Error::kind)));
    }

    fn released(
        &self,
        lock: &ObservedLock<'_>,
        _: FencingToken,
        held: Duration,
        result: &Result<Released, Error>,
    ) {
        let result = result.as_ref().map_err(Error::kind);
        self.send(lock, &format!("{result:?} after {}s", held.as_secs()));
    }
}

pub(crate) struct Told(Receiver<String>);

impl Told {
    fn expect<const N: usize>(&self, lines: [&str; N]) {
        for line in lines {
            assert_eq!(self.0.recv_timeout(LIMIT).unwrap(), line);
        }
    }

    /// Expects these lines in any order. They are given in their own.
    fn expect_all<const N: usize>(&self, lines: [&str; N]) {
        let mut told = lines.map(|_| self.0.recv_timeout(LIMIT).unwrap());
        told.sort_unstable();
        assert_eq!(told, lines);
    }

    /// Fails if there is another event so far.
    pub(crate) fn expect_nothing(&self) {
        let line = self.0.try_recv();
        assert!(line.is_err(), "{line:?}");
    }
}

fn observed(store: &Arc<ScriptedStore>) -> (LockKeeper, Told) {
    let (sender, receiver) = mpsc::channel();
    let observer = Arc::new(Lines("", Mutex::new(sender)));
    let builder = store.builder().handover_time(LIMIT).observer(observer);
    (builder.build().unwrap(), Told(receiver))
}

#[test]
fn each_observer_is_told_in_the_order_in_which_it_was_added() {
    let (sender, receiver) = mpsc::channel();
    let line = |label| Arc::new(Lines(label, Mutex::new(sender.clone())));
    let store = ScriptedStore::new();
    let builder = store.builder().observer(line("1 ")).observer(line("2 "));
    drop(builder.build().unwrap().lock("a").unwrap());
    Told(receiver).expect([
        "1 requested exclusive a",
        "2 requested exclusive a",
        "1 granted after 0s exclusive a",
        "2 granted after 0s exclusive a",
        "1 Ok(Done) after 0s exclusive a",
        "2 Ok(Done) after 0s exclusive a",
    ]);
}

#[test]
fn acquisitions_and_releases_tell_mode_outcome_and_times() {
    let store = ScriptedStore::new();
    let (keeper, told) = observed(&store);
    let first = keeper.lock_shared("a").unwrap();
    store.clock.advance(2 * SECOND);
    let second = keeper.lock_shared("a").unwrap();
    assert!(keeper.try_lock("a").unwrap().is_none());
    store.clock.advance(SECOND);
    drop(first);
    store.clock.advance(SECOND / 2);
    drop(second);
    told.expect([
        "requested shared a",
        "granted after 0s shared a",
        "requested shared a",
        "given after 0s shared a",
        "requested exclusive a",
        "contended exclusive a",
        "None exclusive a",
        "Ok(Done) after 3s shared a",
        "Ok(Done) after 1s shared a",
    ]);
    store.grants(Grants::Late(SECOND));
    let permit = keeper.semaphore("a", 2).unwrap().acquire().unwrap();
    assert_eq!(permit.remaining(), 10 * SECOND, "counted from the request");
    drop(permit);
    told.expect([
        "requested permit a",
        "granted after 1s permit a",
        "Ok(Done) after 0s permit a",
    ]);
    told.expect_nothing();
}

#[test]
fn every_name_of_a_set_has_a_beginning_and_an_end() {
    let store = ScriptedStore::with_batches();
    let (keeper, told) = observed(&store);
    let set = keeper.lock_all(["a", "b"]).unwrap();
    told.expect([
        "requested exclusive a",
        "granted after 0s exclusive a",
        "requested exclusive b",
        "granted after 0s exclusive b",
    ]);
    assert!(keeper.try_lock_all(["b", "c"]).unwrap().is_none());
    told.expect([
        "requested exclusive b",
        "contended exclusive b",
        "None exclusive b",
    ]);
    // Another process has the name.
    let other = store.keeper().lock("d").unwrap();
    assert!(keeper.try_lock_all(["c", "d"]).unwrap().is_none());
    told.expect([
        "requested exclusive c",
        "granted after 0s exclusive c",
        "requested exclusive d",
        "contended exclusive d",
        "None exclusive d",
        "Ok(Done) after 0s exclusive c",
    ]);
    drop((other, set));
    // Each is reported by a thread of the keeper.
    told.expect_all([
        "Ok(Done) after 0s exclusive a",
        "Ok(Done) after 0s exclusive b",
    ]);
    store.grants(Grants::Unreachable(Duration::ZERO));
    keeper.try_lock_all(["a", "b"]).unwrap_err();
    told.expect(["requested exclusive a", "Some(Unavailable) exclusive a"]);
    told.expect_nothing();
}

/// Panics at every event, and says before that there was one.
struct Panics(Mutex<Sender<()>>);

impl Panics {
    fn panic(&self) -> ! {
        let _ = self.0.lock().unwrap().send(());
        // Unlike `panic!`, this prints nothing.
        resume_unwind(Box::new("as the test wants"))
    }
}

impl Observer for Panics {
    fn requested(&self, _: &ObservedLock<'_>) {
        self.panic();
    }

    fn acquired(&self, _: &ObservedLock<'_>, _: FencingToken, _: Duration, _: bool) {
        self.panic();
    }

    fn contended(&self, _: &ObservedLock<'_>) {
        self.panic();
    }

    fn not_acquired(&self, _: &ObservedLock<'_>, _: Duration, _: Option<&Error>) {
        self.panic();
    }

    fn renewed(&self, _: &ObservedLock<'_>, _: FencingToken) {
        self.panic();
    }

    fn lost(&self, _: &ObservedLock<'_>, _: FencingToken) {
        self.panic();
    }

    fn released(
        &self,
        _: &ObservedLock<'_>,
        _: FencingToken,
        _: Duration,
        _: &Result<Released, Error>,
    ) {
        self.panic();
    }
}

#[test]
fn observer_that_panics_does_no_harm() {
    let store = ScriptedStore::new();
    let (sender, events) = mpsc::channel();
    let panics = Arc::new(Panics(Mutex::new(sender)));
    let keeper = store.builder().observer(panics).build().unwrap();
    let expect = |count| (0..count).for_each(|_| events.recv_timeout(LIMIT).unwrap());
    let guard = keeper.lock("a").unwrap();
    expect(2);
    for _ in 0..6 {
        store.next_renewal("a");
        wait_until_renewed(&guard);
        expect(1);
    }
    assert!(keeper.try_lock("a").unwrap().is_none());
    expect(3);
    assert_eq!(guard.release().unwrap(), Released::Done);
    expect(1);
    let lost = keeper.acquire("a", &fixed(SECOND)).unwrap().unwrap();
    store.clock.advance(SECOND);
    wait_until_lost(&lost);
    drop(lost);
    expect(4);
    assert!(events.try_recv().is_err());
}

#[test]
fn panic_of_a_backend_ends_the_acquisition() {
    let store = ScriptedStore::new();
    let (keeper, told) = observed(&store);
    store.grants(Grants::Panic);
    catch_unwind(AssertUnwindSafe(|| keeper.lock("a"))).unwrap_err();
    told.expect(["requested exclusive a", "Some(Unknown) exclusive a"]);
}

/// The waiter is cancelled, and the lock given to it, before it has begun to wait.
#[test]
fn end_of_a_guard_that_no_caller_got_is_not_told() {
    struct Cancels(CancelToken, Mutex<Option<LockGuard>>);
    impl Observer for Cancels {
        fn contended(&self, _: &ObservedLock<'_>) {
            self.0.cancel();
            drop(self.1.lock().unwrap().take());
        }
    }
    let (store, cancel) = (ScriptedStore::new(), CancelToken::new());
    let (sender, receiver) = mpsc::channel();
    let cancels = Arc::new(Cancels(cancel.clone(), Mutex::default()));
    let builder = store.builder().observer(Arc::clone(&cancels) as _);
    let builder = builder.observer(Arc::new(Lines("", Mutex::new(sender))));
    let (keeper, told) = (builder.build().unwrap(), Told(receiver));
    *cancels.1.lock().unwrap() = Some(keeper.lock("a").unwrap());
    let options = forever().cancel(&cancel);
    assert_fails(keeper.acquire("a", &options), ErrorKind::Cancelled);
    assert!(keeper.try_lock("a").unwrap().is_some());
    told.expect([
        "requested exclusive a",
        "granted after 0s exclusive a",
        "requested exclusive a",
        "Ok(Done) after 0s exclusive a",
        "contended exclusive a",
        "Some(Cancelled) exclusive a",
        "requested exclusive a",
        "granted after 0s exclusive a",
        "Ok(Done) after 0s exclusive a",
    ]);
}

/// Sends the beginnings and ends of outages.
struct Outages(Mutex<Sender<String>>);

impl Observer for Outages {
    fn outage_began(&self, store: &str, reason: &Error) {
        let line = format!("{store} gone: {:?}", reason.kind());
        let _ = self.0.lock().unwrap().send(line);
    }

    fn outage_ended(&self, store: &str, lasted: Duration) {
        let line = format!("{store} back after {}s", lasted.as_secs());
        let _ = self.0.lock().unwrap().send(line);
    }
}

#[test]
fn outage_is_told_once_and_so_is_its_end() {
    let store = ScriptedStore::new();
    let (keeper, told) = outages_of(&store);
    for _ in 0..2 {
        store.grants(Grants::Unreachable(Duration::ZERO));
        for _ in 0..3 {
            keeper.try_lock("a").unwrap_err();
            store.clock.advance(SECOND);
        }
        told.expect(["scripted: gone: Unavailable"]);
        store.grants(Grants::Work);
        drop(keeper.lock("a").unwrap());
        told.expect(["scripted: back after 3s"]);
    }
    drop(keeper.lock("a").unwrap());
    told.expect_nothing();
    // The keeper ends in an outage.
    store.grants(Grants::Unreachable(Duration::ZERO));
    keeper.try_lock("a").unwrap_err();
    store.clock.advance(SECOND);
    drop(keeper);
    told.expect(["scripted: gone: Unavailable", "scripted: back after 1s"]);
}

pub(crate) fn outages_of(store: &Arc<ScriptedStore>) -> (LockKeeper, Told) {
    let (sender, receiver) = mpsc::channel();
    let observer = Arc::new(Outages(Mutex::new(sender)));
    let builder = store.builder().observer(observer);
    (builder.build().unwrap(), Told(receiver))
}

#[test]
fn reply_to_a_request_from_before_the_outage_does_not_end_it() {
    let store = ScriptedStore::new();
    let (keeper, told) = outages_of(&store);
    let guard = keeper.lock("a").unwrap();
    store.renewals("a", Renewals::Hang);
    store.next_renewal("a");
    store.clock.advance(SECOND);
    store.grants(Grants::Unreachable(Duration::ZERO));
    keeper.try_lock("b").unwrap_err();
    told.expect(["scripted: gone: Unavailable"]);
    store.renewals("a", Renewals::Work);
    eventually("the renewal's reply is there", || {
        guard.remaining() > 9 * SECOND
    });
    store.clock.advance(SECOND);
    keeper.try_lock("b").unwrap_err();
    store.grants(Grants::Work);
    drop(keeper.lock("b").unwrap());
    told.expect(["scripted: back after 1s"]);
}

/// A backend may know of a loss without asking: its session has ended.
#[test]
fn loss_does_not_end_an_outage() {
    let store = ScriptedStore::new();
    let (keeper, told) = outages_of(&store);
    let guards = ["a", "b"].map(|name| keeper.lock(name).unwrap());
    store.grants(Grants::Unreachable(Duration::ZERO));
    keeper.try_lock("c").unwrap_err();
    told.expect(["scripted: gone: Unavailable"]);
    for name in ["a", "b"] {
        store.renewals(name, Renewals::Lost);
    }
    store.verify();
    for guard in &guards {
        wait_until_lost(guard);
    }
    store.clock.advance(SECOND);
    store.grants(Grants::Work);
    drop((keeper.lock("c").unwrap(), guards));
    told.expect(["scripted: back after 1s"]);
}

/// A call that was cancelled may return without a reply.
#[test]
fn cancelled_attempt_neither_begins_nor_ends_an_outage() {
    let store = ScriptedStore::new();
    let (keeper, told) = outages_of(&store);
    let gone = Grants::Unreachable(Duration::ZERO);
    let cancelled = |name, then, span| {
        let cancel = CancelToken::new();
        store.grants(Grants::Silent);
        let acquiring = spawn_acquire(&keeper, name, forever().cancel(&cancel));
        store.wait_for(name, "acquire", 1);
        cancel.cancel();
        store.grants(then);
        assert_eq!(failed(acquiring).kind(), ErrorKind::Cancelled);
        store.clock.advance(span);
    };
    cancelled("a", gone, 2 * SECOND);
    store.grants(gone);
    keeper.try_lock("b").unwrap_err();
    told.expect(["scripted: gone: Unavailable"]);
    cancelled("c", Grants::Silent, SECOND);
    store.grants(Grants::Work);
    drop(keeper.lock("b").unwrap());
    told.expect(["scripted: back after 1s"]);
}

/// Cancels two waits as soon as both have seen another holder.
struct CancelsWaits(Barrier, CancelToken);

impl Observer for CancelsWaits {
    fn contended(&self, _: &ObservedLock<'_>) {
        self.0.wait();
        self.1.cancel();
    }
}

/// The backend asks whether to repeat the attempt that the cancel has cut off.
#[test]
fn cancelled_waiters_begin_no_outage() {
    let store = ScriptedStore::new();
    let (sender, told) = mpsc::channel();
    let cancel = CancelToken::new();
    let builder = store.builder();
    let builder = builder.observer(Arc::new(Outages(Mutex::new(sender))));
    let builder = builder.observer(Arc::new(CancelsWaits(Barrier::new(2), cancel.clone())));
    let keeper = builder.build().unwrap();
    let (span, asks) = (SECOND, true);
    store.grants(Grants::LateReply { span, asks });
    let waits = ["a", "b"].map(|name| spawn_acquire(&keeper, name, forever().cancel(&cancel)));
    for wait in waits {
        assert_eq!(failed(wait).kind(), ErrorKind::Cancelled);
    }
    drop(keeper);
    Told(told).expect_nothing();
}

#[test]
fn release_without_a_reply_yet_is_no_outage() {
    let store = ScriptedStore::new();
    let (keeper, told) = outages_of(&store);
    let guard = keeper.lock("a").unwrap();
    store.releases(Releases::Hang);
    drop(guard);
    store.wait_for("a", "release", 2);
    store.releases(Releases::Work);
    drop(keeper.lock("a").unwrap());
    drop(keeper);
    told.expect_nothing();
}

#[test]
fn answer_to_a_waiter_ends_an_outage_that_began_during_its_wait() {
    let store = ScriptedStore::new();
    let (keeper, told) = outages_of(&store);
    store.grants(Grants::Polls);
    let waiting = spawn_acquire(&keeper, "a", forever());
    store.wait_for("a", "acquire", 1);
    store.clock.advance(SECOND);
    keeper.try_lock("b broken").unwrap_err();
    told.expect(["scripted: gone: Unavailable"]);
    for _ in 0..3 {
        let before = store.count("a", "repeat");
        store.set(|_| {});
        store.wait_for("a", "repeat", before + 1);
    }
    told.expect(["scripted: back after 0s"]);
    store.grants(Grants::Work);
    drop(granted(waiting));
}
