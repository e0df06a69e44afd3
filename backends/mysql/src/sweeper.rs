//! The thread that ends leases which nobody renews, while other names keep their session alive. It
//! never asks the server itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use lockkeeper_core::{Error, ErrorKind, HostInstant};
use parking_lot::{Condvar, Mutex};

use crate::store::Store;

/// Nothing is due: any time is news.
const ASLEEP: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Sweeper {
    /// When the thread looks next. Whoever has something due before that lowers it and wakes it.
    next: AtomicU64,
    is_stopped: Mutex<bool>,
    alarm: Condvar,
}

impl Sweeper {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            next: AtomicU64::new(ASLEEP),
            is_stopped: Mutex::new(false),
            alarm: Condvar::new(),
        })
    }

    /// Has it look when something is `due`. Cheap when that is later than its next look.
    pub(crate) fn note(&self, due: HostInstant) {
        let due = due.as_nanos();
        if due < self.next.load(Ordering::Acquire)
            && due < self.next.fetch_min(due, Ordering::AcqRel)
        {
            let _is_stopped = self.is_stopped.lock();
            self.alarm.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        *self.is_stopped.lock() = true;
        self.alarm.notify_one();
    }

    pub(crate) fn start(store: &Arc<Store>) -> Result<(), Error> {
        let of = Arc::downgrade(store);
        let sweeper = Arc::clone(&store.sweeper);
        let weak = Arc::downgrade(&sweeper);
        store.clock.on_jump(Arc::new(move || {
            if let Some(sweeper) = weak.upgrade() {
                sweeper.note(HostInstant::default());
            }
        }));
        thread::Builder::new()
            .name("lockkeeper-mysql-sweep".to_owned())
            .spawn(move || sweep(&of, &sweeper))
            .map(drop)
            .map_err(|error| {
                Error::new(
                    ErrorKind::Unavailable,
                    "the thread that ends leases cannot be started; is the limit of threads reached?",
                )
                .with_source(error)
            })
    }
}

/// Holds the store only while it looks: the thread ends with it.
fn sweep(of: &Weak<Store>, sweeper: &Sweeper) {
    let Some(clock) = of.upgrade().map(|store| Arc::clone(&store.clock)) else {
        return;
    };
    loop {
        // Before looking: what is noted from here on lowers it again, and is not missed.
        sweeper.next.store(ASLEEP, Ordering::Release);
        let Some(store) = of.upgrade() else { return };
        let next = store.sweep(clock.now());
        // Before the mutex: it can be the last one, and its end takes that.
        drop(store);
        sweeper.next.fetch_min(next.as_nanos(), Ordering::AcqRel);
        let mut is_stopped = sweeper.is_stopped.lock();
        if *is_stopped {
            return;
        }
        let next = HostInstant::from_nanos(sweeper.next.load(Ordering::Acquire));
        let left = next.saturating_since(clock.now());
        if next == HostInstant::NEVER {
            sweeper.alarm.wait(&mut is_stopped);
        } else if !left.is_zero() {
            sweeper.alarm.wait_for(&mut is_stopped, left);
        }
    }
}
