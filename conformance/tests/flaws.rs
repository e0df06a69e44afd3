//! A test must be able to fail: stores with one flaw each, and the cases that find it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lockkeeper_conformance::{Fixture, Restore, Suite, Verdict};
use lockkeeper_core::{
    AcquireRequest, Backend, Capabilities, Capability, Clock, Error, ErrorKind, Grant, HostInstant,
    LockProvider, Released, Renewal, StoreInfo, SystemClock,
};

use Flaw::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    Sound,
    GrantsAlways,
    FreesTooEarly,
    FreesNever,
    RenewsExpiredLeases,
    ReleasesLeasesOfOthers,
    MintsOneEpoch,
    CountsFromOneAgain,
    FoldsCase,
    TrimsNames,
    CutsNames,
    JoinsNamespaces,
    ReportsOutageAsBusy,
    GivesUpTooEarly,
    ReportsNoContention,
    WakesNoWaiter,
    IgnoresCancel,
    KeepsWaiters,
    KeepsRows,
    IgnoresOrder,
    PromisesAProof,
    ReportsOutageAsLost,
    IgnoresReleaseDeadline,
}

/// Returns the flaws that a case must find.
fn flaws_found_by(case: &str) -> &'static [Flaw] {
    match case {
        "rule_01_exclusion::two_keepers_of_one_process" => &[GrantsAlways],
        "rule_02_wait::deadlines_in_the_store" => &[GrantsAlways, GivesUpTooEarly],
        "rule_02_wait::one_of_hundred_attempts_of_two_keepers_is_granted" => &[GrantsAlways],
        "rule_02_wait::unreachable_store_is_unavailable" => &[ReportsOutageAsBusy],
        "rule_03_lease::expired_fixed_lease_is_lost_before_the_next_grant" => {
            &[FreesTooEarly, FreesNever]
        }
        "rule_03_lease::expired_lease_is_not_renewed" => &[RenewsExpiredLeases],
        "rule_03_lease::late_release_keeps_the_next_lease" => &[ReleasesLeasesOfOthers],
        "rule_06_fencing::commit_proof_matches_the_capability" => &[PromisesAProof],
        "rule_06_fencing::tokens_grow_after_a_lease_expired" => &[MintsOneEpoch],
        "rule_06_fencing::tokens_grow_after_the_store_was_wiped" => &[CountsFromOneAgain],
        "rule_06_fencing::tokens_grow_over_keepers" => &[MintsOneEpoch],
        "rule_07_names::different_strings_are_different_locks" => {
            &[FoldsCase, TrimsNames, CutsNames]
        }
        "rule_07_names::equal_strings_are_the_same_lock" => &[GrantsAlways],
        "rule_07_names::namespaces_are_separate" => &[JoinsNamespaces],
        "rule_08_queue::hundred_threads_are_one_waiter_in_the_store" => &[ReportsNoContention],
        "rule_09_between_processes::release_wakes_the_other_keeper" => &[WakesNoWaiter],
        "rule_09_between_processes::timed_out_waiter_does_not_block_the_next" => &[KeepsWaiters],
        "rule_09_between_processes::woken_waiter_is_served_before_the_releaser" => &[IgnoresOrder],
        "rule_10_resources::released_locks_leave_nothing_in_the_store" => &[KeepsRows],
        "rule_11_cancel::cancel_in_the_store" => &[IgnoresCancel],
        "rule_11_cancel::close_ends_the_waits_of_a_keeper" => &[IgnoresCancel],
        "rule_14_outage::wait_ends_in_an_outage_or_outlasts_it"
        | "rule_14_outage::one_attempt_in_an_outage_fails"
        | "rule_14_outage::outage_fail_returns_at_the_first_failure" => &[ReportsOutageAsBusy],
        "rule_15_drop::drop_in_an_outage_is_finished_after_it" => {
            &[ReportsOutageAsLost, IgnoresReleaseDeadline]
        }
        _ => &[],
    }
}

/// The number of flaws in [`flaws_found_by`], which a case that was renamed would lower.
const FOUND: usize = 30;

fn check(flaw: Flaw, timeout: Duration, case: &str) -> Verdict {
    let fresh = move || Box::new(Fresh(Store::new(flaw))) as Box<dyn Fixture>;
    let suite = Suite::new("flaws", "flawed", fresh);
    suite.timeout(timeout).check(case)
}

#[test]
fn store_without_a_flaw_passes() {
    for case in Suite::cases().filter(|case| !flaws_found_by(case).is_empty()) {
        let verdict = check(Sound, Duration::from_secs(30), case);
        assert_eq!(verdict, Verdict::Passed, "{case}");
    }
}

#[test]
fn every_flaw_is_found() {
    let flaws = |case| flaws_found_by(case).iter().map(move |flaw| (case, *flaw));
    let found = Suite::cases().flat_map(flaws).map(|(case, flaw)| {
        // A short time-out: most flaws show as an event that never comes.
        let verdict = check(flaw, Duration::from_secs(1), case);
        let is_found = matches!(verdict, Verdict::Failed(_));
        assert!(is_found, "{flaw:?} and {case}: {verdict:?}");
    });
    assert_eq!(found.count(), FOUND);
}

type Key = (String, String);

#[derive(Debug, Default)]
struct Name {
    holder: Option<(u64, HostInstant)>,
    queue: VecDeque<u64>,
}

#[derive(Debug, Default)]
struct Names {
    map: HashMap<Key, Name>,
    last_epoch: u64,
    last_ticket: u64,
    is_unreachable: bool,
}

#[derive(Debug)]
struct Store {
    flaw: Flaw,
    names: Mutex<Names>,
    changed: Condvar,
}

impl Store {
    fn new(flaw: Flaw) -> Arc<Self> {
        Arc::new(Self {
            flaw,
            names: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn wake(&self) {
        if !self.has(WakesNoWaiter) {
            self.changed.notify_all();
        }
    }

    fn key(&self, namespace: &str, name: &str) -> Key {
        match self.flaw {
            FoldsCase => (namespace.to_owned(), name.to_lowercase()),
            TrimsNames => (namespace.to_owned(), name.trim().to_owned()),
            CutsNames => (namespace.to_owned(), name.chars().take(192).collect()),
            JoinsNamespaces => (String::new(), format!("{namespace}:{name}")),
            _ => (namespace.to_owned(), name.to_owned()),
        }
    }

    fn epoch(&self, names: &mut Names, now: HostInstant) -> u64 {
        names.last_epoch = match self.flaw {
            MintsOneEpoch => 7,
            CountsFromOneAgain => names.last_epoch + 1,
            _ => (now.as_nanos() / 1_000).max(names.last_epoch + 1),
        };
        names.last_epoch
    }

    /// Removes a name that is neither held nor waited for.
    fn tidy(&self, names: &mut Names, key: &Key) {
        let unused = |name: &Name| name.queue.is_empty() && name.holder.is_none();
        if !self.has(KeepsRows) && names.map.get(key).is_some_and(unused) {
            names.map.remove(key);
        }
    }

    /// Sets the holder of a name if `lease` is valid, and returns whether it is. A store with `flaw`
    /// does not check that.
    fn set_holder(
        &self,
        lease: &FlawedLease,
        flaw: Flaw,
        holder: Option<(u64, HostInstant)>,
    ) -> bool {
        let mut names = self.lock();
        let is_valid = |(epoch, until): (u64, HostInstant)| {
            let is_own = epoch == lease.epoch || flaw == ReleasesLeasesOfOthers;
            is_own && self.has(flaw) || epoch == lease.epoch && SystemClock.now() < until
        };
        let name = names.map.get_mut(&lease.key);
        let name = name.filter(|name| name.holder.is_some_and(is_valid));
        let is_held = name.map(|name| name.holder = holder).is_some();
        self.tidy(&mut names, &lease.key);
        is_held
    }
}

#[derive(Debug)]
struct Flawed {
    store: Arc<Store>,
    namespace: String,
}

impl StoreInfo for Flawed {
    fn backend(&self) -> &'static str {
        "flawed"
    }

    fn location(&self) -> String {
        format!("flawed:{}", self.namespace)
    }

    fn capabilities(&self) -> Capabilities {
        match self.store.flaw {
            PromisesAProof => Capabilities::new().with(Capability::CommitProof),
            _ => Capabilities::new(),
        }
    }
}

impl Backend for Flawed {
    type Lease = FlawedLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<FlawedLease>>, Error> {
        let store = &self.store;
        let woken = Arc::clone(store);
        let cancel = request.cancel().filter(|_| !store.has(IgnoresCancel));
        let _wake = cancel.map(|cancel| {
            cancel.on_cancel(move || {
                drop(woken.lock());
                woken.changed.notify_all();
            })
        });
        let key = store.key(&self.namespace, request.name().as_str());
        let mut names = store.lock();
        names.last_ticket += 1;
        let ticket = names.last_ticket;
        let name = names.map.entry(key.clone()).or_default();
        name.queue.push_back(ticket);
        loop {
            let now = request.now();
            let is_unreachable = names.is_unreachable;
            let name = names.map.entry(key.clone()).or_default();
            let until = name.holder.map_or(now, |(_, until)| until);
            let is_first = store.has(IgnoresOrder) || name.queue.front() == Some(&ticket);
            let is_free = name.holder.is_none() || until <= now && !store.has(FreesNever);
            let is_granted = is_free && is_first || store.has(GrantsAlways);
            let mut deadline = request.deadline().unwrap_or_default();
            if store.has(GivesUpTooEarly) {
                deadline = deadline - Duration::from_millis(30);
            }
            let is_over = cancel.is_some_and(|cancel| cancel.is_cancelled()) || deadline <= now;
            if is_unreachable || is_granted || is_over && !store.has(KeepsWaiters) {
                name.queue.retain(|other| *other != ticket);
            }
            if is_unreachable {
                store.tidy(&mut names, &key);
                return match store.flaw {
                    ReportsOutageAsBusy => Ok(None),
                    _ => Err(unreachable()),
                };
            }
            if is_granted {
                let epoch = store.epoch(&mut names, now);
                let halved = u32::from(store.has(FreesTooEarly)) + 1;
                let holder = Some((epoch, now + request.ttl() / halved));
                names.map.entry(key.clone()).or_default().holder = holder;
                return Ok(Some(Grant {
                    lease: FlawedLease { key, epoch },
                    epoch,
                    asked_at: now,
                    slot: 0,
                }));
            }
            if is_over {
                store.tidy(&mut names, &key);
                store.wake();
                return Ok(None);
            }
            if !store.has(ReportsNoContention) {
                request.contended();
            }
            let next = match until > now {
                true => until.min(deadline),
                false => deadline,
            };
            let left = next.saturating_since(now);
            let waited = store.changed.wait_timeout(names, left);
            names = waited.unwrap_or_else(PoisonError::into_inner).0;
            if store.has(IgnoresOrder) {
                // The first waiter comes late, so that others surely come before it.
                drop(names);
                thread::sleep(Duration::from_millis(5));
                names = store.lock();
            }
        }
    }

    fn renew(
        &self,
        lease: &mut FlawedLease,
        ttl: Duration,
        _: HostInstant,
    ) -> Result<Renewal, Error> {
        let holder = Some((lease.epoch, SystemClock.now() + ttl));
        match self.store.set_holder(lease, RenewsExpiredLeases, holder) {
            true => Ok(Renewal::Renewed),
            false => Ok(Renewal::Lost),
        }
    }

    fn release(&self, lease: &mut FlawedLease, _: HostInstant) -> Result<Released, Error> {
        let mut names = self.store.lock();
        while names.is_unreachable {
            match self.store.flaw {
                ReportsOutageAsLost => return Ok(Released::AlreadyLost),
                IgnoresReleaseDeadline => {
                    let waited = self.store.changed.wait(names);
                    names = waited.unwrap_or_else(PoisonError::into_inner);
                }
                _ => return Err(unreachable()),
            }
        }
        drop(names);
        let was_held = self.store.set_holder(lease, ReleasesLeasesOfOthers, None);
        self.store.wake();
        match was_held {
            true => Ok(Released::Done),
            false => Ok(Released::AlreadyLost),
        }
    }
}

fn unreachable() -> Error {
    Error::new(ErrorKind::Unavailable, "the fixture says so")
}

#[derive(Debug)]
struct FlawedLease {
    key: Key,
    epoch: u64,
}

struct Fresh(Arc<Store>);

impl Fixture for Fresh {
    fn open(&self, namespace: &str) -> Result<Arc<dyn LockProvider>, Error> {
        Ok(Arc::new(Flawed {
            store: Arc::clone(&self.0),
            namespace: namespace.to_owned(),
        }))
    }

    fn cut_off(&self) -> Option<Restore> {
        self.0.lock().is_unreachable = true;
        let store = Arc::clone(&self.0);
        Some(Restore::new(move || {
            store.lock().is_unreachable = false;
            store.changed.notify_all();
        }))
    }

    fn wipe(&self) -> bool {
        let mut names = self.0.lock();
        names.map.clear();
        names.last_epoch = 0;
        true
    }

    fn leftovers(&self) -> Option<Vec<String>> {
        let names = self.0.lock();
        Some(names.map.keys().map(|key| format!("{key:?}")).collect())
    }
}
