//! `SET key value NX`, and `DEL key` when done: the first thing that everybody tries.
//!
//! There is no time to live unless the program says one, and whoever crashes keeps the lock for
//! ever. With one, the lock can run out during the work; and since the value says nothing about who
//! holds, the late holder's `DEL` then frees somebody else's lock. Nothing renews it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::{CancelToken, LeasePolicy};
use redis::cmd;

use super::lock::{Held, Lock, Terms};
use super::redis::{Shared, milliseconds, spin};
use crate::error::Failure;
use crate::store::redis::Door;

/// Between two attempts, as in the write-up.
const PACE: Duration = Duration::from_millis(100);

/// `SET NX` and `DEL`.
#[derive(Debug)]
pub(crate) struct SetnxUnsafe {
    shared: Arc<Shared>,
    stop: CancelToken,
    /// All that were ever taken: this comparison leaves nothing on the server, though the recipe
    /// does.
    taken: Mutex<BTreeSet<String>>,
}

impl SetnxUnsafe {
    /// Connects.
    pub(crate) fn open(door: &Door, stop: &CancelToken) -> Result<Self, Failure> {
        Ok(Self {
            shared: Arc::new(Shared::open(door)?),
            stop: stop.clone(),
            taken: Mutex::default(),
        })
    }
}

impl Lock for SetnxUnsafe {
    fn take(&self, name: &str, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure> {
        let mut set = cmd("SET");
        set.arg(name).arg("locked").arg("NX");
        if let LeasePolicy::Fixed { ttl } = terms.lease {
            set.arg("PX").arg(milliseconds(ttl));
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.insert(name.to_owned());
        drop(taken);
        spin(
            terms,
            || PACE,
            &self.stop,
            || {
                Ok(self.shared.ask::<bool>(&set)?.then(|| {
                    Box::new(Hold {
                        shared: Arc::clone(&self.shared),
                        name: name.to_owned(),
                        free: false,
                    }) as Box<dyn Held>
                }))
            },
        )
    }
}

impl Drop for SetnxUnsafe {
    fn drop(&mut self) {
        let taken = self.taken.get_mut().unwrap_or_else(PoisonError::into_inner);
        for name in std::mem::take(taken) {
            // Where the server is gone, the key is, too.
            let _ = self.shared.ask::<()>(cmd("DEL").arg(name));
        }
    }
}

struct Hold {
    shared: Arc<Shared>,
    name: String,
    free: bool,
}

impl Hold {
    fn delete(&mut self) -> Result<(), Failure> {
        // Whoever holds it by now.
        self.free = true;
        Ok(self.shared.ask(cmd("DEL").arg(&self.name))?)
    }
}

impl Held for Hold {
    fn release(mut self: Box<Self>) -> Result<(), Failure> {
        self.delete()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.free {
            let _ = self.delete();
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hold").field(&self.name).finish()
    }
}
