//! Turns, queues and epochs on members that do not agree: three SQLite files, which a test also opens one by one.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "this is a test program"
)]

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use lockkeeper_core::{
    AcquireRequest, CancelToken, Capabilities, Clock, ErasedLease, Error, ErrorKind, Grant,
    HeldName, HostInstant, LeaseVerifier, LockName, LockProvider, Operation, Proof, Released,
    Renewal, StoreInfo, SystemClock, epoch_at,
};
use lockkeeper_local::SqliteProvider;
use lockkeeper_quorum::{QuorumMember, QuorumProvider};
use tempfile::TempDir;

const TTL: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

fn name() -> LockName {
    LockName::new("seat:42").expect("the name is valid")
}

fn soon() -> HostInstant {
    SystemClock.now() + WAIT
}

/// Grants another name at a store with the epoch of a time ahead of now, so that the store refuses all epochs up to
/// that one.
fn raise(store: &dyn LockProvider, ahead: Duration) -> Result<u64, Error> {
    let (name, clock) = (LockName::new("other")?, SystemClock);
    let last = epoch_at(SystemTime::now() + ahead);
    let request = AcquireRequest::attempt(&name, TTL, &clock).with_proposed_epoch(last);
    let mut grant = store.acquire(&request)?.expect("it is free");
    store.release(&mut grant.lease, soon())?;
    Ok(last)
}

/// A clock that stands still until a test moves it.
#[derive(Debug)]
struct StoppedClock(AtomicU64);

impl StoppedClock {
    fn new() -> Self {
        Self(AtomicU64::new(SystemClock.now().as_nanos()))
    }

    fn advance(&self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).expect("it is short");
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for StoppedClock {
    fn now(&self) -> HostInstant {
        HostInstant::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// Three members and a quorum of them.
struct Stores {
    members: Vec<Arc<dyn LockProvider>>,
    quorum: QuorumProvider,
    _folder: TempDir,
}

impl Stores {
    /// Members that are down at the start do not answer until `is_up` is set.
    fn with_down(down: &[usize], is_up: &Arc<AtomicBool>, clock: Arc<dyn Clock>) -> Self {
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

    fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// Opens a quorum with a clock of its own. The members go by the system's.
    fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::with_down(&[], &Arc::default(), clock)
    }

    /// Has one member grant the name, to another holder.
    fn hold_at(&self, member: usize, epoch: Option<u64>) -> Grant<ErasedLease> {
        let (name, clock) = (name(), SystemClock);
        let request = AcquireRequest::attempt(&name, TTL, &clock);
        let request = match epoch {
            Some(epoch) => request.with_proposed_epoch(epoch),
            None => request,
        };
        let granted = self.members[member].acquire(&request);
        granted.expect("the store answers").expect("it is free")
    }

    fn release_at(&self, member: usize, mut grant: Grant<ErasedLease>) {
        let released = self.members[member].release(&mut grant.lease, soon());
        released.expect("the store answers");
    }

    /// Has a member refuse all epochs up to that of a time ahead of now.
    fn raise(&self, member: usize, ahead: Duration) -> u64 {
        raise(&*self.members[member], ahead).expect("the epoch is the largest")
    }

    fn attempt(&self) -> Result<Option<Grant<ErasedLease>>, Error> {
        let (name, clock) = (name(), SystemClock);
        let quorum: &dyn LockProvider = &self.quorum;
        quorum.acquire(&AcquireRequest::attempt(&name, TTL, &clock))
    }

    fn wait(&self) -> Grant<ErasedLease> {
        let (name, clock) = (name(), SystemClock);
        let quorum: &dyn LockProvider = &self.quorum;
        let request = AcquireRequest::attempt(&name, TTL, &clock).waiting_until(soon());
        let granted = quorum.acquire(&request);
        granted.expect("a majority answers").expect("in time")
    }

    /// Returns what an operator sees of the name at a member.
    fn held_at(&self, member: usize) -> Option<HeldName> {
        let admin = self.members[member].admin().expect("it lists its locks");
        let held = admin.held(Some(&name()), soon());
        held.expect("the store answers").pop()
    }

    /// Has an operator end the lock at a member, when that has granted it.
    fn end_at(&self, member: usize) {
        // The majority did not wait for the last member.
        let held = loop {
            if let Some(held) = self.held_at(member) {
                break held;
            }
            thread::yield_now();
        };
        let admin = self.members[member].admin().expect("it ends locks");
        let ended = admin.force_release(&held, soon());
        assert!(ended.expect("the store answers"));
    }

    /// Returns the holds that an operator sees.
    fn held(&self) -> Vec<HeldName> {
        let admin = self.quorum.admin().expect("it lists its locks");
        admin.held(None, soon()).expect("a majority answers")
    }

    fn renew(&self, lease: &mut ErasedLease) -> Renewal {
        let quorum: &dyn LockProvider = &self.quorum;
        let renewed = quorum.renew(lease, TTL, soon());
        renewed.expect("a majority answers")
    }

    fn until_free(&self, member: usize) {
        let (name, clock) = (name(), SystemClock);
        let request = AcquireRequest::attempt(&name, TTL, &clock).waiting_until(soon());
        let granted = self.members[member].acquire(&request);
        let grant = granted
            .expect("the store answers")
            .expect("it was given back");
        self.release_at(member, grant);
    }
}

#[test]
fn attempt_leaves_nothing_where_a_majority_has_another_holder() {
    let stores = Stores::new();
    let _held = [stores.hold_at(1, None), stores.hold_at(2, None)];
    assert!(stores.attempt().expect("a majority answers").is_none());
    stores.until_free(0);
}

#[test]
fn attempt_gives_way_to_the_holder_of_the_first_member() {
    let stores = Stores::new();
    let first = stores.hold_at(0, None);
    assert!(stores.attempt().expect("a majority answers").is_none());
    // What the others have granted was given back.
    let rest = [stores.hold_at(1, None), stores.hold_at(2, None)];
    for (member, grant) in (1..).zip(rest) {
        stores.release_at(member, grant);
    }
    stores.release_at(0, first);
    assert!(stores.attempt().expect("a majority answers").is_some());
}

/// What a member does before it carries out attempts, which it is shown.
type Before = dyn Fn(&[Operation<'_, ErasedLease>]) + Send + Sync;

/// A member that does something first.
struct Watched {
    store: Arc<dyn LockProvider>,
    before: Arc<Before>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl StoreInfo for Watched {
    fn backend(&self) -> &'static str {
        self.store.backend()
    }

    fn location(&self) -> String {
        self.store.location()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
}

impl LockProvider for Watched {
    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<ErasedLease>>, Error> {
        self.store.acquire(request)
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        self.store.abandon(request);
    }

    fn renew(
        &self,
        lease: &mut ErasedLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        self.store.renew(lease, ttl, deadline)
    }

    fn part(&self, request: &AcquireRequest<'_>) -> usize {
        self.store.part(request)
    }

    fn batch(&self, batch: &mut [Operation<'_, ErasedLease>]) {
        if batch.iter().any(|it| matches!(it, Operation::Acquire(_))) {
            (self.before)(batch);
        }
        self.store.batch(batch);
    }

    fn release(&self, lease: &mut ErasedLease, deadline: HostInstant) -> Result<Released, Error> {
        self.store.release(lease, deadline)
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.store.watch_leases(verifier);
    }

    fn proof(&self, lease: &ErasedLease) -> Option<Proof> {
        self.store.proof(lease)
    }
}

/// Opens a quorum of the three members, which do this first.
fn watched(
    stores: &Stores,
    before: impl Fn(&[Operation<'_, ErasedLease>]) + Send + Sync + 'static,
) -> Box<dyn LockProvider> {
    let before: Arc<Before> = Arc::new(before);
    let members = stores.members.iter().map(|store| {
        let (store, before) = (Arc::clone(store), Arc::clone(&before));
        QuorumMember::from(Arc::new(Watched { store, before }) as Arc<dyn LockProvider>)
    });
    let quorum = QuorumProvider::open(members.collect(), "test", TTL, Arc::new(SystemClock));
    Box::new(quorum.expect("a majority is up"))
}

#[test]
fn free_name_is_asked_of_all_members_at_the_same_time() {
    let (stores, all) = (Stores::new(), Barrier::new(3));
    let quorum = watched(&stores, move |_| {
        // No member grants anything before all three have been asked.
        all.wait();
    });
    let (name, clock) = (name(), SystemClock);
    let granted = quorum.acquire(&AcquireRequest::attempt(&name, TTL, &clock));
    assert!(granted.expect("a majority answers").is_some());
}

#[test]
fn minority_of_the_members_keeps_nothing_from_the_first_caller() {
    let stores = Stores::new();
    let _left = stores.hold_at(2, None);
    assert!(stores.attempt().expect("a majority answers").is_some());
}

/// Returns whether a caller waits in the queue of a member.
fn waits_at(stores: &Stores, member: usize) -> bool {
    let admin = stores.members[member].admin().expect("it lists its locks");
    let held = admin.held(None, soon()).expect("the store answers");
    held.iter().any(|it| it.waiting == Some(1))
}

#[test]
fn waiter_goes_on_where_the_holder_lacks_the_first_member() {
    let stores = Stores::new();
    let held = [stores.hold_at(1, None), stores.hold_at(2, None)];
    thread::scope(|scope| {
        let waiting = scope.spawn(|| stores.wait());
        // The waiter gives the first member back, and waits at the second one.
        while !waits_at(&stores, 1) {
            thread::yield_now();
        }
        stores.until_free(0);
        let last = held.iter().map(|grant| grant.epoch).max();
        for (member, grant) in (1..).zip(held) {
            stores.release_at(member, grant);
        }
        let granted = waiting.join().expect("it does not panic");
        assert!(Some(granted.epoch) > last);
    });
}

#[test]
fn epoch_of_the_first_member_is_raised_above_those_of_the_others() {
    let stores = Stores::new();
    stores.raise(1, HOUR);
    let last = stores.raise(2, 2 * HOUR);
    let grant = stores.attempt().expect("a majority answers");
    assert!(grant.expect("it is free").epoch > last);
}

#[test]
fn first_member_grants_a_larger_epoch_where_a_majority_needs_it() {
    let stores = Stores::with_down(&[2], &Arc::default(), Arc::new(SystemClock));
    let last = stores.raise(1, HOUR);
    let grant = stores.attempt().expect("a majority answers");
    assert!(grant.expect("it is free").epoch > last);
}

#[test]
fn queue_moves_to_the_next_member_and_back() {
    let is_up = Arc::default();
    let stores = Stores::with_down(&[0], &is_up, Arc::new(SystemClock));
    let grant = stores.wait();
    let mut lease = grant.lease;
    is_up.store(true, Ordering::Relaxed);
    let quorum: &dyn LockProvider = &stores.quorum;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| stores.wait());
        quorum
            .release(&mut lease, soon())
            .expect("a majority answers");
        let next = waiting.join().expect("it does not panic");
        assert!(next.epoch > grant.epoch);
    });
}

#[test]
fn members_are_asked_for_little_longer_than_the_caller_waits() {
    let (sender, left) = mpsc::channel();
    let stores = Stores::new();
    let quorum = watched(&stores, move |batch| {
        for operation in batch {
            // The vote may be over by now.
            let _ = sender.send(operation.deadline().saturating_since(SystemClock.now()));
        }
    });
    let (name, clock) = (name(), SystemClock);
    let request = AcquireRequest::attempt(&name, TTL, &clock);
    let granted = quorum.acquire(&request.waiting_until(clock.now()));
    assert!(granted.expect("a majority answers").is_some());
    // An attempt has 1 s and more.
    let most = left.iter().take(2).max().expect("members are asked");
    assert!(most <= Duration::from_millis(500), "{most:?}");
}

#[test]
fn renewal_regains_the_members_that_lost_the_lease() {
    let clock = Arc::new(StoppedClock::new());
    let stores = Stores::with_clock(Arc::clone(&clock) as _);
    let mut grant = stores.wait();
    // All members lose the lease, one after the other.
    for member in 0..3 {
        stores.end_at(member);
        // A renewal finds that out, and a later one asks anew.
        let ends = Instant::now() + Duration::from_secs(10);
        loop {
            assert_eq!(stores.renew(&mut grant.lease), Renewal::Renewed);
            if stores.held_at(member).is_some() {
                break;
            }
            assert!(Instant::now() < ends, "member {member} has no lease");
            clock.advance(Duration::from_secs(1));
        }
        // The workers answer this after they have noted the grant.
        stores.held();
    }
    // The operator still sees one hold, and can end it.
    let held = stores.held();
    assert_eq!(held.len(), 1, "{held:?}");
    let admin = stores.quorum.admin().expect("it ends locks");
    let ended = admin.force_release(&held[0], soon());
    assert!(ended.expect("a majority answers"));
    assert_eq!(stores.renew(&mut grant.lease), Renewal::Lost);
    (0..3).for_each(|member| stores.until_free(member));
}

#[test]
fn unlock_that_reaches_the_members_one_after_the_other_is_not_undone() {
    let stores = Stores::with_clock(Arc::new(StoppedClock::new()));
    let mut grant = stores.wait();
    for (member, renewal) in [(0, Renewal::Renewed), (1, Renewal::Lost)] {
        stores.end_at(member);
        assert_eq!(stores.renew(&mut grant.lease), renewal);
        // A worker answers a question before the other jobs of its batch, so the second answer comes after them.
        (0..2).for_each(|_| drop(stores.held()));
    }
}

#[test]
fn member_whose_store_panicked_is_asked_again() {
    let stores = Stores::new();
    let panics = AtomicUsize::new(3);
    let quorum = watched(&stores, move |_| {
        let left = panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        });
        assert!(left.is_err(), "the store panics");
    });
    let (name, clock) = (name(), SystemClock);
    let request = || AcquireRequest::attempt(&name, TTL, &clock);
    let failed = quorum.acquire(&request()).expect_err("no member answers");
    assert_eq!(failed.kind(), ErrorKind::Unavailable);
    let granted = quorum.acquire(&request());
    assert!(granted.expect("a majority answers").is_some());
}

/// A clock that goes on by 5 ms whenever the caller reads it. So a vote of 1 s and more ends only after the members
/// have hung for [`WAIT`], and the 50 ms in which a cancelled caller gives back what it has are over soon.
#[derive(Debug)]
struct ReadClock(StoppedClock);

impl Clock for ReadClock {
    fn now(&self) -> HostInstant {
        self.0.advance(Duration::from_millis(5));
        self.0.now()
    }
}

/// Cancels a wait while the members hang, and checks that this ends the wait.
fn cancel_while_members_hang(is_contended: bool) {
    let stores = Stores::new();
    let (resume, resumed) = mpsc::channel::<()>();
    let (sender, asked) = mpsc::channel();
    let (resumed, hangs) = (Mutex::new(resumed), Arc::new(AtomicBool::new(false)));
    let (is_hanging, has_resumed) = (Arc::clone(&hangs), Arc::new(AtomicBool::new(false)));
    let resumes = Arc::clone(&has_resumed);
    let quorum = watched(&stores, move |_| {
        if is_hanging.load(Ordering::Relaxed) {
            // The wait may be over by now.
            let _ = sender.send(());
            let resumed = resumed.lock().expect("no member panics");
            let _ = resumed.recv_timeout(WAIT);
            resumes.store(true, Ordering::Relaxed);
        }
    });
    let (name, cancel) = (name(), CancelToken::new());
    let clock = ReadClock(StoppedClock::new());
    if is_contended {
        // The process has met another holder, so its callers ask the first member alone.
        let held = stores.hold_at(0, None);
        let attempt = quorum.acquire(&AcquireRequest::attempt(&name, TTL, &clock));
        assert!(attempt.expect("a majority answers").is_none());
        stores.release_at(0, held);
    }
    hangs.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let request = AcquireRequest::attempt(&name, TTL, &clock).waiting_until(soon());
            quorum.acquire(&request.cancelled_by(Some(&cancel)))
        });
        asked.recv().expect("members are asked");
        cancel.cancel();
        let granted = waiting.join().expect("it does not panic");
        assert!(granted.expect("it is no failure").is_none());
        assert!(!has_resumed.load(Ordering::Relaxed), "the members hang");
    });
    drop(resume);
    // What the members grant now is given back.
    (0..3).for_each(|member| stores.until_free(member));
}

#[test]
fn cancel_ends_a_vote_of_members_that_hang() {
    cancel_while_members_hang(false);
}

#[test]
fn cancel_ends_an_attempt_at_a_first_member_that_hangs() {
    cancel_while_members_hang(true);
}

#[test]
fn proposer_with_a_late_clock_outbids_members_that_grant_all_the_time() {
    let stores = Stores::new();
    let members = stores.members.iter().map(|store| {
        let (store, other) = (Arc::clone(store), Arc::clone(store));
        // Before each proposal arrives, the member grants another name. The clock of that grant is an hour ahead.
        let before = move |_: &[Operation<'_, ErasedLease>]| {
            thread::sleep(Duration::from_millis(5));
            // The last proposal may have been larger.
            let _ = raise(&*other, HOUR);
        };
        let before: Arc<Before> = Arc::new(before);
        QuorumMember::from(Arc::new(Watched { store, before }) as Arc<dyn LockProvider>)
    });
    let clock = Arc::new(SystemClock);
    let quorum = QuorumProvider::open(members.collect(), "test", TTL, clock);
    let quorum: &dyn LockProvider = &quorum.expect("a majority is up");
    for name in ["a", "b"] {
        let (name, clock) = (LockName::new(name).expect("the name is valid"), SystemClock);
        let granted = quorum.acquire(&AcquireRequest::attempt(&name, TTL, &clock));
        let grant = granted.expect("a majority answers").expect("it is free");
        let most = epoch_at(SystemTime::now() + HOUR + Duration::from_secs(10));
        assert!(grant.epoch < most, "the epochs follow the clocks");
    }
}
