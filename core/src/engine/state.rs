//! What an engine consists of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::capabilities::Capabilities;
use crate::clock::Clock;
use crate::error::Error;
use crate::name::LockName;
use crate::observer::Notifier;
use crate::options::{LeasePolicy, Settings};
use crate::provider::LockProvider;
use crate::timer::Timer;
use crate::workers::Workers;

use super::hold::Hold;
use super::queue::Queue;
use super::visits::Visits;

/// The state of one keeper, its clones and its guards.
pub(crate) struct Engine {
    pub(crate) provider: Arc<dyn LockProvider>,
    pub(crate) capabilities: Capabilities,
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) notifier: Notifier,
    pub(crate) queue: Queue<LockName, Hold, LeasePolicy, Error>,
    pub(super) timer: Timer,
    pub(super) workers: Arc<Workers<Job>>,
    pub(super) visits: Arc<Visits>,
    /// The number of threads that wait in the queue with a deadline.
    pub(super) waiting: AtomicUsize,
    pub(super) started: AtomicBool,
}

/// What a worker does.
pub(super) enum Job {
    /// Renews a batch of leases.
    Renew(Vec<Arc<Hold>>),
    NotifyLost(Arc<Hold>),
}
