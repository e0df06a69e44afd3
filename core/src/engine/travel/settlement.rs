//! What is to be done with an answer that no caller waits for.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::HostInstant;
use crate::error::Error;

use super::super::hold::Hold;
use super::super::hold::dropped::DroppedGuard;
use super::super::hold::lease::Asked;

pub(crate) enum Settlement {
    /// What an attempt was granted, or a lease that it was to confirm, goes back. The store ends it after this ttl.
    GiveBack(Duration),
    /// A lease that was resumed stays, for another resumption.
    Leave,
    /// The lease comes back to its hold.
    Renewal { hold: Arc<Hold>, asked: Asked },
    /// A release is repeated if the store did not answer.
    Release(Release),
}

/// A release that no caller waits for.
pub(crate) struct Release {
    pub(crate) part: usize,
    /// When the store has ended the lease by itself.
    pub(crate) until: HostInstant,
    /// The guard whose end is reported afterwards, if that has not been done.
    pub(crate) guard: Option<Box<DroppedGuard>>,
    /// The error of the first request whose reply was lost.
    pub(crate) lost_reply: Option<Error>,
    /// Whether it was sent and not waited for: requests for its name wait in the queue of its part until it is settled.
    pub(crate) is_sent: bool,
}

impl Release {
    /// Returns the same release, which was sent and not waited for.
    pub(crate) fn sent(mut self) -> Self {
        self.is_sent = true;
        if let Some(guard) = &mut self.guard {
            // The queue of its part keeps it.
            guard.ending.keeps_name = false;
        }
        self
    }
}
