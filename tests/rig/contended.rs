//! Many who take turns while the network goes through all its faults.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::LockKeeper;
use lockkeeper_testkit::{Counts, Fault, Proxy};

use super::{HANG, PATIENCE, Witness, until};

/// Two threads of each keeper take `a` in turn, waiting `wait` at most, while `proxy`, which some of
/// the keepers are behind, has each fault in turn.
pub(crate) fn through_it_all(keepers: &[LockKeeper], wait: Duration, proxy: &Proxy) {
    let witness = Witness::new(true);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for keeper in keepers.iter().flat_map(|keeper| [keeper; 2]) {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    match keeper.lock("a") {
                        Ok(guard) => witness.enter(&guard),
                        Err(error) => assert!(error.is_retryable(), "{error:?}"),
                    }
                    let took = began.elapsed();
                    assert!(took < wait + HANG, "{took:?}");
                }
            });
        }
        // Ends the others also where this panics.
        let _over = Over(&over);
        let delay = Duration::from_millis(1500);
        for (fault, count) in [
            (Fault::DropRequests, dropped as fn(&Counts) -> u64),
            (Fault::DropReplies, dropped),
            (Fault::CutReplyAfter(3), |counts| counts.cut),
            (Fault::DelayRequests(delay), |counts| counts.held),
            (Fault::DelayReplies(delay), |counts| counts.held),
            (Fault::Dark, |counts| counts.accepted),
        ] {
            let before = count(&proxy.counts());
            proxy.set(fault);
            let met = proxy.wait_for(PATIENCE, |counts| count(counts) >= before + 6);
            assert!(met, "{fault:?} is not met");
            proxy.set(Fault::Pass);
            let before = witness.grants();
            until("it goes on", || witness.grants() >= before + 20);
        }
    });
}

fn dropped(counts: &Counts) -> u64 {
    counts.dropped_requests + counts.dropped_replies
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
