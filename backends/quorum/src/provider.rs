//! The provider.
//!
//! After a renewal has proved a majority, the members without a lease are asked for one. No other holder can have
//! a majority before the proved leases end. So a lease that is granted until then counts like one of the first
//! grant. The member chooses the epoch, since it refuses the grant's epoch once it has granted another name. A
//! lease that was lost less than 1 s ago is not regained, since that would undo a part of an `unlock`.

use std::convert::Infallible;
use std::fmt;
use std::mem;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Admin, Backend, Capabilities, Capability, Clock, ErasedLease, Error, ErrorKind,
    Grant, HostInstant, LeaseVerifier, Operation, ReleaseDispatch, Released, Renewal, StoreInfo,
    StoreUrl, Usage,
};

use crate::acquire::Acquisition;
use crate::ballot::{Tally, majority};
use crate::epochs::Epochs;
use crate::hold::{Ask, GIVE_BACK, Hold, Job, PATIENCE, QuorumLease};
use crate::member::Member;
use crate::open::{QuorumMember, at_member, check_count, open_all};
use crate::{BACKEND, lock, worker};

/// A member keeps a lease longer by one part in this number. The clocks of two hosts differ in speed by no more,
/// since time services correct a clock by at most 1/2000.
const DRIFT: u32 = 1_000;
/// The largest number of renewals in a batch: usually all of a keeper. The members' stores take as many as they
/// can.
const RENEWALS: usize = 10_000;
/// The resolution of the members' clocks.
const RESOLUTION: Duration = Duration::from_millis(2);
/// The capabilities that a quorum has if all its members have them.
const INHERITED: [Capability; 3] = [
    Capability::CrossProcess,
    Capability::CrossHost,
    Capability::DeadOwnerTakeOver,
];

/// Locks that a majority of three or five independent stores hold. Clones share their connections.
///
/// A free name costs one round trip, to all members in parallel. A contended name costs two: the caller first asks
/// one member, which keeps the queue, and then the others. Locks are granted, renewed and released while a majority
/// of the members answers. Slow members do not delay that. There is one thread for each member.
///
/// # Limits
/// - There are only exclusive locks: no shared locks, and no permits.
/// - A member that forgets its locks in a restart must grant nothing for the largest ttl (`restart_grace` of
///   Redis). Otherwise two holders can get a majority. A SQLite file must not be deleted.
/// - After FLUSHALL, deleted keys or an eviction on a majority of the members, a name can have two holders for up
///   to the ttl.
/// - The members must be independent: replicas of each other, or servers on one host, fail together.
/// - A member keeps a lease for 1/1000 of the ttl + 2 ms longer, since clocks differ in speed.
/// - Operators see the leases of one process on a name as one hold, since regained leases have different epochs. So
///   operators may see, and end, a hold without a guard: leases that a process left at a majority of the members.
///   It is shown until their ttl is over.
/// - Waiters queue at one member, so a waiter loses its position when that member fails. If a process ends after
///   a release that this member did not receive, the name stays taken there until the ttl is over.
#[derive(Clone)]
pub struct QuorumProvider {
    pub(crate) quorum: Arc<Quorum>,
}

/// The members, and what they have in common.
pub(crate) struct Quorum {
    pub(crate) members: Vec<Arc<Member>>,
    /// It is disconnected when all workers have ended.
    workers: Mutex<Receiver<Infallible>>,
    pub(crate) epochs: Mutex<Epochs>,
    /// Until when names count as contended, in nanoseconds.
    pub(crate) contended_until: AtomicU64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) attempt_limit: Duration,
    namespace: String,
    max_ttl: Duration,
    capabilities: Capabilities,
}

/// A renewal that was sent to the members.
struct Asked {
    hold: Arc<Hold>,
    /// The ttl at the members.
    ttl: Duration,
    /// The time until which renewed leases of a majority exclude others.
    valid_until: HostInstant,
    /// The end of the wait for the answers.
    until: HostInstant,
}

impl QuorumProvider {
    /// Opens the members, of which a majority must be reachable. The others are opened as soon as they are
    /// reachable.
    ///
    /// No ttl may be longer than `max_ttl`. A member that forgot its locks must grant nothing for that time, 1/1000 of it
    /// and 2 ms: so long members keep a lease.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] unless there are three or five members, each a different server.
    /// [`Error::unreachable`] if no majority can be reached. [`ErrorKind::Unsupported`] for a store that takes no
    /// proposed epochs. The error of a member that answers and cannot serve.
    pub fn open(
        members: Vec<QuorumMember>,
        namespace: &str,
        max_ttl: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        check_count(members.len())?;
        let servers = Arc::new(Mutex::new(vec![None; members.len()]));
        let members = members.into_iter().enumerate();
        let members: Vec<_> = members
            .map(|(at, source)| {
                let (clock, servers) = (Arc::clone(&clock), Arc::clone(&servers));
                Arc::new(Member::new(at, source, clock, servers))
            })
            .collect();
        let opened = open_all(&members, &*clock)?;
        let has = |it: &Capability| opened.iter().all(|store| store.capabilities().has(*it));
        let inherited: Vec<_> = INHERITED.into_iter().filter(has).collect();
        let limits = opened
            .iter()
            .map(|store| store.capabilities().attempt_limit());
        let attempt_limit = limits.max().unwrap_or_default();
        let least = opened.iter().map(|store| store.capabilities().min_ttl());
        let capabilities = Capabilities::new()
            .with_min_ttl(least.max().unwrap_or_default())
            .with_renewals(RENEWALS)
            .with_attempt_limit(attempt_limit);
        let capabilities = inherited.iter().fold(capabilities, |all, it| all.with(*it));
        for member in &members {
            member.require(inherited.clone());
        }
        let (sender, workers) = mpsc::channel();
        let quorum = Quorum {
            members,
            workers: Mutex::new(workers),
            epochs: Mutex::default(),
            contended_until: AtomicU64::new(0),
            clock,
            attempt_limit,
            namespace: namespace.to_owned(),
            max_ttl,
            capabilities,
        };
        // Dropped before the quorum, which waits for that.
        let running = sender;
        for member in &quorum.members {
            worker::start(Arc::clone(member), running.clone())?;
        }
        let quorum = Arc::new(quorum);
        Ok(Self { quorum })
    }
}

/// Returns the ttl that members are asked for.
pub(crate) fn member_ttl(ttl: Duration) -> Duration {
    ttl.saturating_add(ttl / DRIFT + RESOLUTION)
}

/// Returns the error of a call to which fewer than a majority of the members answered.
pub(crate) fn few_members(quorum: &Quorum, errors: &[Option<Error>]) -> Error {
    let members = quorum.members.len();
    let text = format!(
        "fewer than {} of {members} members answered, so nothing was granted; see to the others",
        majority(members)
    );
    quorum.refusal_or(Error::new(ErrorKind::Unavailable, text), errors)
}

/// Returns the error of a renewal or release to which no majority has given one answer.
fn unknown(quorum: &Quorum, what: &str, errors: &[Option<Error>]) -> Error {
    let members = quorum.members.len();
    let text = format!(
        "no majority of the {members} members answered the {what} alike; the leases end with their ttl"
    );
    quorum.refusal_or(Error::new(ErrorKind::Unknown, text), errors)
}

impl Quorum {
    /// Returns the members in the order in which callers begin with them.
    pub(crate) fn by_turn(&self) -> impl Iterator<Item = &Arc<Member>> {
        let mut members: Vec<_> = self.members.iter().collect();
        members.sort_by_cached_key(|it| it.is_slow());
        members.into_iter()
    }

    /// Returns which members are not slow.
    pub(crate) fn quick(&self) -> Vec<bool> {
        let members = self.members.iter();
        members.map(|member| !member.is_slow()).collect()
    }

    /// Asks the members without a lease for one, such as a member that restarted empty. The lease counts from the next
    /// renewal on. Until `valid_until`, the leases of a majority keep others from the name; a later one proves nothing
    /// about the time before, and is given back. Each member chooses the epoch, which is not that of the grant.
    fn regain(&self, hold: &Arc<Hold>, ttl: Duration, valid_until: HostInstant) {
        for index in hold.begin_regaining(self.clock.now()) {
            if let Some(member) = self.members.get(index) {
                member.post(Job {
                    hold: Arc::clone(hold),
                    ask: Ask::Propose { epoch: None, ttl },
                    deadline: valid_until,
                });
            }
        }
    }

    /// Returns the refusal of a member if so many members refuse a call that no majority is possible: that is no outage,
    /// and repeating the call does not help. Otherwise returns `error`, with the error of a member as its source.
    fn refusal_or(&self, error: Error, errors: &[Option<Error>]) -> Error {
        let failed = self.members.iter().zip(errors);
        let failed = failed.filter_map(|(member, error)| Some((member, error.as_ref()?)));
        let (refused, silent): (Vec<_>, Vec<_>) = failed.partition(|(_, it)| !it.is_retryable());
        let is_refused = refused.len() > self.members.len() - majority(self.members.len());
        match refused.into_iter().chain(silent).next() {
            Some((member, refusal)) if is_refused => at_member(member, refusal.clone()),
            Some((_, cause)) => error.with_source(cause.clone()),
            None => error,
        }
    }

    /// Posts the renewals of a hold's leases to the members.
    fn ask_renewal(
        &self,
        hold: &Arc<Hold>,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Asked, Error> {
        self.check_ttl(ttl)?;
        let now = self.clock.now();
        let member_ttl = member_ttl(ttl);
        let (round, leases) = hold.begin_renewal(member_ttl, deadline);
        for (index, lease) in leases {
            if let Some(member) = self.members.get(index) {
                member.post(Job::renew(hold, round, lease));
            }
        }
        Ok(Asked {
            hold: Arc::clone(hold),
            ttl: member_ttl,
            valid_until: now + ttl,
            until: deadline.min(now + self.attempt_limit),
        })
    }

    /// Waits for what the members say to a renewal.
    fn renewed(&self, asked: &Asked) -> Result<Renewal, Error> {
        match asked.hold.renewal(&*self.clock, asked.until) {
            (Tally::Live, _) => {
                self.regain(&asked.hold, asked.ttl, asked.valid_until);
                Ok(Renewal::Renewed)
            }
            (Tally::Lost, _) => Ok(Renewal::Lost),
            (Tally::Open | Tally::Unknown, errors) => Err(unknown(self, "renewal", &errors)),
        }
    }

    /// Posts the releases of leases to the members.
    pub(crate) fn post_releases(
        &self,
        hold: &Arc<Hold>,
        leases: Vec<(usize, ErasedLease)>,
        deadline: HostInstant,
    ) {
        // The first member last: it notifies the next caller, which then finds the others free.
        for (index, lease) in leases.into_iter().rev() {
            if let Some(member) = self.members.get(index) {
                member.release(hold, lease, deadline);
            }
        }
    }

    fn release(&self, lease: &mut QuorumLease, deadline: HostInstant) -> Result<Released, Error> {
        let hold = &lease.hold;
        let awaited = match mem::take(&mut lease.is_dropped) {
            // No caller waits, and few threads of the keeper wait for the releases of all drops.
            true => Vec::new(),
            false => {
                let quick = self.quick();
                self.post_releases(hold, hold.begin_release(), deadline);
                quick
            }
        };
        let until = deadline.min(self.clock.now() + self.attempt_limit);
        match hold.release(&*self.clock, until, &awaited) {
            (Tally::Live, _) => Ok(Released::Done),
            (Tally::Lost, _) => Ok(Released::AlreadyLost),
            (Tally::Open | Tally::Unknown, errors) => Err(unknown(self, "release", &errors)),
        }
    }

    fn check_ttl(&self, ttl: Duration) -> Result<(), Error> {
        if ttl <= self.max_ttl {
            return Ok(());
        }
        let most = self.max_ttl;
        Err(Error::new(
            ErrorKind::InvalidTtl,
            format!(
                "the ttl is {ttl:?}, and members that restarted wait for {most:?} until they grant; raise \
                 `restart_grace` to the largest ttl of all programs"
            ),
        ))
    }
}

impl Drop for Quorum {
    fn drop(&mut self) {
        self.members.iter().for_each(|member| member.close());
        // If the process ends now, unreleased leases stay until their ttl is over.
        let _ = lock(&self.workers).recv_timeout(PATIENCE);
    }
}

impl fmt::Debug for QuorumProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources = self.quorum.members.iter().map(|member| &member.source);
        let sources: Vec<_> = sources.collect();
        f.debug_struct("QuorumProvider")
            .field("members", &sources)
            .field("namespace", &self.quorum.namespace)
            .finish_non_exhaustive()
    }
}

impl StoreInfo for QuorumProvider {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn location(&self) -> String {
        let members = self.quorum.members.iter();
        let members = members.map(|member| ("member", member.source.location()));
        let query: Vec<_> = members
            .chain([("namespace", self.quorum.namespace.as_str())])
            .collect();
        StoreUrl::location("quorum:", "", &query)
    }

    fn capabilities(&self) -> Capabilities {
        self.quorum.capabilities
    }

    fn usage(&self) -> Option<Usage> {
        let stores = self
            .quorum
            .members
            .iter()
            .filter_map(|member| member.opened());
        let used = stores.filter_map(|store| store.usage());
        Some(used.fold(Usage::default(), |all, it| Usage {
            commands: all.commands + it.commands,
            connections: all.connections + it.connections,
        }))
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.quorum)
    }
}

impl Backend for QuorumProvider {
    type Lease = QuorumLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<QuorumLease>>, Error> {
        self.quorum.check_ttl(request.ttl())?;
        Acquisition::new(&self.quorum, request).run()
    }

    /// Asks for all renewals before it waits for the first answer.
    fn batch(&self, operations: &mut [Operation<'_, QuorumLease>]) {
        let quorum = &self.quorum;
        let mut asked = Vec::new();
        for (at, operation) in operations.iter_mut().enumerate() {
            match operation {
                Operation::Renew(it) => {
                    let renewal = quorum.ask_renewal(&it.lease.hold, it.ttl, it.deadline);
                    asked.push((at, renewal));
                }
                Operation::Acquire(it) => it.answer = Some(Backend::acquire(self, it.request)),
                Operation::Release(it) => {
                    it.answer = Some(quorum.release(it.lease, it.deadline));
                }
            }
        }
        for (at, renewal) in asked {
            if let Some(Operation::Renew(it)) = operations.get_mut(at) {
                it.answer = Some(renewal.and_then(|asked| quorum.renewed(&asked)));
            }
        }
    }

    /// Posts the releases to the threads of the members. A thread of the keeper waits for the answers of a majority.
    fn send_release(&self, lease: &mut QuorumLease) -> ReleaseDispatch {
        let (quorum, hold) = (&self.quorum, &lease.hold);
        let deadline = quorum.clock.now() + GIVE_BACK;
        quorum.post_releases(hold, hold.begin_release(), deadline);
        lease.is_dropped = true;
        ReleaseDispatch::NotSent
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        for member in &self.quorum.members {
            member.watch_leases(verifier.clone());
        }
    }
}
