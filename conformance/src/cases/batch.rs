//! Group commit: what threads ask of a store at the same moment, and the verb that carries it out.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, Clock, LockName, Operation, ReleaseRequest, Released,
    RenewRequest, Renewal, SystemClock,
};

use crate::rig::{Outcome, Rig, take};

const TTL: Duration = Duration::from_secs(60);

const THREADS: usize = 32;
const PAIRS: usize = 10;

/// A store without batches of its own answers by its single verbs.
pub(super) fn batch_answers_each_operation(rig: &Rig<'_>) -> Outcome {
    let provider = rig.provider();
    let keeper = rig.keeper();
    let busy = take(&keeper, "busy");
    let clock = SystemClock;
    let [free, again, taken, gone] = ["free", "again", "busy", "gone"]
        .map(|name| LockName::new(name).expect("the name is valid"));
    let attempt = |name| AcquireRequest::attempt(name, TTL, &clock);
    let granted = |name| {
        let grant = provider.acquire(&attempt(name));
        let grant = grant.expect("the store answers");
        grant.expect("the name is free").lease
    };
    let (mut again_lease, mut gone_lease) = (granted(&again), granted(&gone));
    let deadline = clock.now() + rig.timeout();
    let released = provider.release(&mut gone_lease, deadline);
    assert_eq!(released.expect("the store answers"), Released::Done);

    let (free_request, taken_request) = (attempt(&free), attempt(&taken));
    let acquire = |request| {
        Operation::Acquire(AttemptRequest {
            request,
            deadline,
            answer: None,
        })
    };
    let mut batch = [
        acquire(&free_request),
        Operation::Renew(RenewRequest {
            lease: &mut again_lease,
            ttl: TTL,
            deadline,
            answer: None,
        }),
        acquire(&taken_request),
        Operation::Release(ReleaseRequest {
            lease: &mut gone_lease,
            deadline,
            answer: None,
        }),
    ];
    provider.batch(&mut batch);
    let [
        Operation::Acquire(free),
        Operation::Renew(renewed),
        Operation::Acquire(taken),
        Operation::Release(gone),
    ] = batch
    else {
        panic!("the operations stay where they were");
    };
    let grant = free.answer.expect("there is an answer");
    let grant = grant.expect("the store answers").expect("the name is free");
    let renewed = renewed.answer.expect("there is an answer");
    assert_eq!(renewed.expect("the store answers"), Renewal::Renewed);
    let taken = taken.answer.expect("there is an answer");
    assert!(taken.expect("the store answers").is_none(), "it is busy");
    let gone = gone.answer.expect("there is an answer");
    assert_eq!(gone.expect("the store answers"), Released::AlreadyLost);

    let mut leases = [grant.lease, again_lease];
    let [first, second] = &mut leases;
    let mut batch = [first, second].map(|lease| {
        Operation::Release(ReleaseRequest {
            lease,
            deadline,
            answer: None,
        })
    });
    provider.batch(&mut batch);
    for operation in batch {
        let Operation::Release(release) = operation else {
            panic!("the operations stay what they were");
        };
        let released = release.answer.expect("there is an answer");
        assert_eq!(released.expect("the store answers"), Released::Done);
    }
    drop(busy);
    rig.nothing_left();
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
