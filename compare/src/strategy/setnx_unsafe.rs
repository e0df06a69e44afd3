//! `SET key value NX`, and `DEL key` when done: the first recipe that most programs try.
//!
//! There is no time to live unless the program sets one, so a program that crashes keeps the lock
//! forever. With one, the lock can expire during the work. The value does not say which process
//! holds the lock, so the late holder's `DEL` then frees another holder's lock. Nothing renews it.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper::LeasePolicy;
use parking_lot::Mutex;
use redis::cmd;

use super::lock::{Held, Lock, LockRequest};
use super::redis::{Client, milliseconds};
use crate::error::Error;

/// Between two attempts, as in the write-up.
const PACE: Duration = Duration::from_millis(100);

pub(super) struct SetnxUnsafe {
    client: Client,
    /// All keys that were ever set: a comparison leaves nothing on the server, though the recipe
    /// does.
    keys: Mutex<BTreeSet<String>>,
}

impl SetnxUnsafe {
    pub(super) fn new(client: Client) -> Self {
        let keys = Mutex::default();
        Self { client, keys }
    }
}

impl Lock for SetnxUnsafe {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let mut set = cmd("SET");
        set.arg(name).arg("locked").arg("NX");
        if let LeasePolicy::Fixed { ttl } = request.lease {
            set.arg("PX").arg(milliseconds(ttl));
        }
        self.keys.lock().insert(name.to_owned());
        self.client.cancel.retry(
            request.wait,
            || PACE,
            |_| {
                let is_set = self.client.send::<bool>(&set)?;
                Ok(is_set.then(|| {
                    let (client, name) = (self.client.clone(), name.to_owned());
                    // Whichever process holds the lock by then.
                    Held::new(move || Ok(client.send(cmd("DEL").arg(name))?))
                }))
            },
        )
    }
}

impl Drop for SetnxUnsafe {
    fn drop(&mut self) {
        for name in self.keys.get_mut().iter() {
            // If the server is gone, the key is gone, too.
            let _ = self.client.send::<()>(cmd("DEL").arg(name));
        }
    }
}
