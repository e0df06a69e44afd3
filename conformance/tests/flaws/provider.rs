//! The provider of a store with a flaw, and the fixture.

use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use lockkeeper_conformance::{Fixture, Restore};
use lockkeeper_core::{
    AcquireRequest, Admin, Backend, Capabilities, Capability, Clock, Error, ErrorKind, Finding,
    Grant, HeldName, HostInstant, LockName, LockProvider, Mode, Operation, Released, Renewal,
    StoreInfo, SystemClock,
};

use crate::Flaw::*;
use crate::store::{FlawedLease, Holder, Name, Store};

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
        let capabilities = Capabilities::new()
            .with(Capability::Shared)
            .with(Capability::Permits);
        match self.store.flaw {
            PromisesAProof => capabilities.with(Capability::CommitProof),
            _ => capabilities,
        }
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

impl Flawed {
    fn renew(&self, lease: &FlawedLease, ttl: Duration) -> Result<Renewal, Error> {
        let until = SystemClock.now() + ttl;
        let is_held = self
            .store
            .change(lease, RenewsExpiredLeases, |holders, own| {
                let mode = holders[own].mode;
                if !self.store.has(RenewsWritersAlone) || mode == Mode::Exclusive {
                    holders[own].until = until;
                }
            });
        match is_held {
            true => Ok(Renewal::Renewed),
            false => Ok(Renewal::Lost),
        }
    }

    fn release(&self, lease: &FlawedLease) -> Result<Released, Error> {
        let store = &self.store;
        let names = store.lock();
        if names.is_unreachable {
            return match store.flaw {
                ReportsOutageAsLost => Ok(Released::AlreadyLost),
                _ => Err(unreachable()),
            };
        }
        drop(names);
        let was_held = store.change(lease, ReleasesLeasesOfOthers, |holders, own| {
            match (store.flaw, holders[own].mode) {
                (LeaksReaders, Mode::Shared) => {}
                (ReleasesAllHolders, _) => holders.clear(),
                _ => drop(holders.remove(own)),
            }
        });
        store.wake();
        match was_held {
            true => Ok(Released::Done),
            false => Ok(Released::AlreadyLost),
        }
    }
}

impl Backend for Flawed {
    type Lease = FlawedLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<FlawedLease>>, Error> {
        let (store, mode) = (&self.store, request.mode());
        let woken = Arc::clone(store);
        let cancel = request.cancel().filter(|_| !store.has(IgnoresCancel));
        let _wake = cancel.map(|cancel| {
            cancel.on_cancel(move || {
                drop(woken.lock());
                woken.changed.notify_all();
            })
        });
        let key = store.key(&self.namespace, request.name().as_str(), mode);
        let mut names = store.lock();
        let ticket = names.queue(&key);
        let mut has_waited = false;
        loop {
            let now = request.now();
            let is_unreachable = names.is_unreachable;
            let name = names.map.entry(key.clone()).or_default();
            let is_live = |holder: &Holder| now < holder.until || store.has(FreesNever);
            name.holders.retain(is_live);
            let ends = name.holders.iter().map(|holder| holder.until).min();
            let is_first = name.queue.front() == Some(&ticket)
                || store.has(IgnoresOrder)
                || store.has(LetsReadersPass) && mode == Mode::Shared
                || store.has(LetsWritersPass) && mode == Mode::Exclusive;
            let is_held_back =
                store.has(LetsWritersPass) && mode == Mode::Shared && name.queue.len() > 1;
            let is_alone = name.holders.is_empty() || !has_waited;
            let may_come =
                is_first && !is_held_back && (is_alone || !store.has(ServesWaitersAlone));
            let slot = store.admit(&name.holders, mode);
            let is_granted = matches!(slot, Ok(Some(_))) && (may_come || store.has(GrantsAlways));
            let mut deadline = request.deadline().unwrap_or_default();
            if store.has(GivesUpTooEarly) {
                deadline = deadline - Duration::from_millis(30);
            }
            let is_over = cancel.is_some_and(|cancel| cancel.is_cancelled()) || deadline <= now;
            let is_refused = is_unreachable || slot.is_err();
            if is_refused || is_granted || is_over && !store.has(KeepsWaiters) {
                name.queue.retain(|other| *other != ticket);
            }
            if is_refused {
                store.tidy(&mut names, &key);
                return match store.flaw {
                    ReportsOutageAsBusy if is_unreachable => Ok(None),
                    _ => Err(slot.err().unwrap_or_else(unreachable)),
                };
            }
            if is_granted {
                let slot = slot?.unwrap_or_default();
                let epoch = store.epoch(&mut names, mode, now);
                let halved = u32::from(store.has(FreesTooEarly)) + 1;
                let name = names.map.entry(key.clone()).or_default();
                name.holders.push(Holder {
                    epoch,
                    until: now + request.ttl() / halved,
                    mode,
                    slot,
                });
                // The next waiter may be granted beside it.
                store.wake();
                return Ok(Some(Grant {
                    lease: FlawedLease { key, epoch },
                    epoch,
                    asked_at: now,
                    slot,
                }));
            }
            if is_over {
                store.tidy(&mut names, &key);
                if !store.has(WakesNoneAfterTimeouts) {
                    store.wake();
                }
                return Ok(None);
            }
            if !store.has(ReportsNoContention) {
                request.contended();
            }
            let next = ends.filter(|ends| *ends > now).unwrap_or(deadline);
            let left = next.min(deadline).saturating_since(now);
            has_waited = true;
            let waited = store.changed.wait_timeout(names, left);
            names = waited.unwrap_or_else(PoisonError::into_inner).0;
            if let IgnoresOrder | LetsReadersPass | LetsWritersPass = store.flaw {
                // The first waiter comes late, so that others surely come before it.
                drop(names);
                thread::sleep(Duration::from_millis(5));
                names = store.lock();
            }
        }
    }

    fn batch(&self, batch: &mut [Operation<'_, FlawedLease>]) {
        for operation in batch {
            match operation {
                Operation::Acquire(it) => it.answer = Some(Backend::acquire(self, it.request)),
                Operation::Renew(it) => it.answer = Some(self.renew(it.lease, it.ttl)),
                Operation::Release(it) => it.answer = Some(self.release(it.lease)),
            }
        }
    }
}

impl Admin for Flawed {
    fn held(&self, name: Option<&LockName>, _: HostInstant) -> Result<Vec<HeldName>, Error> {
        let names = self.store.lock();
        let is_asked = |text: &str| name.is_none_or(|name| name.as_str() == text);
        let asked = names.map.iter().filter(|(key, _)| is_asked(&key.1));
        let held = asked.flat_map(|((_, name, is_permit), of)| {
            of.holders.iter().map(move |holder| HeldName {
                mode: holder.mode,
                slot: is_permit.then_some(holder.slot),
                epoch: Some(holder.epoch),
                ..HeldName::new(name.as_str(), holder.epoch.to_string())
            })
        });
        Ok(held.collect())
    }

    fn force_release(&self, held: &HeldName, _: HostInstant) -> Result<bool, Error> {
        let store = &self.store;
        let lease = FlawedLease {
            key: store.key(&self.namespace, &held.name, held.mode),
            epoch: held.epoch.unwrap_or_default(),
        };
        let was_held = store.change(&lease, Sound, |holders, own| match store.flaw {
            UnlocksAllHolders => holders.clear(),
            _ => drop(holders.remove(own)),
        });
        store.wake();
        Ok(was_held)
    }

    fn examine(&self, _: HostInstant) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

fn unreachable() -> Error {
    Error::new(ErrorKind::Unavailable, "the fixture says so")
}

pub(crate) struct Fresh(pub(crate) Arc<Store>);

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
        let (names, now) = (self.0.lock(), SystemClock.now());
        // An expired lease may stay until its name is acquired again.
        let is_left = |name: &Name| {
            name.holders.is_empty() || name.holders.iter().any(|holder| now < holder.until)
        };
        let left = names.map.iter().filter(|(_, name)| is_left(name));
        Some(left.map(|(key, _)| format!("{key:?}")).collect())
    }
}
