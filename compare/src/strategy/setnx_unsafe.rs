//! `SET key value NX`, and `DEL key` when done: the first recipe that most programs try.
//!
//! There is no time to live unless the program sets one, so a program that crashes keeps the lock
//! forever. With one, the lock can expire during the work. The value does not say which process
//! holds the lock, so the late holder's `DEL` then frees another holder's lock. Nothing renews it.

use std::time::Duration;

use lockkeeper::LeasePolicy;
use redis::cmd;

use super::lock::{Held, Lock, LockRequest};
use super::redis::{Client, LeftKeys, milliseconds};
use crate::error::Error;

/// Between two attempts, as in the write-up.
const PACE: Duration = Duration::from_millis(100);

pub(super) struct SetnxUnsafe {
    client: Client,
    used: LeftKeys,
}

impl SetnxUnsafe {
    pub(super) fn new(client: Client) -> Self {
        let used = LeftKeys::new(&client);
        Self { client, used }
    }
}

impl Lock for SetnxUnsafe {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let mut set = cmd("SET");
        set.arg(name).arg("locked").arg("NX");
        if let LeasePolicy::Fixed { ttl } = request.lease {
            set.arg("PX").arg(milliseconds(ttl));
        }
        self.used.add(name);
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
