//! Rule 6: the tokens of a name grow strictly over all grants, and a store that declares commit proofs
//! gives them.

use lockkeeper_core::{Capability, ErrorKind, LockGuard};

use crate::rig::{Outcome, Rig, take};

/// Asserts that each token is larger than the tokens before it.
#[derive(Default)]
struct Fence(u64);

impl Fence {
    fn pass(&mut self, token: u64) {
        assert!(token > self.0, "the token {token} comes after {}", self.0);
        assert!(
            i64::try_from(token).is_ok(),
            "{token} does not fit a signed 64-bit column"
        );
        self.0 = token;
    }

    fn pass_guard(&mut self, guard: &LockGuard) {
        self.pass(guard.token().get());
        let signed = u64::try_from(guard.token().as_i64());
        assert_eq!(signed, Ok(guard.token().get()));
    }
}

pub(super) fn tokens_grow_over_keepers(rig: &Rig<'_>) -> Outcome {
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

pub(super) fn tokens_grow_after_the_store_was_wiped(rig: &Rig<'_>) -> Outcome {
    let mut fence = Fence::default();
    let keeper = rig.keeper();
    // Several grants, so that a store that counts from one again falls behind.
    for _ in 0..3 {
        fence.pass_guard(&take(&keeper, "a"));
    }
    rig.wipe()?;
    fence.pass_guard(&take(&keeper, "a"));
    fence.pass_guard(&take(&rig.keeper(), "a"));
    // The same while the name is held.
    let held = take(&keeper, "a");
    fence.pass_guard(&held);
    rig.wipe()?;
    fence.pass_guard(&take(&rig.keeper(), "a"));
    Ok(())
}

/// A store may forget its epochs when its last provider is dropped.
pub(super) fn tokens_grow_after_the_store_was_closed(rig: &Rig<'_>) -> Outcome {
    let mut fence = Fence::default();
    for _ in 0..3 {
        let keeper = rig.keeper();
        for _ in 0..3 {
            fence.pass_guard(&take(&keeper, "a"));
        }
    }
    Ok(())
}

/// Programs rely on the capability. Tests of the store itself run the statement of a proof.
pub(super) fn commit_proof_matches_the_capability(rig: &Rig<'_>) -> Outcome {
    let keeper = rig.keeper();
    let guard = take(&keeper, "a");
    match guard.commit_proof() {
        Ok(proof) => {
            assert!(keeper.capabilities().has(Capability::CommitProof));
            let placeholders = proof.statement().matches(['?', '$']).count();
            assert_eq!(placeholders, proof.params().len(), "{proof:?}");
        }
        Err(error) => {
            assert!(!keeper.capabilities().has(Capability::CommitProof));
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("`renew`"), "{error}");
        }
    }
    guard
        .renew()
        .expect("a renewal proves the hold on every store");
    Ok(())
}
