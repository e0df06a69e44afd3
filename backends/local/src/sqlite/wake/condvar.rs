//! Parkers of this process alone, for systems without sockets in files.

use std::path::Path;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::{Notified, Role, WakeReason};
use crate::lock;
use crate::sqlite::process::HolderWatch;

#[derive(Debug)]
pub(super) struct SocketFolder;

impl SocketFolder {
    pub(super) fn new(_path: &Path) -> Self {
        Self
    }

    pub(super) fn bind(&self, _role: Role) -> Parker {
        Parker::default()
    }

    pub(super) fn notify(&self, _address: &str) -> Notified {
        Notified::Maybe
    }

    pub(super) fn notify_holders(&self, _pid: Option<u32>) {}

    pub(super) fn remove_dead_sockets(&self) {}
}

/// Wakes one waiter of this process.
#[derive(Debug, Default)]
pub(in crate::sqlite) struct Parker {
    is_notified: Mutex<bool>,
    changed: Condvar,
}

impl Parker {
    pub(in crate::sqlite) fn address(&self) -> &str {
        ""
    }

    pub(in crate::sqlite) fn exists(&self) -> bool {
        true
    }

    pub(in crate::sqlite) fn unpark(&self) {
        *lock(&self.is_notified) = true;
        self.changed.notify_one();
    }

    pub(in crate::sqlite) fn clear(&self) -> bool {
        std::mem::take(&mut *lock(&self.is_notified))
    }

    pub(in crate::sqlite) fn wait(&self, _holders: &[HolderWatch], limit: Duration) -> WakeReason {
        let notified = lock(&self.is_notified);
        drop(
            self.changed
                .wait_timeout_while(notified, limit, |notified| !*notified),
        );
        WakeReason::Poll
    }
}
