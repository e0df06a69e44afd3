//! Contention on one name while the world changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::LockKeeper;
use lockkeeper_testkit::{Counts, Fault, Proxy, until};

use super::{HANG, WAIT_LIMIT, Witness};

/// Repeats each of the works, on a thread of its own, until `change` returns. `change` gets what waits until the witness
/// has seen further grants.
pub(crate) fn repeat_during<W: Fn() + Send>(
    works: impl IntoIterator<Item = W>,
    witness: &Witness,
    change: impl FnOnce(&dyn Fn()),
) {
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        for work in works {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    work();
                }
            });
        }
        let _over = SetOnDrop(over);
        change(&|| {
            let before = witness.grants();
            until("grants go on", || witness.grants() >= before + 20);
        });
    });
}

/// Locks `a`, unless that fails for a reason that passes.
pub(crate) fn pass_or_fail(keeper: &LockKeeper, witness: &Witness) {
    match keeper.lock("a") {
        Ok(guard) => witness.pass(guard),
        Err(error) => assert!(error.is_retryable(), "{error:?}"),
    }
}

/// Locks `a` repeatedly, with `wait`, on two threads of each keeper. Meanwhile `proxy`, through which some
/// of the keepers connect, applies one fault after the other. `witness` checks the grants.
pub(super) fn through_all_faults(
    keepers: &[LockKeeper],
    wait: Duration,
    proxy: &Proxy,
    witness: &Witness,
) {
    let work = |keeper| {
        move || {
            let began = Instant::now();
            pass_or_fail(keeper, witness);
            let took = began.elapsed();
            assert!(took < wait + HANG, "{took:?}");
        }
    };
    let works = keepers.iter().flat_map(|keeper| [work(keeper); 2]);
    repeat_during(works, witness, |go_on| {
        let delay = Duration::from_millis(1500);
        for (fault, count) in [
            (Fault::DropRequests, lost as fn(&Counts) -> u64),
            (Fault::DropReplies, lost),
            (Fault::CutReplyAfter(3), lost),
            (Fault::DelayRequests(delay), |counts| counts.held),
            (Fault::DelayReplies(delay), |counts| counts.held),
            (Fault::Dark, |counts| counts.accepted),
        ] {
            let before = count(&proxy.counts());
            proxy.set(fault);
            let met = proxy.wait_for(WAIT_LIMIT, |counts| count(counts) >= before + 6);
            assert!(met, "{fault:?} was not met");
            proxy.set(Fault::Pass);
            go_on();
        }
    });
}

/// How many messages the proxy has lost.
pub(super) fn lost(counts: &Counts) -> u64 {
    counts.dropped_requests + counts.dropped_replies + counts.cut
}

/// Ends the threads also when the test panics.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
