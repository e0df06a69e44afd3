//! Losses: when a guard is lost, and how that is reported.

use std::panic::resume_unwind;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{Clock, ErrorKind, HostInstant, ManualClock, Released, WaitOutcome};

use crate::answers::Renewals;
use crate::events::{Event, observed};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

#[test]
fn loss_by_the_clock_is_final_whatever_the_store_answers_later() {
    let store = ScriptedStore::new();
    let guard = store.keeper().lock("a").unwrap();
    store.renewals("a", Renewals::Hang);
    store.next_renewal("a");
    store.clock.advance(7 * SECOND);
    assert!(!guard.is_held());
    // The late answer is that the store had renewed the lease.
    store.renewals("a", Renewals::Work);
    store.wait_for("a", "release", 1);
    assert!(!guard.is_held());
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.renew().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
}

#[test]
fn answer_after_the_deadline_revives_nothing_even_if_the_loss_was_not_seen_before() {
    let store = ScriptedStore::new();
    let guard = store.keeper().acquire("a", &fixed(12 * SECOND));
    let guard = guard.unwrap().unwrap();
    // The renewal is requested 3 s before the deadline at 11 s, and answered 4 s after it. By the
    // reply, the store's lease would last until 20 s.
    store.clock.advance(8 * SECOND);
    store.renewals("a", Renewals::Late(7 * SECOND));
    assert_eq!(guard.renew().unwrap_err().kind(), ErrorKind::Lost);
    assert!(!guard.is_held());
}

#[test]
fn loss_by_the_stores_answer_counts_at_once_and_is_reported_once() {
    let store = ScriptedStore::new();
    let (keeper, events) = observed(store.builder());
    let guard = keeper.lock("a").unwrap();
    let signal = guard.lost_signal();
    let (sender, called) = mpsc::channel();
    signal.on_lost(move || sender.send(()).unwrap());
    assert_eq!(signal.wait(Duration::ZERO), WaitOutcome::TimedOut);

    store.renewals("a", Renewals::Lost);
    let waiting = signal.clone();
    let waiter = thread::spawn(move || waiting.wait(LIMIT));
    store.next_renewal("a");
    assert_eq!(waiter.join().unwrap(), WaitOutcome::Lost);
    called.recv_timeout(LIMIT).unwrap();
    assert!(signal.is_lost() && !guard.is_held());
    let (sender, called_late) = mpsc::channel();
    signal.on_lost(move || sender.send(()).unwrap());
    called_late.try_recv().unwrap();

    let token = guard.token();
    drop(guard);
    events.expect(Event::Lost(token));
    assert!(events.is_empty());
    drop(keeper.lock("a").unwrap());
}

#[test]
fn next_waiter_asks_the_store_when_a_fixed_lease_has_ended() {
    let (store, keeper) = scripted();
    let guard = keeper.acquire("a", &fixed(2 * SECOND)).unwrap().unwrap();
    let (sender, called) = mpsc::channel();
    guard
        .lost_signal()
        .on_lost(move || sender.send(()).unwrap());
    let waiter = thread::spawn(move || keeper.try_lock_for("a", 100 * SECOND));
    store.clock.advance(Duration::from_millis(1799));
    assert!(guard.is_held());
    store.clock.advance(Duration::from_millis(1));
    assert!(!guard.is_held());
    called.recv_timeout(LIMIT).unwrap();
    // The scripted store still holds the name, so it answers that the name is busy.
    assert!(waiter.join().unwrap().unwrap().is_none());
    assert_eq!(store.count("a", "renew"), 0);
    assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
}

/// A clock that stands still for the thread that watches deadlines: the guard notices the loss.
#[derive(Debug)]
struct UnwatchedClock {
    inner: ManualClock,
    began: HostInstant,
}

impl Clock for UnwatchedClock {
    fn now(&self) -> HostInstant {
        if thread::current().name() == Some("lockkeeper-watch") {
            return self.began;
        }
        self.inner.now()
    }
}

#[test]
fn callback_of_a_loss_may_lock_the_name() {
    let store = ScriptedStore::new();
    let clock = Arc::new(UnwatchedClock {
        inner: store.clock.clone(),
        began: store.clock.now(),
    });
    let keeper = store.builder().clock(clock).build().unwrap();
    let guard = keeper.acquire("a", &fixed(2 * SECOND)).unwrap().unwrap();
    let (sender, called) = mpsc::channel();
    guard.lost_signal().on_lost(move || {
        let granted = keeper.try_lock("a").map(|guard| guard.is_some());
        let _ = sender.send(granted);
    });
    store.clock.advance(2 * SECOND);
    thread::scope(|scope| {
        let dropped = scope.spawn(|| drop(guard));
        // Time for a callback that waits for itself to give up.
        eventually("the guard is dropped", || {
            store.clock.advance(Duration::from_millis(1));
            dropped.is_finished()
        });
    });
    let granted = called.recv_timeout(LIMIT).unwrap();
    assert!(granted.unwrap(), "the callback waited for itself");
}

#[test]
fn panic_in_the_drop_of_a_callback_does_no_harm() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("as the test wants");
        }
    }
    let (store, keeper) = scripted();
    let guard = keeper.lock("a").unwrap();
    let bomb = Bomb;
    guard.lost_signal().on_lost(move || drop(bomb));
    assert_eq!(guard.release().unwrap(), Released::Done);

    let guard = keeper.try_lock("a").unwrap().expect("it is free");
    store.clock.advance(60 * SECOND);
    let bomb = Bomb;
    guard.lost_signal().on_lost(move || drop(bomb));
    assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
}

/// The payload of a panic. Its drop panics with another one.
struct Endless;

impl Drop for Endless {
    fn drop(&mut self) {
        // Unlike `panic!`, this prints nothing.
        resume_unwind(Box::new(Endless));
    }
}

/// There are four threads at most.
#[test]
fn panics_whose_payload_panics_end_no_thread_of_the_keeper() {
    let (store, keeper) = scripted();
    let ends = |name: &str| {
        store.renewals(name, Renewals::Lost);
        store.next_renewal(name);
    };
    let guards = ["a", "b", "c", "d", "e"].map(|name| keeper.lock(name).unwrap());
    for (guard, behind) in guards[..4].iter().zip(1..) {
        let panics = || resume_unwind(Box::new(Endless));
        guard.lost_signal().on_lost(panics);
        ends(guard.name().as_str());
        eventually("it is lost", || !guard.is_held());
        // Else the clock would go on before a reply has moved their deadlines.
        eventually("the others are renewed", || {
            let mut others = guards[behind..].iter();
            others.all(|it| it.remaining() == 11 * SECOND)
        });
    }
    let (sender, called) = mpsc::channel();
    let last = guards[4].lost_signal();
    last.on_lost(move || sender.send(()).unwrap());
    ends("e");
    called.recv_timeout(LIMIT).unwrap();
}

#[test]
fn with_lock_returns_the_value_and_whether_the_lock_was_held() {
    let (store, keeper) = scripted();
    let done = keeper.run_locked("a", |guard| guard.token().get()).unwrap();
    assert_eq!(done.value, 1 << 7);
    assert_eq!(done.held().unwrap(), 1 << 7);
    let done = keeper.run_locked("a", |_| store.clock.advance(60 * SECOND));
    let done = done.unwrap();
    assert_eq!(done.released.as_ref().unwrap(), &Released::AlreadyLost);
    assert_eq!(done.held().unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn only_a_held_lease_has_a_commit_proof() {
    let (store, keeper) = scripted();
    let guard = keeper.lock("a").unwrap();
    let proof = guard.commit_proof().unwrap();
    assert_eq!(proof.sql(), format!("a {}", guard.token().get() >> 7));
    assert_eq!((proof.statement(), proof.params().len()), ("? ?", 2));
    assert_eq!(proof.dialect(), "scripted");
    assert_eq!(proof.location(), keeper.location());
    proof.check(1).unwrap();
    for (held, text) in [(0, "does not hold"), (-1, "another server than")] {
        let error = proof.check(held).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }

    let unproven = keeper.lock("unproven").unwrap();
    assert_fails(unproven.commit_proof(), ErrorKind::Unsupported);

    // It waits for a renewal that has the lease.
    store.renewals("a", Renewals::Hang);
    store.next_renewal("a");
    thread::scope(|scope| {
        let proof = scope.spawn(|| guard.commit_proof().is_ok());
        store.renewals("a", Renewals::Work);
        assert!(proof.join().unwrap());
    });

    store.clock.advance(20 * SECOND);
    assert_fails(proof.check(1), ErrorKind::Lost);
    assert_fails(guard.commit_proof(), ErrorKind::Lost);
}
