//! Rule 19: a lock goes from one process to another by a ticket, and the last one that resumes it has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use lockkeeper_core::{
    Capability, Error, ErrorKind, LeasePolicy, LockGuard, LockKeeper, Mode, Released, Ticket,
    WaitOutcome,
};

use crate::modes::take_shared;
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, Skip, build, is_busy, take};

fn needs_tickets(rig: &Rig<'_>) -> Outcome {
    let tickets = Capability::Tickets;
    match rig.provider().capabilities().has(tickets) {
        true => Ok(()),
        false => Err(Skip(format!("the store does not declare {tickets}"))),
    }
}

/// Returns a ticket of a name, as another process reads it.
fn ticket(keeper: &LockKeeper, name: &str) -> Ticket {
    let guard = take(keeper, name);
    let token = guard.token();
    let written = guard.detach().expect("the store replies");
    let read: Ticket = written.to_string().parse().expect("it is read back");
    assert_eq!(read, written);
    assert_eq!((read.name().as_str(), read.token()), (name, token));
    assert_eq!(read.location(), keeper.location());
    read
}

fn resume(keeper: &LockKeeper, ticket: &Ticket) -> LockGuard {
    keeper.resume(ticket).expect("the lock goes on")
}

fn lost(result: Result<LockGuard, Error>) {
    match result {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}"),
        Ok(guard) => panic!("{guard:?} of a lock that has ended"),
    }
}

pub(super) fn store_without_tickets_says_so(rig: &Rig<'_>) -> Outcome {
    let keeper = rig.keeper();
    if needs_tickets(rig).is_err() {
        let error = take(&keeper, "a").detach().expect_err("it has none");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    } else if keeper.capabilities().has(Capability::Shared) {
        let error = take_shared(&keeper, "a").detach();
        let error = error.expect_err("a shared lock has no ticket");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    }
    drop(take(&rig.keeper(), "a"));
    rig.nothing_left();
    Ok(())
}

/// The keeper that detached the lock is gone, and so is its provider.
pub(super) fn ticket_passes_a_lock_on(rig: &Rig<'_>) -> Outcome {
    needs_tickets(rig)?;
    let (first, second, rival) = (rig.keeper(), rig.keeper(), rig.keeper());
    let before = SystemTime::now();
    let ticket = ticket(&first, "a");
    assert!(ticket.good_until() >= before + ticket.ttl() - Duration::from_millis(1));
    assert!(is_busy(&first, "a") && is_busy(&rival, "a"));
    first.close();
    drop(first);
    assert!(is_busy(&rival, "a"), "the end of the keeper ended the lock");
    let guard = resume(&second, &ticket);
    assert!(guard.is_held() && guard.token() > ticket.token());
    guard.renew().expect("it is held");
    assert!(is_busy(&second, "a") && is_busy(&rival, "a"));
    let token = guard.token();
    assert_eq!(guard.release().expect("the store replies"), Released::Done);
    assert!(take(&rival, "a").token() > token);
    lost(second.resume(&ticket));
    rig.nothing_left();
    Ok(())
}

pub(super) fn last_one_that_resumes_has_the_lock(rig: &Rig<'_>) -> Outcome {
    needs_tickets(rig)?;
    let keepers = [rig.keeper(), rig.keeper(), rig.keeper()];
    let ticket = ticket(&keepers[0], "a");
    let [released, dropped] = [1, 2].map(|at| resume(&keepers[at], &ticket));
    assert!(dropped.token() > released.token());
    assert_eq!(released.renew().unwrap_err().kind(), ErrorKind::Lost);
    assert!(!released.is_held());
    let answer = released.release().expect("the store replies");
    assert_eq!(answer, Released::AlreadyLost);
    dropped
        .renew()
        .expect("the release of the former holder ended it");

    // On the keeper that has it, the former guard is lost at once.
    let last = resume(&keepers[2], &ticket);
    assert!(!dropped.is_held() && last.is_held());
    drop(dropped);
    rig.until("the drop has ended", || keepers[2].pending_releases() == 0);
    last.renew().expect("the drop of the former guard ended it");
    assert!(keepers.iter().all(|keeper| is_busy(keeper, "a")));

    // The holder passes it on, by a ticket of the same lock.
    let token = last.token();
    let again = last.detach().expect("the store replies");
    assert!(again.token() == token && token > ticket.token());
    drop(resume(&keepers[0], &ticket));
    drop(take(&keepers[1], "a"));
    lost(keepers[0].resume(&again));
    rig.nothing_left();
    Ok(())
}

/// A holder that is not renewed ends at its own deadline, and does not take the lock from the next one.
pub(super) fn former_holder_is_lost_at_its_own_deadline(rig: &Rig<'_>) -> Outcome {
    needs_tickets(rig)?;
    rig.with_renewed_ttl(400, |ttl, _| {
        let (provider, lease) = (rig.provider(), LeasePolicy::Fixed { ttl });
        let on_it = |lease| build(rig.builder_on(Arc::clone(&provider)).lease(lease));
        let first = on_it(lease);
        // Another keeper of the same provider, and one of another.
        for second in [on_it(rig.renewed(60_000)), rig.keeper()] {
            let ticket = ticket(&rig.keeper(), "a");
            let guard = resume(&first, &ticket);
            let last = resume(&second, &ticket);
            let outcome = guard.lost_signal().wait(rig.timeout());
            assert_eq!(outcome, WaitOutcome::Lost);
            // What the provider does at the end of a lease, it does for this one as well.
            drop(take(&rig.keeper_with(lease), "beside"));
            drop(guard);
            rig.until("the drop has ended", || first.pending_releases() == 0);
            last.renew().expect("the former holder's end ended it");
            assert!(last.is_held() && is_busy(&second, "a"));
        }
        rig.nothing_left();
        Ok(())
    })
}

/// A thread waits in the process of the former holder. What that holder leaves behind is not handed over to it.
pub(super) fn lock_of_a_ticket_is_not_handed_over(rig: &Rig<'_>) -> Outcome {
    needs_tickets(rig)?;
    let (former, waits) = rig.recorded_keeper();
    let ticket = ticket(&rig.keeper(), "a");
    let guard = resume(&former, &ticket);
    let (sender, granted) = channel();
    thread::scope(|scope| {
        let waiting = &former;
        scope.spawn(move || sender.send(take(waiting, "a")));
        waits.wait_for(Event::Contended, 1);
        let last = resume(&rig.keeper(), &ticket);
        drop(guard);
        last.renew().expect("the lock goes on");
        let token = last.token();
        drop(last);
        let next = granted.recv_timeout(rig.timeout()).expect("it is granted");
        assert!(next.token() > token, "it was granted beside the holder");
    });
    rig.nothing_left();
    Ok(())
}

/// A thread that waits for the name in the process that detaches it goes on to wait.
pub(super) fn waiter_gets_the_lock_when_it_is_released(rig: &Rig<'_>) -> Outcome {
    needs_tickets(rig)?;
    let (keeper, waits) = rig.recorded_keeper();
    let guard = take(&keeper, "a");
    let (sender, granted) = channel();
    thread::scope(|scope| {
        let waiting = &keeper;
        scope.spawn(move || sender.send(take(waiting, "a")));
        waits.wait_for(Event::Contended, 1);
        let ticket = guard.detach().expect("the store replies");
        let guard = resume(&rig.keeper(), &ticket);
        let token = guard.token();
        drop(guard);
        let next = granted.recv_timeout(rig.timeout()).expect("it is granted");
        assert!(next.token() > token, "it was granted beside the holder");
    });
    rig.nothing_left();
    Ok(())
}

pub(super) fn ticket_ends_with_its_lease(rig: &Rig<'_>) -> Outcome {
    needs_tickets(rig)?;
    rig.with_renewed_ttl(400, |ttl, _| {
        let short = rig.keeper_with(LeasePolicy::Renewed { ttl });
        let rival = rig.keeper();
        // Its renewals keep other leases of the keeper, and not this one.
        let beside = take(&short, "beside");
        let guard = take(&short, "a");
        let began = Instant::now();
        let ticket = guard.detach().expect("the store replies");
        let next = take(&rival, "a");
        let took = began.elapsed();
        assert!(took >= ttl, "freed after {took:?}, before its ttl");
        assert!(next.token() > ticket.token());
        lost(short.resume(&ticket));
        lost(rig.keeper().resume(&ticket));
        next.renew().expect("the late ticket ended it");
        drop(next);
        lost(short.resume(&ticket));
        beside.renew().expect("it is of another lock");
        drop(beside);
        rig.nothing_left();
        Ok(())
    })
}

/// What a lease keeps open ends with the lease, although another process has it.
pub(super) fn tickets_leave_no_connections(rig: &Rig<'_>) -> Outcome {
    const TICKETS: u32 = 20;
    needs_tickets(rig)?;
    // A ticket is detached before its ttl ends.
    rig.with_renewed_ttl(400, |ttl, _| {
        let provider = rig.provider();
        let open = || provider.usage().map_or(0, |usage| usage.connections);
        let short = rig.builder_on(Arc::clone(&provider));
        let keeper = build(short.lease(LeasePolicy::Renewed { ttl }));
        for at in 0..TICKETS {
            ticket(&keeper, &at.to_string());
        }
        rig.until("the connections are closed", || {
            ticket(&keeper, "beside");
            open() < TICKETS
        });
        Ok(())
    })
}

pub(super) fn lock_outlives_the_process_that_detached_it(rig: &Rig<'_>) -> Outcome {
    needs_tickets(rig)?;
    let keeper = rig.keeper();
    let mut process = rig.process(LeasePolicy::Renewed {
        ttl: Duration::from_secs(60),
    })?;
    let token = process.acquire("a");
    let ticket = process.detach();
    process.kill();
    assert!(is_busy(&keeper, "a"), "the end of the process ended it");
    let guard = resume(&keeper, &ticket);
    assert!(guard.token().get() > token);
    // A process that is killed after it has resumed the lock leaves it to the next one.
    let mut process = rig.process(rig.renewed(60_000))?;
    process.resume_ticket(&ticket);
    assert_eq!(guard.renew().unwrap_err().kind(), ErrorKind::Lost);
    drop(guard);
    process.kill();
    // It opens the store then, as a worker that starts does.
    let guard = resume(&rig.keeper(), &ticket);
    assert_eq!(guard.release().expect("the store replies"), Released::Done);
    rig.nothing_left();
    Ok(())
}

pub(super) fn foreign_or_changed_ticket_is_refused(rig: &Rig<'_>) -> Outcome {
    needs_tickets(rig)?;
    let keeper = rig.keeper();
    let ticket = ticket(&keeper, "a");
    let other = build(rig.builder_on(rig.provider_in("another namespace")));
    let error = other
        .resume(&ticket)
        .expect_err("it is of another namespace");
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
    let text = ticket.to_string();
    for at in [0, text.len() / 2, text.len() - 1] {
        let mut bytes = text.clone().into_bytes();
        bytes[at] ^= 1;
        let changed = String::from_utf8_lossy(&bytes).parse::<Ticket>();
        let error = changed.expect_err("a byte was changed");
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error:?}");
    }
    let guard = resume(&keeper, &ticket);
    assert_eq!(guard.mode(), Mode::Exclusive);
    drop(guard);
    rig.nothing_left();
    Ok(())
}

/// The resumption asks again, as an acquisition does.
pub(super) fn resumption_rides_an_outage_out(rig: &Rig<'_>) -> Outcome {
    needs_tickets(rig)?;
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    drop(take(&keeper, "warm"));
    let ticket = ticket(&rig.keeper(), "a");
    let fault = rig.cut_off()?;
    let before = tap.requests();
    thread::scope(|scope| {
        let resuming = scope.spawn(|| keeper.resume(&ticket));
        rig.until("it is asked again", || tap.requests() >= before + 2);
        drop(fault);
        let guard = resuming.join().expect("the thread does not panic");
        assert!(guard.expect("the lock goes on").is_held());
    });
    rig.nothing_left();
    Ok(())
}

/// The release of a dropped guard waits for other requests of its keeper, and the resumption may go with it.
pub(super) fn resumption_overtakes_no_drop(rig: &Rig<'_>) -> Outcome {
    const TICKETS: u32 = 20;
    needs_tickets(rig)?;
    let (keeper, is_over) = (rig.keeper(), AtomicBool::new(false));
    thread::scope(|scope| {
        let _end = Over(&is_over);
        for at in 0..6 {
            let (keeper, is_over) = (&keeper, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    drop(take(keeper, &format!("beside {at}")));
                }
            });
        }
        for at in 0..TICKETS {
            let ticket = ticket(&keeper, &at.to_string());
            drop(resume(&keeper, &ticket));
            lost(keeper.resume(&ticket));
        }
    });
    rig.nothing_left();
    Ok(())
}

/// Ends the threads of a case, also if it fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
