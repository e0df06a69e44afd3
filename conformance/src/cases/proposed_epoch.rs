//! Proposed epochs, by which a store is a member of a quorum.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, Capability, Clock, ErasedLease, Error, ErrorKind, Grant,
    LockName, LockProvider, Operation, Released, SystemClock, epoch_at,
};

use crate::rig::{Outcome, Rig, Skip, take};

const TTL: Duration = Duration::from_secs(60);
/// A store may compare by the microsecond, which has 17 epochs at most.
const MICROSECOND: u64 = 17;

/// A provider, if its store takes proposed epochs.
fn member(rig: &Rig<'_>) -> Result<Arc<dyn LockProvider>, Skip> {
    let provider = rig.provider();
    match provider.capabilities().has(Capability::ProposedEpoch) {
        true => Ok(provider),
        false => Err(Skip("the store takes no proposed epochs".to_owned())),
    }
}

fn name(text: &str) -> LockName {
    LockName::new(text).expect("the name is valid")
}

/// Makes an attempt by the single verb, or as an operation of a batch.
fn propose(
    provider: &dyn LockProvider,
    name: &LockName,
    epoch: u64,
    in_batch: bool,
) -> Result<Option<Grant<ErasedLease>>, Error> {
    let clock = SystemClock;
    let request = AcquireRequest::attempt(name, TTL, &clock).with_proposed_epoch(epoch);
    if !in_batch {
        return provider.acquire(&request);
    }
    let mut batch = [Operation::Acquire(AttemptRequest {
        request: &request,
        deadline: clock.now() + TTL,
        answer: None,
    })];
    provider.batch(&mut batch);
    match batch {
        [Operation::Acquire(attempt)] => attempt.answer.expect("there is an answer"),
        other => panic!("{other:?} was an attempt"),
    }
}

fn release(provider: &dyn LockProvider, grant: Grant<ErasedLease>) {
    let mut lease = grant.lease;
    let released = provider.release(&mut lease, SystemClock.now() + TTL);
    assert_eq!(released.expect("the store answers"), Released::Done);
}

pub(super) fn proposal_is_granted_exactly_or_refused_with_the_last(rig: &Rig<'_>) -> Outcome {
    let provider = member(rig)?;
    let name = name("a");
    let mut epoch = epoch_at(SystemTime::now() + Duration::from_secs(60));
    for in_batch in [false, true] {
        epoch += MICROSECOND;
        let granted = propose(&*provider, &name, epoch, in_batch).expect("the store answers");
        let granted = granted.expect("the name is free");
        assert_eq!(granted.epoch, epoch);
        let busy = propose(&*provider, &name, epoch + 2 * MICROSECOND, in_batch);
        assert!(busy.expect("the store answers").is_none(), "it is held");
        release(&*provider, granted);
        for too_small in [1, epoch - MICROSECOND, epoch] {
            let refused = propose(&*provider, &name, too_small, in_batch);
            let refused = refused.expect_err("it is too small");
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            assert!(!refused.is_unreachable(), "the store has answered");
            let last = refused.last_epoch().expect("the store tells it");
            assert!((epoch..epoch + MICROSECOND).contains(&last), "{last}");
            epoch = last;
        }
        // The next guess fits.
        epoch += 1;
        let granted = propose(&*provider, &name, epoch, in_batch).expect("the store answers");
        release(&*provider, granted.expect("the name is free"));
    }
    rig.nothing_left();
    Ok(())
}

pub(super) fn proposals_and_own_epochs_of_the_store_grow_together(rig: &Rig<'_>) -> Outcome {
    let provider = member(rig)?;
    let keeper = rig.keeper();
    let ahead = epoch_at(SystemTime::now() + Duration::from_secs(60));
    let granted = propose(&*provider, &name("a"), ahead, false).expect("the store answers");
    release(&*provider, granted.expect("the name is free"));
    let guard = take(&keeper, "a");
    let token = guard.token().get();
    guard.release().expect("the store answers");
    assert!(token >> 7 > ahead, "the store minted {token}");
    let refused = propose(&*provider, &name("a"), ahead + 1, false);
    let refused = refused.expect_err("the store has minted a larger one");
    assert!(refused.last_epoch() >= Some(token >> 7));
    rig.nothing_left();
    Ok(())
}
