//! The order in which waiters of several modes are served.

use std::collections::BTreeSet;
use std::sync::mpsc;

use super::*;

pub(crate) fn readers_and_writers_are_served_first_in_first_out<S: TestStore>(rig: &Rig<S>) {
    let reader = rig.grant(Shared);
    let (sender, order) = mpsc::channel();
    let queue = |asked: Mode, number: u64| {
        let (keeper, sender) = (rig.keeper(), sender.clone());
        let thread = thread::spawn(move || {
            let guard = keeper.acquire("seat", &mode(asked)).unwrap().unwrap();
            sender.send(number).unwrap();
            drop(guard);
        });
        until("the waiter is queued", || rig.waiting() > number);
        // A reader that comes now could be granted beside the first one, but waits behind the writer.
        rig.assert_busy(Shared);
        thread
    };
    let modes = [Exclusive, Shared, Exclusive, Exclusive, Shared];
    let threads: Vec<_> = (0..)
        .zip(modes)
        .map(|(number, mode)| queue(mode, number))
        .collect();
    rig.release(reader);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    rig.store.assert_empty();
}

pub(crate) fn readers_behind_a_writer_get_in_together<S: TestStore>(rig: &Rig<S>) {
    let writer = rig.grant(Exclusive);
    let mut readers: Vec<_> = (0..5).map(|_| rig.queue(mode(Shared))).collect();
    let last = rig.queue(mode(Exclusive));
    readers.push(rig.queue(mode(Shared)));
    rig.release(writer);
    // Each reader of the first five holds its lease while the others get theirs.
    let sixth = readers.pop().unwrap();
    let readers: Vec<_> = readers
        .into_iter()
        .map(|it| it.join().unwrap().unwrap())
        .collect();
    let tokens: BTreeSet<_> = readers.iter().map(LockGuard::token).collect();
    assert_eq!((tokens.len(), rig.held().len()), (5, 5));
    assert_eq!(rig.waiting(), 2, "the writer and the reader behind it");
    readers.into_iter().for_each(drop);
    let last = last.join().unwrap().unwrap();
    assert!(tokens.iter().all(|token| *token < last.token()));
    rig.assert_busy(Shared);
    drop(last);
    drop(sixth.join().unwrap().unwrap());
    rig.store.assert_empty();
}

pub(crate) fn reader_gets_in_when_the_writer_before_it_gives_up<S: TestStore>(rig: &Rig<S>) {
    let first = rig.grant(Shared);
    let cancel = CancelToken::new();
    let writer = rig.queue(mode(Exclusive).cancel(&cancel));
    let reader = rig.queue(mode(Shared));
    cancel.cancel();
    assert_eq!(
        writer.join().unwrap().unwrap_err().kind(),
        ErrorKind::Cancelled
    );
    let reader = reader.join().unwrap().unwrap();
    assert_eq!(rig.held().len(), 2);
    assert_eq!(rig.release(first), Released::Done);
    drop(reader);
    rig.store.assert_empty();
}

pub(crate) fn writer_gets_in_when_the_last_of_several_leases_has_expired<S: TestStore>(
    rig: &Rig<S>,
) {
    let _first = rig.grant(Shared);
    rig.clock.advance(TTL / 2);
    let mut second = rig.grant(Shared);
    let writer = rig.queue(mode(Exclusive));
    rig.clock.advance(TTL / 2);
    until("the first lease has expired", || rig.held().len() == 1);
    assert_eq!(rig.renew(&mut second), Renewal::Renewed);
    assert_eq!(rig.waiting(), 1);
    rig.clock.advance(TTL);
    let writer = writer.join().unwrap().unwrap();
    assert_eq!(rig.renew(&mut second), Renewal::Lost);
    drop(writer);
    rig.store.assert_empty();
}

pub(crate) fn writer_waits_in_the_store_behind_its_own_shared_lease<S: TestStore>(rig: &Rig<S>) {
    let own = rig.grant(Shared);
    // A second one, as the engine takes it when the bounds of hand-over are reached.
    let fresh = rig.grant(Shared);
    assert_eq!(rig.release(own), Released::Done);
    let writer = rig.queue(mode(Exclusive));
    assert_eq!(rig.release(fresh), Released::Done);
    drop(writer.join().unwrap().unwrap());
    rig.store.assert_empty();
}

pub(crate) fn each_released_permit_goes_to_one_waiter<S: TestStore>(rig: &Rig<S>) {
    let [first, second] = [(); 2].map(|()| rig.grant(permit(2)));
    let waiters = [(); 3].map(|()| rig.queue(mode(permit(2))));
    let slots = || -> Vec<_> { rig.held().iter().map(|held| held.slot.unwrap()).collect() };
    assert_eq!(slots(), [0, 1]);
    assert_eq!(rig.release(second), Released::Done);
    until("a waiter has the permit", || rig.held().len() == 2);
    assert_eq!((slots(), rig.waiting()), (vec![0, 1], 2));
    assert_eq!(rig.release(first), Released::Done);
    until("a waiter has the permit", || rig.held().len() == 2);
    assert_eq!(rig.waiting(), 1);
    // Those that got in release theirs, and the last one gets in.
    for waiter in waiters {
        drop(waiter.join().unwrap().unwrap());
    }
    rig.store.assert_empty();
}
