//! Votes of members that are slow, hang, panic or are ahead of the caller.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    AcquireRequest, CancelToken, Clock, ErasedLease, ErrorKind, LockName, Operation,
    ReleaseDispatch, Released, RenewRequest, Renewal, SystemClock, epoch_at,
};

use crate::stores::{ReadClock, StoppedClock, Stores, attempt, raise, until_answered};
use crate::watched::{Watched, open, watched, watched_for};
use crate::{HOUR, NEVER, TTL, WAIT, name};

#[test]
fn free_name_is_asked_of_all_members_at_the_same_time() {
    let (stores, all) = (Stores::new(), Barrier::new(3));
    let quorum = watched(&stores, move |_| {
        // No member grants anything before all three have been asked.
        all.wait();
    });
    let granted = attempt(&*quorum);
    assert!(granted.expect("a majority answers").is_some());
}

#[test]
fn members_are_asked_for_little_longer_than_the_caller_waits() {
    let (sender, left) = mpsc::channel();
    let (stores, clock) = (Stores::new(), Arc::new(StoppedClock::new()));
    let quorum = watched_for(&stores, clock.clone(), false, move |batch| {
        // What a late vote has granted is given back with a deadline of its own.
        let attempts = batch
            .iter()
            .filter(|it| matches!(it, Operation::Acquire(_)));
        for operation in attempts {
            // The vote may be over by now.
            let _ = sender.send(operation.deadline());
        }
    });
    let name = name();
    let request = AcquireRequest::attempt(&name, TTL, &*clock).waiting_until(clock.now());
    let granted = quorum.acquire(&request);
    assert!(granted.expect("a majority answers").is_some());
    // An attempt has 1 s and more.
    let last = left.try_iter().max().expect("members are asked");
    let most = last.saturating_since(clock.now());
    assert!(most <= Duration::from_millis(100), "{most:?}");
}

/// A member at which the caller waits may hang at the end of the wait. [`Watched`] checks the end of each request.
#[test]
fn wait_at_a_member_ends_with_that_of_the_caller() {
    let stores = Stores::new();
    let quorum = watched(&stores, |_| {});
    let (name, clock) = (name(), SystemClock);
    let granted = attempt(&*quorum);
    assert!(granted.expect("a majority answers").is_some());
    let waited = until_answered(|| {
        let request = AcquireRequest::attempt(&name, TTL, &clock);
        quorum.acquire(&request.waiting_until(clock.now() + Duration::from_millis(50)))
    });
    assert!(waited.is_none());
}

#[test]
fn member_is_asked_again_after_its_store_panicked() {
    let stores = Stores::new();
    let panics = AtomicUsize::new(3);
    let quorum = watched(&stores, move |_| {
        let left = panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        });
        assert!(left.is_err(), "the store panics");
    });
    let failed = attempt(&*quorum).expect_err("no member answers");
    assert_eq!(failed.kind(), ErrorKind::Unavailable);
    let granted = attempt(&*quorum);
    assert!(granted.expect("a majority answers").is_some());
}

/// Cancels a wait while the members hang, and checks that this ends the wait. By the caller's clock, a vote of 1 s and
/// more ends only after the members have hung for [`WAIT`]. The 50 ms in which a cancelled caller releases its leases
/// are over soon.
fn cancel_while_members_hang(is_contended: bool) {
    let stores = Stores::new();
    let (resume, resumed) = mpsc::channel::<()>();
    let (sender, asked) = mpsc::channel();
    let (resumed, hangs) = (Mutex::new(resumed), Arc::new(AtomicBool::new(false)));
    let (is_hanging, has_resumed) = (Arc::clone(&hangs), Arc::new(AtomicBool::new(false)));
    let resumes = Arc::clone(&has_resumed);
    let quorum = watched(&stores, move |_| {
        if is_hanging.load(Ordering::Relaxed) {
            // The wait may be over by now.
            let _ = sender.send(());
            let resumed = resumed.lock().expect("no member panics");
            let _ = resumed.recv_timeout(WAIT);
            resumes.store(true, Ordering::Relaxed);
        }
    });
    let (name, cancel) = (name(), CancelToken::new());
    let clock = ReadClock::new();
    if is_contended {
        // The process has met another holder, so its callers ask the first member alone.
        let held = stores.hold_at(0, None);
        let attempt = quorum.acquire(&AcquireRequest::attempt(&name, TTL, &clock));
        assert!(attempt.expect("a majority answers").is_none());
        stores.release_at(0, held);
    }
    hangs.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let request = AcquireRequest::attempt(&name, TTL, &clock).waiting_until(NEVER);
            quorum.acquire(&request.cancelled_by(Some(&cancel)))
        });
        asked.recv().expect("members are asked");
        cancel.cancel();
        let granted = waiting.join().expect("it does not panic");
        assert!(granted.expect("it is no failure").is_none());
        assert!(!has_resumed.load(Ordering::Relaxed), "the members hang");
    });
    drop(resume);
    // What the members grant now is given back.
    (0..3).for_each(|member| stores.until_free(member));
}

/// The member that has a holder is cut off while the caller waits at it.
#[test]
fn failure_at_the_end_of_a_wait_is_not_busy() {
    let stores = Stores::new();
    let _held = stores.hold_at(0, None);
    let clock = Arc::new(StoppedClock::new());
    let quorum = open(&stores, clock.clone(), |store| Watched {
        store: Arc::clone(store),
        before: Arc::new(|_| {}),
        always: false,
        refuses: false,
        cut_off: Some(Arc::clone(&clock)),
    });
    let (name, until) = (name(), clock.now() + WAIT);
    let request = AcquireRequest::attempt(&name, TTL, &*clock).waiting_until(until);
    let failed = quorum.acquire(&request).expect_err("the member fails");
    assert_eq!(failed.kind(), ErrorKind::Unavailable, "{failed:?}");
}

#[test]
fn refusal_of_a_majority_is_no_outage() {
    let stores = Stores::new();
    let quorum = open(&stores, Arc::new(SystemClock), |store| Watched {
        store: Arc::clone(store),
        before: Arc::new(|_| {}),
        always: false,
        refuses: !Arc::ptr_eq(store, &stores.members[0]),
        cut_off: None,
    });
    // The second attempt begins at the first member: the others have failed.
    for _ in 0..2 {
        let refused = attempt(&*quorum).expect_err("two members refuse it");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused:?}");
        assert!(refused.message().ends_with("this user may not lock"));
    }
}

#[test]
fn cancel_ends_a_vote_of_members_that_hang() {
    cancel_while_members_hang(false);
}

#[test]
fn cancel_ends_an_attempt_at_a_first_member_that_hangs() {
    cancel_while_members_hang(true);
}

#[test]
fn proposer_with_a_late_clock_outbids_members_that_grant_all_the_time() {
    let stores = Stores::new();
    let quorum = open(&stores, Arc::new(SystemClock), |store| {
        let other = Arc::clone(store);
        // Before each proposal arrives, the member grants another name. The clock of that grant is an hour ahead.
        let before = move |_: &[Operation<'_, ErasedLease>]| {
            thread::sleep(Duration::from_millis(5));
            // The last proposal may have been larger.
            let _ = raise(&*other, HOUR);
        };
        Watched {
            store: Arc::clone(store),
            before: Arc::new(before),
            always: false,
            refuses: false,
            cut_off: None,
        }
    });
    for name in ["a", "b"] {
        let (name, clock) = (LockName::new(name).expect("the name is valid"), SystemClock);
        let granted = quorum.acquire(&AcquireRequest::attempt(&name, TTL, &clock));
        let grant = granted.expect("a majority answers").expect("it is free");
        let most = epoch_at(SystemTime::now() + HOUR + Duration::from_secs(10));
        assert!(grant.epoch < most, "the epochs follow the clocks");
    }
}

#[test]
fn operator_who_waits_for_the_members_stops_no_renewal() {
    let (stores, clock) = (Stores::new(), Arc::new(StoppedClock::new()));
    let (resume, resumed) = mpsc::channel::<()>();
    let (sender, asked) = mpsc::channel();
    let (resumed, has_resumed) = (Mutex::new(resumed), Arc::new(AtomicBool::new(false)));
    let resumes = Arc::clone(&has_resumed);
    let quorum = watched_for(&stores, clock, false, move |batch| {
        if batch.is_empty() {
            sender.send(()).expect("the case waits for it");
            let resumed = resumed.lock().expect("no member panics");
            let _ = resumed.recv_timeout(WAIT);
            resumes.store(true, Ordering::Relaxed);
        }
    });
    let granted = attempt(&*quorum);
    let mut lease = granted.expect("a majority answers").expect("free").lease;
    thread::scope(|scope| {
        let admin = quorum.admin().expect("it lists its locks");
        let listing = scope.spawn(|| admin.held(None, NEVER));
        (0..3).for_each(|_| asked.recv().expect("members are asked"));
        let renewed = quorum.renew(&mut lease, TTL, NEVER);
        assert_eq!(renewed.expect("a majority answers"), Renewal::Renewed);
        assert!(!has_resumed.load(Ordering::Relaxed), "the members hang");
        drop(resume);
        let held = listing.join().expect("it does not panic");
        assert_eq!(held.expect("a majority answers").len(), 1);
    });
}

/// Few threads wait for the releases of all dropped guards, and a slow member must not keep them.
#[test]
fn drop_waits_for_no_more_than_a_majority() {
    let (stores, clock) = (Stores::new(), Arc::new(StoppedClock::new()));
    let (resume, resumed) = mpsc::channel::<()>();
    let (resumed, has_resumed) = (Mutex::new(Some(resumed)), Arc::new(AtomicBool::new(false)));
    let resumes = Arc::clone(&has_resumed);
    let quorum = watched_for(&stores, clock, true, move |batch| {
        let is_release = |it: &Operation<'_, ErasedLease>| matches!(it, Operation::Release(_));
        let is_first = batch.iter().any(is_release);
        let first = is_first.then(|| resumed.lock().expect("no member panics").take());
        if let Some(resumed) = first.flatten() {
            let _ = resumed.recv_timeout(WAIT);
            resumes.store(true, Ordering::Relaxed);
        }
    });
    let granted = attempt(&*quorum);
    let mut lease = granted.expect("a majority answers").expect("free").lease;
    let sent = quorum.send_release(&mut lease);
    assert!(matches!(sent, ReleaseDispatch::NotSent), "{sent:?}");
    let released = quorum.release(&mut lease, NEVER);
    assert_eq!(released.expect("a majority answers"), Released::Done);
    assert!(!has_resumed.load(Ordering::Relaxed), "a member hangs");
    drop(resume);
    (0..3).for_each(|member| stores.until_free(member));
}

/// The members carry out in one request what came while the last one was under way.
#[test]
fn renewals_are_asked_for_together() {
    const LEASES: usize = 100;
    let (stores, clock) = (Stores::new(), Arc::new(StoppedClock::new()));
    let asked = Arc::new(AtomicUsize::new(0));
    let requests = Arc::clone(&asked);
    let quorum = watched_for(&stores, clock.clone(), true, move |batch| {
        let renewals = batch
            .iter()
            .filter(|it| matches!(it, Operation::Renew(_)))
            .count();
        if renewals > 0 {
            requests.fetch_add(1, Ordering::SeqCst);
        }
    });
    let mut leases: Vec<_> = (0..LEASES)
        .map(|number| {
            let name = LockName::new(format!("held-{number}")).expect("the name is valid");
            let granted = quorum.acquire(&AcquireRequest::attempt(&name, TTL, &*clock));
            let grant = granted.expect("a majority answers").expect("it is free");
            grant.lease
        })
        .collect();
    assert!(quorum.capabilities().renewals() >= LEASES);
    let renew = |lease| RenewRequest {
        lease,
        ttl: TTL,
        deadline: NEVER,
        answer: None,
    };
    let batch = leases
        .iter_mut()
        .map(|lease| Operation::Renew(renew(lease)));
    let mut batch: Vec<_> = batch.collect();
    quorum.batch(&mut batch);
    for operation in batch {
        let Operation::Renew(it) = operation else {
            continue;
        };
        assert!(matches!(it.answer, Some(Ok(Renewal::Renewed))));
    }
    // One at a time, each member would have a request for each lease.
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked < LEASES, "{asked} requests");
}
