//! Three SQLite files and a quorum of them, and a clock that a test moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    AcquireRequest, Clock, ErasedLease, Error, ErrorKind, Grant, HeldName, HostInstant, LockName,
    LockProvider, Renewal, StoreInfo, SystemClock, epoch_at,
};
use lockkeeper_local::SqliteProvider;
use lockkeeper_quorum::{QuorumMember, QuorumProvider};
use tempfile::TempDir;

use crate::{NEVER, TTL, name};

/// Grants another name at a store, with the epoch of a time ahead of now. Then the store refuses all epochs up to
/// that one.
pub(crate) fn raise(store: &dyn LockProvider, ahead: Duration) -> Result<u64, Error> {
    let (name, clock) = (LockName::new("other")?, SystemClock);
    let last = epoch_at(SystemTime::now() + ahead);
    let request = AcquireRequest::attempt(&name, TTL, &clock).with_proposed_epoch(last);
    let mut grant = store.acquire(&request)?.expect("it is free");
    store.release(&mut grant.lease, NEVER)?;
    Ok(last)
}

/// Makes an attempt to acquire the name.
pub(crate) fn attempt(quorum: &dyn LockProvider) -> Result<Option<Grant<ErasedLease>>, Error> {
    let (name, clock) = (name(), ReadClock::new());
    quorum.acquire(&AcquireRequest::attempt(&name, TTL, &clock))
}

/// Repeats a request until a majority answers in time.
pub(crate) fn until_answered<T>(ask: impl Fn() -> Result<T, Error>) -> T {
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
}

/// A clock that stands still until a test moves it.
#[derive(Debug)]
pub(crate) struct StoppedClock(AtomicU64);

impl StoppedClock {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(SystemClock.now().as_nanos()))
    }

    pub(crate) fn advance(&self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).expect("it is short");
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for StoppedClock {
    fn now(&self) -> HostInstant {
        HostInstant::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// A clock that goes on by 5 ms whenever the caller reads it. The time that other threads need does not count.
#[derive(Debug)]
pub(crate) struct ReadClock(StoppedClock);

impl ReadClock {
    pub(crate) fn new() -> Self {
        Self(StoppedClock::new())
    }
}

impl Clock for ReadClock {
    fn now(&self) -> HostInstant {
        self.0.advance(Duration::from_millis(5));
        self.0.now()
    }
}

/// Three members and a quorum of them.
pub(crate) struct Stores {
    pub(crate) members: Vec<Arc<dyn LockProvider>>,
    pub(crate) quorum: QuorumProvider,
    _folder: TempDir,
}

impl Stores {
    /// Members that are down at the start do not answer until `is_up` is set.
    pub(crate) fn with_down(
        down: &[usize],
        is_up: &Arc<AtomicBool>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let open = |at: usize| -> Arc<dyn LockProvider> {
            let path = folder.path().join(format!("{at}.db"));
            let path = path.to_str().expect("the path is UTF-8");
            Arc::new(SqliteProvider::open(path, "test").expect("the file can be opened"))
        };
        let members: Vec<_> = (0..3).map(open).collect();
        let sources = members.iter().enumerate().map(|(at, store)| {
            let (store, is_up) = (Arc::clone(store), Arc::clone(is_up));
            let is_down = down.contains(&at);
            QuorumMember::new(format!("member {at}"), move || {
                match is_down && !is_up.load(Ordering::Relaxed) {
                    true => Err(Error::new(ErrorKind::Unavailable, "the member is down")),
                    false => Ok(Arc::clone(&store)),
                }
            })
        });
        let quorum = QuorumProvider::open(sources.collect(), "test", TTL, clock);
        let quorum = quorum.expect("a majority is up");
        Self {
            members,
            quorum,
            _folder: folder,
        }
    }

    pub(crate) fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// Opens a quorum with a clock of its own. The members go by the system's.
    pub(crate) fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::with_down(&[], &Arc::default(), clock)
    }

    /// Lets one member grant the name to another holder.
    pub(crate) fn hold_at(&self, member: usize, epoch: Option<u64>) -> Grant<ErasedLease> {
        let (name, clock) = (name(), SystemClock);
        let request = AcquireRequest::attempt(&name, TTL, &clock);
        let request = match epoch {
            Some(epoch) => request.with_proposed_epoch(epoch),
            None => request,
        };
        let granted = self.members[member].acquire(&request);
        granted.expect("the store answers").expect("it is free")
    }

    pub(crate) fn release_at(&self, member: usize, mut grant: Grant<ErasedLease>) {
        let released = self.members[member].release(&mut grant.lease, NEVER);
        released.expect("the store answers");
    }

    /// Makes a member refuse all epochs up to that of a time ahead of now.
    pub(crate) fn raise(&self, member: usize, ahead: Duration) -> u64 {
        raise(&*self.members[member], ahead).expect("the epoch is the largest")
    }

    pub(crate) fn attempt(&self) -> Result<Option<Grant<ErasedLease>>, Error> {
        attempt(&self.quorum)
    }

    pub(crate) fn wait(&self) -> Grant<ErasedLease> {
        let (name, clock) = (name(), SystemClock);
        let quorum: &dyn LockProvider = &self.quorum;
        let request = AcquireRequest::attempt(&name, TTL, &clock).waiting_until(NEVER);
        until_answered(|| quorum.acquire(&request)).expect("the wait has no end")
    }

    /// Returns what an operator sees of the name at a member.
    pub(crate) fn held_at(&self, member: usize) -> Option<HeldName> {
        let admin = self.members[member].admin().expect("it lists its locks");
        let held = admin.held(Some(&name()), NEVER);
        held.expect("the store answers").pop()
    }

    /// Ends the lock at a member, as an operator does, when the member has granted it.
    pub(crate) fn end_at(&self, member: usize) {
        // The majority did not wait for the last member.
        let held = loop {
            if let Some(held) = self.held_at(member) {
                break held;
            }
            thread::yield_now();
        };
        let admin = self.members[member].admin().expect("it ends locks");
        let ended = admin.force_release(&held, NEVER);
        assert!(ended.expect("the store answers"));
    }

    /// Returns the holds that an operator sees.
    pub(crate) fn held(&self) -> Vec<HeldName> {
        let admin = self.quorum.admin().expect("it lists its locks");
        admin.held(None, NEVER).expect("a majority answers")
    }

    pub(crate) fn renew(&self, lease: &mut ErasedLease) -> Renewal {
        let quorum: &dyn LockProvider = &self.quorum;
        let renewed = quorum.renew(lease, TTL, NEVER);
        renewed.expect("a majority answers")
    }

    pub(crate) fn until_free(&self, member: usize) {
        let (name, clock) = (name(), SystemClock);
        let request = AcquireRequest::attempt(&name, TTL, &clock).waiting_until(NEVER);
        let granted = self.members[member].acquire(&request);
        let grant = granted
            .expect("the store answers")
            .expect("it was given back");
        self.release_at(member, grant);
    }
}
