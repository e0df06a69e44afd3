//! `SET key value NX`, and `DEL key` when done: the first recipe that most programs try.
//!
//! There is no time to live unless the program sets one, so a program that crashes keeps the lock
//! forever. With one, the lock can expire during the work. The value does not say which process
//! holds the lock, so the late holder's `DEL` then frees another holder's lock. Nothing renews it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::LeasePolicy;
use redis::cmd;

use super::lock::{Held, Lock, LockRequest, held};
use super::redis::{SharedConnection, milliseconds, spin};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::redis::client::RedisConfig;

/// Between two attempts, as in the write-up.
const PACE: Duration = Duration::from_millis(100);

/// `SET NX` and `DEL`.
pub(crate) struct SetnxUnsafe {
    connection: Arc<SharedConnection>,
    cancel: Cancellation,
    /// All keys that were ever set: a comparison leaves nothing on the server, though the recipe
    /// does.
    keys: Mutex<BTreeSet<String>>,
}

impl SetnxUnsafe {
    /// Connects.
    pub(crate) fn open(config: &RedisConfig, cancel: &Cancellation) -> Result<Self, Error> {
        Ok(Self {
            connection: Arc::new(SharedConnection::open(config)?),
            cancel: cancel.clone(),
            keys: Mutex::default(),
        })
    }
}

impl Lock for SetnxUnsafe {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Box<dyn Held>>, Error> {
        let mut set = cmd("SET");
        set.arg(name).arg("locked").arg("NX");
        if let LeasePolicy::Fixed { ttl } = request.lease {
            set.arg("PX").arg(milliseconds(ttl));
        }
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.insert(name.to_owned());
        drop(keys);
        let attempt = || {
            let is_set = self.connection.send::<bool>(&set)?;
            Ok(is_set.then(|| {
                let (connection, name) = (Arc::clone(&self.connection), name.to_owned());
                // Whichever process holds the lock by then.
                held(move || Ok(connection.send(cmd("DEL").arg(name))?))
            }))
        };
        spin(request, || PACE, &self.cancel, attempt)
    }
}

impl Drop for SetnxUnsafe {
    fn drop(&mut self) {
        let keys = self.keys.get_mut().unwrap_or_else(PoisonError::into_inner);
        for name in std::mem::take(keys) {
            // If the server is gone, the key is gone, too.
            let _ = self.connection.send::<()>(cmd("DEL").arg(name));
        }
    }
}
