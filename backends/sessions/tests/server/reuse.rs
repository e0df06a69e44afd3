//! A connection on which a name may be held, or that another call may close, is not used again.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, CancelToken, ErrorKind, LeasePolicy};
use lockkeeper_testkit::{StoreKind, cases, until};

use crate::checks::WAIT_LIMIT;
use crate::store::{Case, leftovers, open, start, until_waiting};

pub(crate) const CASES: &[Case] = cases![
    lost_guards_keep_no_connection,
    late_cancel_spares_next_call_on_connection,
];

fn lost_guards_keep_no_connection(kind: StoreKind) {
    let server = start(kind);
    let keeper = open(&*server, "pool_size=2");
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed {
        ttl: Duration::from_secs(1),
    });
    let mut lost = Vec::new();
    for name in ["a", "b", "c"] {
        let guard = keeper.acquire(name, &fixed).unwrap().unwrap();
        guard.lost_signal().wait(WAIT_LIMIT);
        until("the server has freed the name", || leftovers(&*server) == 0);
        lost.push(guard);
    }
    until("all connections are free", || {
        let two = keeper
            .try_lock("d")
            .and_then(|one| Ok((one, keeper.try_lock("e")?)));
        two.is_ok()
    });
    for guard in lost {
        guard.ensure_held().unwrap_err();
    }
}

/// Callbacks of a cancellation run one after another. The one that closes the connection runs after the
/// wait has ended.
fn late_cancel_spares_next_call_on_connection(kind: StoreKind) {
    let server = start(kind);
    let holder = open(&*server, "").lock("a").unwrap();
    let keeper = open(&*server, "pool_size=1");
    let (cancel, (blocked, is_blocked), (go, gone)) = (CancelToken::new(), channel(), channel());
    let gone = std::sync::Mutex::new(gone);
    let _first = cancel.on_cancel(move || {
        blocked.send(()).unwrap();
        gone.lock().unwrap().recv().unwrap();
    });
    let waiter = {
        let (keeper, options) = (keeper.clone(), AcquireOptions::new().cancel(&cancel));
        thread::spawn(move || keeper.acquire("a", &options.wait(WAIT_LIMIT)).map(drop))
    };
    until_waiting(&*server, &["a"], 1);
    let canceller = thread::spawn(move || cancel.cancel());
    is_blocked.recv_timeout(WAIT_LIMIT).unwrap();
    holder.release().unwrap();
    let error = waiter.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);

    let guard = keeper.lock("mine").unwrap();
    go.send(()).unwrap();
    canceller.join().unwrap();
    assert!(guard.renew().is_ok(), "the session is open");
    until("the cancelled wait has left nothing", || {
        leftovers(&*server) == 1
    });
}
