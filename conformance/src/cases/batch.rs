//! Group commit: what threads ask of a store at the same moment, and the verb that carries it out.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, Capability, Clock, ErasedLease, Error, ErrorKind, Grant,
    HostInstant, LockName, LockProvider, Mode, Operation, ReleaseRequest, Released, RenewRequest,
    Renewal, SystemClock,
};

use crate::rig::{Outcome, Rig, Skip, take};

const TTL: Duration = Duration::from_secs(60);

const THREADS: usize = 32;
const PAIRS: usize = 4;

type Erased<'a> = Operation<'a, ErasedLease>;

fn acquire<'a>(request: &'a AcquireRequest<'a>, deadline: HostInstant) -> Erased<'a> {
    Operation::Acquire(AttemptRequest {
        request,
        deadline,
        answer: None,
    })
}

fn renew(lease: &mut ErasedLease, deadline: HostInstant) -> Erased<'_> {
    Operation::Renew(RenewRequest {
        lease,
        ttl: TTL,
        deadline,
        answer: None,
    })
}

fn release(lease: &mut ErasedLease, deadline: HostInstant) -> Erased<'_> {
    Operation::Release(ReleaseRequest::new(lease, deadline))
}

fn acquired(operation: Erased<'_>) -> Result<Option<Grant<ErasedLease>>, Error> {
    match operation {
        Operation::Acquire(attempt) => attempt.answer.expect("there is an answer"),
        other => panic!("{other:?} was an attempt"),
    }
}

fn granted(operation: Erased<'_>) -> Grant<ErasedLease> {
    let grant = acquired(operation).expect("the store answers");
    grant.expect("it can be granted")
}

fn renewed(operation: Erased<'_>) -> Renewal {
    match operation {
        Operation::Renew(renewal) => {
            let answer = renewal.answer.expect("there is an answer");
            answer.expect("the store answers")
        }
        other => panic!("{other:?} was a renewal"),
    }
}

fn released(operation: Erased<'_>) -> Released {
    match operation {
        Operation::Release(release) => {
            let answer = release.answer.expect("there is an answer");
            answer.expect("the store answers")
        }
        other => panic!("{other:?} was a release"),
    }
}

/// Acquires a name without a keeper.
fn lease(provider: &dyn LockProvider, name: &LockName, mode: Mode) -> ErasedLease {
    let clock = SystemClock;
    let request = AcquireRequest::attempt(name, TTL, &clock).with_mode(mode);
    let grant = provider.acquire(&request).expect("the store answers");
    grant.expect("it can be granted").lease
}

/// Releases leases in one batch.
fn release_all(provider: &dyn LockProvider, leases: &mut [ErasedLease], deadline: HostInstant) {
    let releases = leases.iter_mut().map(|lease| release(lease, deadline));
    let mut batch: Vec<_> = releases.collect();
    provider.batch(&mut batch);
    for operation in batch {
        assert_eq!(released(operation), Released::Done);
    }
}

/// A store without batches of its own answers by its single verbs.
pub(super) fn batch_answers_each_operation(rig: &Rig<'_>) -> Outcome {
    let provider = rig.provider();
    let keeper = rig.keeper();
    let busy = take(&keeper, "busy");
    let clock = SystemClock;
    let [free, again, taken, gone] = ["free", "again", "busy", "gone"]
        .map(|name| LockName::new(name).expect("the name is valid"));
    let [mut again, mut gone] = [again, gone].map(|name| lease(&*provider, &name, Mode::Exclusive));
    let deadline = clock.now() + rig.timeout();
    let ended = provider.release(&mut gone, deadline);
    assert_eq!(ended.expect("the store answers"), Released::Done);

    let [free, taken] = [&free, &taken].map(|name| AcquireRequest::attempt(name, TTL, &clock));
    let mut batch = [
        acquire(&free, deadline),
        renew(&mut again, deadline),
        acquire(&taken, deadline),
        release(&mut gone, deadline),
    ];
    provider.batch(&mut batch);
    let [free, renewal, taken, gone] = batch;
    let free = granted(free).lease;
    assert_eq!(renewed(renewal), Renewal::Renewed);
    let taken = acquired(taken).expect("the store answers");
    assert!(taken.is_none(), "it is busy");
    assert_eq!(released(gone), Released::AlreadyLost);

    release_all(&*provider, &mut [free, again], deadline);
    drop(busy);
    rig.nothing_left();
    Ok(())
}

/// A late answer is of no use, and a request that is cut short may cost the connection.
pub(super) fn request_after_its_deadline_is_not_sent(rig: &Rig<'_>) -> Outcome {
    let (provider, capability) = (rig.provider(), Capability::CrossHost);
    if !provider.capabilities().has(capability) {
        return Err(Skip(format!("the store does not declare {capability}")));
    }
    let sent = || provider.usage().map(|usage| usage.commands);
    let name = LockName::new("a").expect("the name is valid");
    let mut held = lease(&*provider, &name, Mode::Exclusive);
    let (late, before) = (SystemClock.now(), sent());
    for answer in [
        provider.renew(&mut held, TTL, late).err(),
        provider.release(&mut held, late).err(),
    ] {
        let error = answer.expect("there is no time");
        assert!(error.is_retryable(), "{error:?}");
    }
    assert_eq!(sent(), before);
    let deadline = SystemClock.now() + rig.timeout();
    let released = provider.release(&mut held, deadline);
    assert_eq!(released.expect("the store answers"), Released::Done);
    Ok(())
}

/// A keeper asks for a permit or for a fresh shared lease while it renews and releases others of the name.
pub(super) fn batch_tells_the_leases_of_a_name_apart(rig: &Rig<'_>) -> Outcome {
    let modes = [Mode::Shared, Mode::Permit { limit: 3 }];
    for mode in modes {
        rig.needs_mode(mode)?;
    }
    let provider = rig.provider();
    let clock = SystemClock;
    let deadline = clock.now() + rig.timeout();
    let [name, free] = ["a", "b"].map(|name| LockName::new(name).expect("the name is valid"));
    for mode in modes {
        let [mut first, mut second, mut third] = [(); 3].map(|()| lease(&*provider, &name, mode));
        let ended = provider.release(&mut second, deadline);
        assert_eq!(ended.expect("the store answers"), Released::Done);
        let attempt = |name, mode| AcquireRequest::attempt(name, TTL, &clock).with_mode(mode);
        let joining = attempt(&name, mode);
        let mismatching = attempt(&name, Mode::Permit { limit: 2 });
        let reading = attempt(&free, Mode::Shared);
        let mut batch = [
            renew(&mut first, deadline),
            acquire(&joining, deadline),
            renew(&mut third, deadline),
            release(&mut second, deadline),
            acquire(&mismatching, deadline),
            acquire(&reading, deadline),
        ];
        provider.batch(&mut batch);
        let [renewal, joining, other_renewal, gone, mismatching, reading] = batch;
        assert_eq!(renewed(renewal), Renewal::Renewed);
        assert_eq!(renewed(other_renewal), Renewal::Renewed);
        assert_eq!(released(gone), Released::AlreadyLost);
        let joined = granted(joining);
        assert_eq!(joined.slot, u32::from(mode.is_permit()));
        let (mismatched, reading) = (acquired(mismatching), granted(reading));
        let mut leases = vec![first, third, joined.lease, reading.lease];
        match mismatched {
            Ok(Some(permit)) if mode == Mode::Shared => leases.push(permit.lease),
            Err(error) if mode.is_permit() => {
                assert_eq!(error.kind(), ErrorKind::LimitMismatch, "{error:?}");
            }
            other => panic!("{mode} leases are held, and a permit: {other:?}"),
        }
        release_all(&*provider, &mut leases, deadline);
        rig.nothing_left();
    }
    Ok(())
}

pub(super) fn threads_with_names_of_their_own_are_granted_them(rig: &Rig<'_>) -> Outcome {
    let (keeper, rival) = (rig.keeper(), rig.keeper());
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (keeper, rival, barrier) = (&keeper, &rival, &barrier);
            scope.spawn(move || {
                let name = format!("seat:{number}");
                let mut last = 0;
                barrier.wait();
                for _ in 0..PAIRS {
                    let guard = take(keeper, &name);
                    assert!(guard.is_held());
                    assert!(guard.token().get() > last, "the tokens of a name grow");
                    last = guard.token().get();
                    guard.renew().expect("the lease stands");
                    let released = guard.release().expect("the store answers");
                    assert_eq!(released, Released::Done);
                }
                let guard = take(rival, &name);
                assert!(guard.token().get() > last, "the tokens of a name grow");
            });
        }
    });
    drop((keeper, rival));
    rig.nothing_left();
    Ok(())
}
