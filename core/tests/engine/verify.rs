//! Verification of leases: at once where there is a reason to doubt them, and no more often than that.

use std::thread;
use std::time::Duration;

use lockkeeper_core::Clock;

use crate::answers::{Grants, Renewals};
use crate::events::{Event, observed};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn all_leases_are_renewed_at_once_and_those_that_the_store_has_not_are_lost() {
    let (store, keeper) = scripted();
    let [stays, lost] = lock_each(&keeper, ["stays", "lost"]);
    store.clock.advance(SECOND);
    store.renewals("lost", Renewals::Lost);
    assert!(store.verify());
    wait_until_lost(&lost);
    wait_until_renewed(&stays);
    drop((keeper, stays, lost));
    assert!(!store.verify(), "the keeper has ended");
}

#[test]
fn fixed_lease_is_verified_and_keeps_its_end() {
    let store = ScriptedStore::new();
    let (keeper, events) = observed(store.builder());
    let guard = keeper.acquire("a", &fixed(12 * SECOND)).unwrap().unwrap();
    store.clock.advance(4 * SECOND);
    store.verify();
    store.wait_for("a", "renew", 1);
    store.set(|state| assert_eq!(state.renewal_ttl, 8 * SECOND));
    store.clock.advance(SECOND);
    assert_eq!(guard.remaining(), 6 * SECOND);
    give_time();
    assert_eq!(store.count("a", "renew"), 1);

    // It is repeated without an answer: the lease may have ended.
    store.renewals("a", Renewals::Fail);
    store.verify();
    events.expect(Event::RenewalUnknown);
    store.renewals("a", Renewals::Lost);
    store.clock.advance(50 * MILLISECOND);
    wait_until_lost(&guard);

    // The holder's own renewal is not. The first keeper may have another round to come.
    let keeper = store.keeper();
    let guard = keeper.acquire("b", &fixed(12 * SECOND)).unwrap().unwrap();
    store.renewals("b", Renewals::Fail);
    assert!(guard.renew().is_err());
    store.clock.advance(2 * SECOND);
    give_time();
    assert_eq!(store.count("b", "renew"), 1);
}

#[test]
fn answer_to_a_renewal_from_before_the_doubt_proves_nothing() {
    let (store, keeper) = scripted();
    let [guard, _witness] = lock_each(&keeper, ["a", "witness"]);
    store.renewals("a", Renewals::Hang);
    store.next_renewal("a");
    store.wait_for("witness", "renew", 1);
    store.verify();
    store.wait_for("witness", "renew", 2);
    assert_eq!(store.count("a", "renew"), 1);
    store.renewals("a", Renewals::Work);
    store.wait_for("a", "renew", 2);

    // Also where the holder asked.
    store.renewals("a", Renewals::Hang);
    thread::scope(|scope| {
        let by_hand = scope.spawn(|| guard.renew());
        store.wait_for("a", "renew", 3);
        store.clock.advance(SECOND);
        store.verify();
        store.wait_for("witness", "renew", 3);
        store.renewals("a", Renewals::Work);
        by_hand.join().unwrap().unwrap();
    });
    store.wait_for("a", "renew", 4);
}

#[test]
fn grant_that_was_requested_before_the_doubt_is_verified() {
    let (store, keeper) = scripted();
    let _witness = keeper.lock("witness").unwrap();
    store.grants(Grants::Silent);
    let asking = keeper.clone();
    let head = thread::spawn(move || asking.lock("a").unwrap());
    store.wait_for("a", "acquire", 1);
    store.verify();
    store.wait_for("witness", "renew", 1);
    store.grants(Grants::Work);
    let _guard = head.join().unwrap();
    store.wait_for("a", "renew", 1);
    give_time();
    assert_eq!(store.count("a", "renew"), 1);
}

#[test]
fn reasons_that_come_close_together_cost_one_round() {
    let (store, keeper) = scripted();
    let _guard = keeper.lock("a").unwrap();
    store.verify();
    store.wait_for("a", "renew", 1);
    let began = store.clock.now();
    for round in 2..=12 {
        for _ in 0..100 {
            store.verify();
        }
        eventually("another round begins", || {
            store.clock.advance(MILLISECOND);
            give_time();
            store.count("a", "renew") >= round
        });
        let rounds = u32::try_from(store.count("a", "renew")).unwrap();
        let took = store.clock.now().saturating_since(began);
        assert!(
            took >= 50 * MILLISECOND * (rounds - 1),
            "{rounds}: {took:?}"
        );
    }
    let took = store.clock.now().saturating_since(began);
    assert!(took < 5 * SECOND, "the rounds slow down: {took:?}");
    // After a pause there is no delay.
    store.clock.advance(SECOND);
    store.verify();
    store.wait_for("a", "renew", 13);
}

#[test]
fn one_lease_asks_in_an_outage_and_all_are_verified_after_it() {
    let store = ScriptedStore::new();
    let (keeper, events) = observed(store.builder());
    let names = ["a", "b", "c"];
    let guards = lock_each(&keeper, names);
    let renewals = || {
        names
            .map(|name| store.count(name, "renew"))
            .iter()
            .sum::<usize>()
    };
    for name in names {
        store.renewals(name, Renewals::Unreachable);
    }
    store.clock.advance(4 * SECOND);
    for _ in names {
        events.expect(Event::RenewalUnknown);
    }
    for probe in 1..=5 {
        store.clock.advance(50 * MILLISECOND);
        events.expect(Event::RenewalUnknown);
        give_time();
        assert_eq!(renewals(), 3 + probe, "one lease asks");
    }
    for name in names {
        store.renewals(name, Renewals::Lost);
    }
    // By then the lease that asks has its answer, and the others would not have asked yet.
    store.clock.advance(50 * MILLISECOND);
    for guard in &guards {
        wait_until_lost(guard);
    }
}

#[test]
fn acquisition_that_finds_the_store_gone_has_all_leases_verified_after_it() {
    let (store, keeper) = scripted();
    let guard = keeper.lock("a").unwrap();
    store.grants(Grants::Unreachable(Duration::ZERO));
    assert!(keeper.try_lock("b").is_err());
    store.renewals("a", Renewals::Lost);
    give_time();
    assert_eq!(store.count("a", "renew"), 0);
    store.grants(Grants::Work);
    drop(keeper.try_lock("c").unwrap().unwrap());
    wait_until_lost(&guard);
}

#[test]
fn lease_that_always_fails_has_the_others_verified_less_and_less_often() {
    let store = ScriptedStore::new();
    let (keeper, events) = observed(store.builder());
    // Some of them are renewed before the bad one, and some after it.
    let names = ["bad", "1", "2", "3", "4", "5", "6", "7"];
    let _guards = lock_each(&keeper, names);
    let renewals = || {
        let good = names[1..].iter().map(|name| store.count(name, "renew"));
        good.max().unwrap_or_default()
    };
    store.renewals("bad", Renewals::Unreachable);
    store.clock.advance(4 * SECOND);
    events.expect(Event::RenewalUnknown);
    give_time();
    // The clock stands still: one that was due, one in the round that follows, and one more where the round began
    // during the first.
    assert!(renewals() <= 3, "{}", renewals());
    let (began, probes) = (store.clock.now(), || store.count("bad", "renew"));
    // Its lease ends some seconds later. On a busy machine, it asks less often until then.
    for _ in 0..300 {
        store.clock.advance(10 * MILLISECOND);
        give_time();
    }
    let took = store.clock.now().saturating_since(began);
    let seconds = usize::try_from(took.as_secs()).unwrap();
    // Rounds begin at once, after 50, 150, 350, 750 and 1,550 ms, and then each second. A lease is renewed once in
    // a round, and once more where the round began during its last renewal.
    let rounds = 6 + seconds;
    assert!(renewals() <= 1 + 2 * rounds, "{} in {took:?}", renewals());
    // Besides the rounds, it asks after 25 ms at the earliest.
    let most = usize::try_from(took.as_millis() / 25).unwrap() + 2 * rounds + 1;
    assert!(probes() <= most, "{} in {took:?}", probes());
}

#[test]
fn doubt_before_the_first_lock_does_no_harm() {
    let (store, keeper) = scripted();
    assert!(store.verify());
    let guard = keeper.lock("a").unwrap();
    store.next_renewal("a");
    assert!(guard.is_held());
}
