//! Tokens of a name grow strictly over all grants, and a commit can be proved where a store says so.

use std::sync::Mutex;
use std::thread;

use lockkeeper_core::{Capability, ErrorKind, LockGuard};

use crate::ear::Event;
use crate::rig::{Outcome, Rig, take, take_with};

/// Keeps the largest token so far, and fails where the next is no larger.
#[derive(Default)]
struct Fence(u64);

impl Fence {
    fn pass(&mut self, token: u64) {
        assert!(token > self.0, "the token {token} comes after {}", self.0);
        assert!(
            i64::try_from(token).is_ok(),
            "{token} fits no signed column"
        );
        self.0 = token;
    }

    fn pass_guard(&mut self, guard: &LockGuard) {
        self.pass(guard.token().get());
        let signed = u64::try_from(guard.token().as_i64());
        assert_eq!(signed, Ok(guard.token().get()));
    }
}

pub(super) fn grows_over_keepers(rig: &Rig<'_>) -> Outcome {
    let mut fence = Fence::default();
    let keepers = [rig.keeper(), rig.keeper()];
    for _ in 0..5 {
        for keeper in &keepers {
            fence.pass_guard(&take(keeper, "a"));
        }
        fence.pass_guard(&take(&rig.keeper(), "a"));
    }
    Ok(())
}

pub(super) fn grows_over_threads_and_hand_overs(rig: &Rig<'_>) -> Outcome {
    let fence = Mutex::new(Fence::default());
    let (keeper, ear) = rig.heard_keeper();
    let first = take(&keeper, "a");
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let guard = take(&keeper, "a");
                fence.lock().expect("no panic").pass_guard(&guard);
            });
        }
        ear.wait_for(Event::Contended, 20);
        fence.lock().expect("no panic").pass_guard(&first);
        drop(first);
    });
    fence
        .lock()
        .expect("no panic")
        .pass_guard(&take(&keeper, "a"));
    Ok(())
}

pub(super) fn grows_over_processes(rig: &Rig<'_>) -> Outcome {
    let mut fence = Fence::default();
    let mut process = rig.process(rig.renewed(60_000))?;
    let keeper = rig.keeper();
    for _ in 0..3 {
        fence.pass_guard(&take(&keeper, "a"));
        fence.pass(process.take("a"));
        process.release();
    }
    Ok(())
}

pub(super) fn grows_over_a_wiped_store(rig: &Rig<'_>) -> Outcome {
    let mut fence = Fence::default();
    let keeper = rig.keeper();
    for _ in 0..3 {
        // Several, so that a store that counts from one again is behind.
        for _ in 0..3 {
            fence.pass_guard(&take(&keeper, "a"));
        }
        rig.wipe()?;
        fence.pass_guard(&take(&keeper, "a"));
        fence.pass_guard(&take(&rig.keeper(), "a"));
    }
    // And one that is held meanwhile.
    let held = take(&keeper, "a");
    fence.pass_guard(&held);
    rig.wipe()?;
    fence.pass_guard(&take(&rig.keeper(), "a"));
    Ok(())
}

/// With its last provider a store may end, and what it knew.
pub(super) fn grows_over_a_store_that_was_closed(rig: &Rig<'_>) -> Outcome {
    let mut fence = Fence::default();
    for _ in 0..3 {
        let keeper = rig.keeper();
        for _ in 0..3 {
            fence.pass_guard(&take(&keeper, "a"));
        }
    }
    Ok(())
}

pub(super) fn grows_over_a_lease_that_ran_out(rig: &Rig<'_>) -> Outcome {
    let mut fence = Fence::default();
    let keeper = rig.keeper();
    let lost = take_with(&keeper, "a", rig.fixed(200));
    fence.pass_guard(&lost);
    fence.pass_guard(&take(&keeper, "a"));
    fence.pass_guard(&take(&rig.keeper(), "a"));
    Ok(())
}

/// By the capability, a program knows beforehand. Whether a proof is right, a test of the store's own
/// asks: SQL is not said here.
pub(super) fn a_commit_is_proved_or_the_proof_refused(rig: &Rig<'_>) -> Outcome {
    let keeper = rig.keeper();
    let guard = take(&keeper, "a");
    match guard.commit_proof() {
        Ok(proof) => {
            assert!(keeper.capabilities().has(Capability::CommitProof));
            let questions = proof.statement().matches('?').count();
            assert_eq!(questions, proof.params().len(), "{proof:?}");
        }
        Err(error) => {
            assert!(!keeper.capabilities().has(Capability::CommitProof));
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("`renew`"), "{error}");
        }
    }
    guard.renew().expect("what proves a hold on every store");
    Ok(())
}
