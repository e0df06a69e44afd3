//! A test must be able to fail: stores with one flaw each, and the cases that find it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lockkeeper_conformance::{Fixture, Restore, Suite, Verdict};
use lockkeeper_core::{
    AcquireRequest, Backend, Capabilities, Capability, Clock, Error, ErrorKind, Grant, HostInstant,
    LockProvider, Released, Renewal, SystemClock,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    GrantsAlways,
    FreesTooEarly,
    FreesNever,
    RevivesWhatRanOut,
    ReleasesAnybodys,
    MintsOneEpoch,
    CountsFromOneAgain,
    FoldsCase,
    TrimsNames,
    CutsNames,
    JoinsNamespaces,
    CallsTroubleBusy,
    GivesUpTooEarly,
    WaitsInSilence,
    WakesNobody,
    IgnoresCancel,
    KeepsWaiters,
    KeepsRows,
    ServesAnybodyFirst,
    PromisesAProof,
}

/// Each with the cases that must find it.
const FLAWS: &[(Flaw, &[&str])] = &[
    (
        Flaw::GrantsAlways,
        &[
            "rule_01_exclusion::two_keepers_of_one_process",
            "rule_02_wait::deadlines_in_the_store",
            "rule_02_wait::one_of_hundred_attempts_of_two_keepers_is_granted",
            "rule_07_names::equal_strings_are_the_same_lock",
        ],
    ),
    (
        Flaw::FreesTooEarly,
        &["rule_03_lease::expired_fixed_lease_is_lost_before_the_next_grant"],
    ),
    (
        Flaw::FreesNever,
        &["rule_03_lease::expired_fixed_lease_is_lost_before_the_next_grant"],
    ),
    (
        Flaw::RevivesWhatRanOut,
        &["rule_03_lease::expired_lease_is_not_renewed"],
    ),
    (
        Flaw::ReleasesAnybodys,
        &["rule_03_lease::late_release_keeps_the_next_lease"],
    ),
    (
        Flaw::MintsOneEpoch,
        &[
            "rule_06_fencing::tokens_grow_over_keepers",
            "rule_06_fencing::tokens_grow_after_a_lease_expired",
        ],
    ),
    (
        Flaw::CountsFromOneAgain,
        &["rule_06_fencing::tokens_grow_after_the_store_was_wiped"],
    ),
    (
        Flaw::FoldsCase,
        &["rule_07_names::different_strings_are_different_locks"],
    ),
    (
        Flaw::TrimsNames,
        &["rule_07_names::different_strings_are_different_locks"],
    ),
    (
        Flaw::CutsNames,
        &["rule_07_names::different_strings_are_different_locks"],
    ),
    (
        Flaw::JoinsNamespaces,
        &["rule_07_names::namespaces_are_separate"],
    ),
    (
        Flaw::CallsTroubleBusy,
        &["rule_02_wait::unreachable_store_is_unavailable"],
    ),
    (
        Flaw::GivesUpTooEarly,
        &["rule_02_wait::deadlines_in_the_store"],
    ),
    (
        Flaw::WaitsInSilence,
        &["rule_08_queue::hundred_threads_are_one_waiter_in_the_store"],
    ),
    (
        Flaw::WakesNobody,
        &["rule_09_between_processes::release_wakes_the_other_keeper"],
    ),
    (
        Flaw::IgnoresCancel,
        &["rule_11_cancel::cancel_in_the_store"],
    ),
    (
        Flaw::KeepsWaiters,
        &["rule_09_between_processes::timed_out_waiter_does_not_block_the_next"],
    ),
    (
        Flaw::KeepsRows,
        &["rule_10_resources::released_locks_leave_nothing_in_the_store"],
    ),
    (
        Flaw::ServesAnybodyFirst,
        &["rule_09_between_processes::woken_waiter_is_served_before_the_releaser"],
    ),
    (
        Flaw::PromisesAProof,
        &["rule_06_fencing::commit_proof_matches_the_capability"],
    ),
];

fn check(flaw: Flaw, timeout: Duration, case: &str) -> Verdict {
    let fresh = move || Box::new(Fresh(Store::new(flaw))) as Box<dyn Fixture>;
    Suite::new("flaws", "flawed", fresh)
        .timeout(timeout)
        .check(case)
}

#[test]
fn a_store_without_a_flaw_passes() {
    let mut cases: Vec<_> = FLAWS.iter().flat_map(|(_, cases)| *cases).collect();
    cases.sort_unstable();
    cases.dedup();
    for case in cases {
        let verdict = check(Flaw::None, Duration::from_secs(30), case);
        assert_eq!(verdict, Verdict::Passed, "{case}");
    }
}

#[test]
fn every_flaw_is_found() {
    for (flaw, cases) in FLAWS {
        for case in *cases {
            // Little patience: most flaws show as something that never happens.
            let verdict = check(*flaw, Duration::from_secs(1), case);
            assert!(
                matches!(verdict, Verdict::Failed(_)),
                "{flaw:?} and {case}: {verdict:?}"
            );
        }
    }
}

type Key = (String, String);

#[derive(Debug, Default)]
struct Name {
    holder: Option<(u64, HostInstant)>,
    line: VecDeque<u64>,
}

#[derive(Debug, Default)]
struct Names {
    map: HashMap<Key, Name>,
    last_epoch: u64,
    last_ticket: u64,
    out_of_reach: bool,
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
        if !self.has(Flaw::WakesNobody) {
            self.changed.notify_all();
        }
    }

    fn key(&self, namespace: &str, name: &str) -> Key {
        match self.flaw {
            Flaw::FoldsCase => (namespace.to_owned(), name.to_lowercase()),
            Flaw::TrimsNames => (namespace.to_owned(), name.trim().to_owned()),
            Flaw::CutsNames => (namespace.to_owned(), name.chars().take(192).collect()),
            Flaw::JoinsNamespaces => (String::new(), format!("{namespace}:{name}")),
            _ => (namespace.to_owned(), name.to_owned()),
        }
    }

    fn epoch(&self, names: &mut Names, now: HostInstant) -> u64 {
        let clock = now.as_nanos() / 1_000;
        names.last_epoch = match self.flaw {
            Flaw::MintsOneEpoch => 7,
            Flaw::CountsFromOneAgain => names.last_epoch + 1,
            _ => clock.max(names.last_epoch + 1),
        };
        names.last_epoch
    }

    fn tidy(&self, names: &mut Names, key: &Key) {
        let unused = |name: &Name| name.line.is_empty() && name.holder.is_none();
        if !self.has(Flaw::KeepsRows) && names.map.get(key).is_some_and(unused) {
            names.map.remove(key);
        }
    }

    /// Whether `name` is this lease's, as a renewal or release sees it.
    fn is_own(&self, name: &Name, epoch: u64, flaw: Flaw) -> bool {
        match name.holder {
            Some((holder, until)) => {
                let forgives = self.has(flaw);
                (holder == epoch || forgives && flaw == Flaw::ReleasesAnybodys)
                    && (SystemClock.now() < until || forgives)
            }
            None => false,
        }
    }
}

#[derive(Debug)]
struct Flawed {
    store: Arc<Store>,
    namespace: String,
}

impl Backend for Flawed {
    type Lease = FlawedLease;

    fn backend(&self) -> &'static str {
        "flawed"
    }

    fn location(&self) -> String {
        format!("flawed:{}", self.namespace)
    }

    fn capabilities(&self) -> Capabilities {
        if self.store.has(Flaw::PromisesAProof) {
            return Capabilities::new().with(Capability::CommitProof);
        }
        Capabilities::new()
    }

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<FlawedLease>>, Error> {
        let store = &self.store;
        let also = Arc::clone(store);
        let cancel = request.cancel().filter(|_| !store.has(Flaw::IgnoresCancel));
        let _wake = cancel.map(|cancel| {
            cancel.on_cancel(move || {
                drop(also.lock());
                also.changed.notify_all();
            })
        });
        let key = store.key(&self.namespace, request.name().as_str());
        let mut names = store.lock();
        names.last_ticket += 1;
        let ticket = names.last_ticket;
        let name = names.map.entry(key.clone()).or_default();
        name.line.push_back(ticket);
        loop {
            let now = request.now();
            if names.out_of_reach {
                let line = names.map.get_mut(&key).map(|name| &mut name.line);
                line.into_iter()
                    .for_each(|line| line.retain(|other| *other != ticket));
                store.tidy(&mut names, &key);
                if store.has(Flaw::CallsTroubleBusy) {
                    return Ok(None);
                }
                return Err(Error::new(ErrorKind::Unavailable, "the fixture says so"));
            }
            let name = names.map.entry(key.clone()).or_default();
            let until = name
                .holder
                .map_or(HostInstant::default(), |(_, until)| until);
            let first = store.has(Flaw::ServesAnybodyFirst) || name.line.front() == Some(&ticket);
            let is_free = name.holder.is_none() || until <= now && !store.has(Flaw::FreesNever);
            if is_free && first || store.has(Flaw::GrantsAlways) {
                name.line.retain(|other| *other != ticket);
                let ttl = match store.flaw {
                    Flaw::FreesTooEarly => request.ttl() / 2,
                    _ => request.ttl(),
                };
                let epoch = store.epoch(&mut names, now);
                let name = names.map.entry(key.clone()).or_default();
                name.holder = Some((epoch, now + ttl));
                return Ok(Some(Grant {
                    lease: FlawedLease { key, epoch },
                    epoch,
                    asked_at: now,
                }));
            }
            let mut deadline = request.deadline().unwrap_or_default();
            if store.has(Flaw::GivesUpTooEarly) {
                deadline = deadline - Duration::from_millis(30);
            }
            if cancel.is_some_and(|cancel| cancel.is_cancelled()) || deadline <= now {
                if !store.has(Flaw::KeepsWaiters) {
                    name.line.retain(|other| *other != ticket);
                }
                store.tidy(&mut names, &key);
                store.wake();
                return Ok(None);
            }
            if !store.has(Flaw::WaitsInSilence) {
                request.contended();
            }
            let next = if until > now {
                until.min(deadline)
            } else {
                deadline
            };
            let waited = store
                .changed
                .wait_timeout(names, next.saturating_since(now));
            names = waited.unwrap_or_else(PoisonError::into_inner).0;
            if store.has(Flaw::ServesAnybodyFirst) {
                // Whoever has to be woken first comes late; here surely so.
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
        let mut names = self.store.lock();
        match names.map.get_mut(&lease.key) {
            Some(name)
                if self
                    .store
                    .is_own(name, lease.epoch, Flaw::RevivesWhatRanOut) =>
            {
                name.holder = Some((lease.epoch, SystemClock.now() + ttl));
                Ok(Renewal::Renewed)
            }
            _ => Ok(Renewal::Lost),
        }
    }

    fn release(&self, lease: &mut FlawedLease, _: HostInstant) -> Result<Released, Error> {
        let mut names = self.store.lock();
        let released = match names.map.get_mut(&lease.key) {
            Some(name) if self.store.is_own(name, lease.epoch, Flaw::ReleasesAnybodys) => {
                name.holder = None;
                Released::Done
            }
            _ => Released::AlreadyLost,
        };
        self.store.tidy(&mut names, &lease.key);
        self.store.wake();
        Ok(released)
    }
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
        self.0.lock().out_of_reach = true;
        let store = Arc::clone(&self.0);
        Some(Restore::new(move || store.lock().out_of_reach = false))
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
