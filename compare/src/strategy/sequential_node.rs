//! The recipe for locks of ZooKeeper's manual. Each lock is a node, and each hold or wait a child of it: ephemeral, with
//! the next number. The lowest one has the lock. A thread that waits watches the next lower one alone, so a release wakes
//! one waiter, first come, first served.
//!
//! All threads of a program use one client, whose session lives as long as it pings. The holder is not notified when the
//! session has ended. Nobody removes the node of a lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::Usage;
use lockkeeper::backends::zookeeper::PlainClient;
use lockkeeper::backends::zookeeper::PlainWrite::{Create, Delete};
use parking_lot::Mutex;

use super::lock::{Held, Lock, LockRequest};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::zookeeper::ZooKeeperConfig;

pub(super) struct SequentialNode {
    config: ZooKeeperConfig,
    /// The node of all locks.
    locks: String,
    min_ttl: Duration,
    /// The program's clients, by the time-outs of their sessions. A program has one as a rule.
    clients: Mutex<HashMap<Duration, Arc<PlainClient>>>,
    cancel: Cancellation,
}

impl SequentialNode {
    /// Uses this ensemble, where no session can be shorter than `min_ttl`.
    pub(super) fn new(
        config: &ZooKeeperConfig,
        locks: String,
        min_ttl: Duration,
        cancel: &Cancellation,
    ) -> Self {
        Self {
            config: config.clone(),
            locks,
            min_ttl,
            clients: Mutex::default(),
            cancel: cancel.clone(),
        }
    }

    fn client(&self, ttl: Duration) -> Result<Arc<PlainClient>, Error> {
        let (mut clients, ttl) = (self.clients.lock(), ttl.max(self.min_ttl));
        if let Some(client) = clients.get(&ttl) {
            return Ok(Arc::clone(client));
        }
        let client = Arc::new(self.config.client(ttl)?);
        clients.insert(ttl, Arc::clone(&client));
        Ok(client)
    }
}

impl Lock for SequentialNode {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let began = Instant::now();
        let client = self.client(request.lease.ttl())?;
        let lock = format!("{}/{}", self.locks, name.replace('/', "-"));
        let mut own = None;
        loop {
            let node = match own.take() {
                Some(node) => node,
                None => {
                    // It may be there.
                    client.write(&[Create(&lock, "")])?;
                    client.create_numbered(&format!("{lock}/lock-"))?
                }
            };
            let mut nodes = client.children(&lock)?;
            nodes.sort_unstable();
            let place = nodes.iter().position(|it| node.ends_with(it.as_str()));
            let previous = match place {
                // The session has ended meanwhile, and the client has a new one.
                None => continue,
                Some(place) => place.checked_sub(1).and_then(|it| nodes.get(it)),
            };
            let left = request.wait.saturating_sub(began.elapsed());
            let Some(previous) = previous else {
                // If its session has ended, it is gone.
                let release = move || Ok(client.write(&[Delete(&node)]).map(drop)?);
                return Ok(Some(Held::new(release)));
            };
            if left.is_zero() || self.cancel.token().is_cancelled() {
                client.write(&[Delete(&node)])?;
                return self.cancel.check().map(|()| None);
            }
            let previous = format!("{lock}/{previous}");
            client.wait_for_change(&previous, left, self.cancel.token())?;
            own = Some(node);
        }
    }

    fn usage(&self) -> Option<Usage> {
        let clients = self.clients.lock();
        let usages = clients.values().map(|client| client.usage());
        Some(usages.fold(Usage::default(), |mut all, usage| {
            all.commands += usage.commands;
            all.connections += usage.connections;
            all
        }))
    }

    fn min_ttl(&self) -> Duration {
        self.min_ttl
    }

    fn has_fixed_lease(&self) -> bool {
        false
    }
}
