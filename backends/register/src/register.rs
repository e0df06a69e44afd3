//! The parts that a provider and its threads share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_utils::sync::Unparker;
use lockkeeper_core::{
    AcquireRequest, CancelToken, Clock, Error, HostInstant, LeaseVerifiers, Owner, epoch_at,
    process_label,
};
use lockkeeper_remote::host_name;
use parking_lot::Mutex;

use crate::decide::{Attempt, Kind};
use crate::entry::Lease;
use crate::exchange::{Answered, Others, Task, Verb, unexpected};
use crate::expiry::Expiry;
use crate::key::Key;
use crate::sessions::Sessions;
use crate::store::{Call, RegisterStore, Version};
use crate::sweep::FreeNames;

/// An entry that stays the same for this long although its first waiter could be granted, by the clock of the process that
/// sees it, has a waiter that is dead or stopped. A waiter looks more often than that.
pub(crate) const GRACE: Duration = Duration::from_millis(750);
/// How long a place in a queue lives if its process is dead. Until then it holds back who could be granted the name beside
/// the present holders.
const PLACE_TTL: Duration = Duration::from_secs(5);
/// The longest time that the end of a provider takes.
const CLOSING: Duration = Duration::from_millis(250);
/// How many letters of the name of a host and of the label of a process an entry keeps.
const LETTERS: usize = 40;

pub(crate) struct Register<S: RegisterStore> {
    pub(crate) store: Arc<S>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) sessions: Sessions,
    pub(crate) expiry: Expiry,
    pub(crate) freed: FreeNames,
    pub(crate) verifiers: Arc<LeaseVerifiers>,
    /// Ends the thread that watches for evictions, and lets it begin.
    pub(crate) closing: CancelToken,
    pub(crate) watch: Unparker,
    /// The entry with the largest epoch of the entries that were removed.
    pub(crate) floor: Key,
    /// The largest epoch that this provider was granted.
    pub(crate) largest: AtomicU64,
    /// The entries whose first waiter could be granted: the version, and since when it was seen.
    unclaimed: Mutex<HashMap<Key, (Version, HostInstant)>>,
}

impl<S: RegisterStore> Register<S> {
    pub(crate) fn new(store: S, clock: Arc<dyn Clock>, watch: Unparker) -> Self {
        Self {
            store: Arc::new(store),
            sessions: Sessions::default(),
            expiry: Expiry::new(Arc::clone(&clock)),
            freed: FreeNames::default(),
            verifiers: Arc::default(),
            closing: CancelToken::new(),
            watch,
            floor: Key::of_namespace("floor"),
            largest: AtomicU64::new(0),
            unclaimed: Mutex::default(),
            clock,
        }
    }

    pub(crate) fn now(&self) -> HostInstant {
        self.clock.now()
    }

    /// Returns the smallest epoch of a grant at this moment.
    pub(crate) fn least_epoch(&self) -> u64 {
        epoch_at(SystemTime::now()).max(self.largest.load(Ordering::Relaxed) + 1)
    }

    /// Returns whether an entry whose first waiter could be granted has been the same for too long.
    pub(crate) fn is_overdue(&self, key: &Key, version: Option<Version>) -> bool {
        let now = self.now();
        let mut unclaimed = self.unclaimed.lock();
        let Some(version) = version else {
            return false;
        };
        if unclaimed.len() >= 256 {
            unclaimed.retain(|_, (_, since)| now < *since + 4 * GRACE);
        }
        let known = unclaimed.entry(key.clone()).or_insert((version, now));
        if known.0 != version {
            *known = (version, now);
        }
        now >= known.1 + GRACE
    }

    /// Returns the task of a request.
    pub(crate) fn task<'a>(
        &self,
        key: &'a Key,
        owner: &'a str,
        request: &AcquireRequest<'_>,
    ) -> Task<'a> {
        let Owner { pid, since, .. } = request.owner();
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = |text: &str| text.chars().take(LETTERS).collect::<String>();
        let lease = Lease {
            owner: owner.to_owned(),
            epoch: 0,
            mode: request.mode(),
            slot: 0,
            session: String::new(),
            host: start(host_name()),
            pid,
            label: start(process_label().unwrap_or_default()),
            since: u64::try_from(since.as_millis()).unwrap_or_default(),
        };
        let attempt = Attempt {
            key,
            lease,
            kind: match request.deadline() {
                _ if request.is_resume() => Kind::Resumes,
                Some(_) => Kind::Queues,
                None => Kind::Tries,
            },
            place: String::new(),
            least_epoch: 0,
        };
        let ttl = request.ttl();
        let place_ttl = PLACE_TTL.max(self.store.capabilities().min_ttl()).min(ttl);
        Task {
            key,
            owner,
            verb: Verb::Attempt {
                attempt,
                ttl,
                place_ttl,
            },
        }
    }

    /// Carries out [`Verb::Remove`], and returns whether there was something to remove.
    pub(crate) fn remove(
        &self,
        key: &Key,
        owner: &str,
        (epoch, settles): (Option<u64>, bool),
        call: Call<'_>,
    ) -> Result<bool, Error> {
        let verb = Verb::remove(epoch, settles);
        let task = Task { key, owner, verb };
        match self.carry_out_one(task, &mut Others::new(), call)? {
            Answered::Removed(done) => Ok(done),
            _ => Err(unexpected()),
        }
    }

    /// Returns the most writes of one call.
    pub(crate) fn batch(&self) -> usize {
        self.store.capabilities().batch()
    }
}

impl<S: RegisterStore> Drop for Register<S> {
    fn drop(&mut self) {
        self.closing.cancel();
        self.watch.unpark();
        let deadline = self.now() + CLOSING;
        let call = Call {
            deadline,
            cancel: None,
        };
        self.end_pending(call);
        self.remove_own(Duration::ZERO, call);
        // Programs that live for a moment do not look for what dead ones have left. One in some of them does.
        if self.largest.load(Ordering::Relaxed) > 0 && fastrand::u8(..16) == 0 {
            let _ = self.remove_abandoned(call);
        }
        let held = self.expiry.sessions();
        let unused = self.sessions.take();
        let unused = unused.iter().filter(|id| !held.contains(*id));
        let unused: Vec<&str> = unused.map(String::as_str).collect();
        if !unused.is_empty() {
            // They end by themselves otherwise.
            let _ = self.store.end_sessions(&unused, call);
        }
    }
}
