//! A counter of permits: `INCR`, and `DECR` when done, or at once if the counter is above the limit. Tried
//! every 100 ms.
//!
//! The counter does not say which process holds a permit, and has no time to live. The permits of a process
//! that died stay counted forever, and each such process leaves fewer for the others.

use std::time::Duration;

use redis::cmd;

use super::lock::{Held, Lock, LockRequest};
use super::redis::{Client, LeftKeys};
use crate::error::Error;

/// Between two attempts, as the spin locks have it.
const PACE: Duration = Duration::from_millis(100);

pub(super) struct IncrDecr {
    client: Client,
    used: LeftKeys,
}

impl IncrDecr {
    pub(super) fn new(client: Client) -> Self {
        let used = LeftKeys::new(&client);
        Self { client, used }
    }
}

impl Lock for IncrDecr {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        // An exclusive lock is one permit.
        let limit = i64::from(request.mode.limit().unwrap_or(1));
        self.used.add(name);
        self.client.cancel.retry(
            request.wait,
            || PACE,
            |_| {
                let counted: i64 = self.client.send(cmd("INCR").arg(name))?;
                let (client, name) = (self.client.clone(), name.to_owned());
                let held = Held::new(move || Ok(client.send(cmd("DECR").arg(name))?));
                if counted <= limit {
                    return Ok(Some(held));
                }
                held.release()?;
                Ok(None)
            },
        )
    }
}
