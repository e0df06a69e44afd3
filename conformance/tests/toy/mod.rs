//! A whole store: locks in a map of this process.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_core::*;

type Key = (String, String);
/// A name's holder and behind it those who wait: each an epoch, and until when it stands.
type Line = VecDeque<(u64, Moment)>;

/// The last epoch, and the line of every name in use.
#[derive(Debug, Default)]
pub(crate) struct Store {
    names: Mutex<(u64, HashMap<Key, Line>)>,
    changed: Condvar,
}

/// The store, and a namespace in it.
#[derive(Debug)]
pub(crate) struct Toy(pub(crate) Arc<Store>, pub(crate) String);

impl LockProvider for Toy {
    fn backend(&self) -> &'static str {
        "toy"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }
    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant>, Error> {
        let key = (self.1.clone(), request.name().to_string());
        let mut names = self.0.names.lock().unwrap_or_else(PoisonError::into_inner);
        // Who comes first is served first, so a place in line is an epoch too.
        names.0 = (names.0 + 1).max(request.now().as_nanos() / 1_000);
        let (me, deadline) = (names.0, request.deadline().unwrap_or_default());
        names
            .1
            .entry(key.clone())
            .or_default()
            .push_back((me, Moment::NEVER));
        loop {
            let (asked_at, line) = (request.now(), names.1.entry(key.clone()).or_default());
            line.retain(|(_, until)| asked_at < *until);
            if let Some((first, until)) = line.front_mut()
                && *first == me
            {
                *until = asked_at + request.ttl();
                let lease = Box::new(ToyLease(Arc::clone(&self.0), key, me));
                return Ok(Some(Grant { lease, asked_at }));
            }
            request.contended();
            if request.is_cancelled() || deadline <= asked_at {
                line.retain(|(other, _)| *other != me);
                return Ok(None);
            }
            let look = deadline
                .saturating_since(asked_at)
                .min(Duration::from_millis(50));
            let woken = self.0.changed.wait_timeout(names, look);
            names = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[derive(Debug)]
struct ToyLease(Arc<Store>, Key, u64);

impl ToyLease {
    /// Moves the end of this lease, and says whether it had not come yet.
    fn end_at(&self, end: Moment) -> bool {
        let mut names = self.0.names.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(line) = names.1.get_mut(&self.1) else {
            return false;
        };
        line.retain(|(_, until)| SystemClock.now() < *until);
        let own = line.front_mut().filter(|(first, _)| *first == self.2);
        let live = own.map(|(_, until)| *until = end).is_some();
        line.retain(|(_, until)| SystemClock.now() < *until);
        if line.is_empty() {
            names.1.remove(&self.1);
        }
        self.0.changed.notify_all();
        live
    }
}

impl Lease for ToyLease {
    fn epoch(&self) -> u64 {
        self.2
    }
    fn renew(&mut self, ttl: Duration, _: Moment) -> Result<Renewal, Error> {
        let live = self.end_at(SystemClock.now() + ttl);
        Ok(if live {
            Renewal::Renewed
        } else {
            Renewal::Lost
        })
    }
    fn release(self: Box<Self>, _: Moment) -> Result<Released, Error> {
        let live = self.end_at(Moment::default());
        Ok(if live {
            Released::Done
        } else {
            Released::AlreadyLost
        })
    }
}
