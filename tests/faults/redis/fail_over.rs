//! Contention on one name while a replica takes over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lockkeeper::LockKeeper;
use lockkeeper_testkit::until;

use crate::common::Witness;
use crate::common::contended::SetOnDrop;

/// The keepers lock `a` repeatedly, each with a wait for outages. Meanwhile `fail_over` makes another server take
/// over. Grants go on before and after it.
pub(crate) fn through_fail_over(keepers: &[LockKeeper], fail_over: impl FnOnce()) {
    let witness = Witness::new(true);
    let enough = || {
        let before = witness.grants();
        until("grants go on", || witness.grants() >= before + 20);
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for keeper in keepers {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    match keeper.lock("a") {
                        Ok(guard) => witness.pass(guard),
                        Err(error) => assert!(error.is_retryable(), "{error:?}"),
                    }
                }
            });
        }
        let _over = SetOnDrop(&over);
        enough();
        fail_over();
        enough();
    });
}
