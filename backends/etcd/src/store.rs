//! The parts that a provider, its leases and its threads share.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use lockkeeper_core::{AcquireRequest, Clock, Error, HostInstant, LockName, Mode, epoch_at};
use lockkeeper_remote::Failure;

use crate::connection::client::Client;
use crate::connection::failure::{Refusal, at_opening};
use crate::locks::epochs::Epochs;
use crate::locks::expiry::Expiry;
use crate::locks::leases::Leases;
use crate::locks::listener::Listener;
use crate::locks::together::Together;
use crate::options::EtcdOptions;
use crate::wire::KeyValue;
use crate::wire::entry::Entry;
use crate::wire::keys::{CommonKeys, NameKeys};
use crate::wire::txn::Txn;

/// How often the keys of a request are looked for that may still be under way.
const LOOKS: usize = 4;

pub(crate) struct Store {
    pub(crate) client: Arc<Client>,
    pub(crate) options: EtcdOptions,
    pub(crate) namespace: String,
    pub(crate) keys: CommonKeys,
    pub(crate) leases: Arc<Leases>,
    pub(crate) expiry: Arc<Expiry>,
    pub(crate) epochs: Epochs,
    pub(crate) listener: Arc<Listener>,
    pub(crate) together: Together,
    /// Names the key that exclusive requests have. It need not differ from that of another provider.
    pub(crate) number: u64,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("options", &self.options)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.listener.close();
    }
}

impl Store {
    /// Connects, and finds out the shortest lease.
    pub(crate) fn open(
        options: &EtcdOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let client = Arc::new(Client::new(options, clock)?);
        let keys = CommonKeys::new(namespace);
        let leases = Arc::new(Leases::new(Arc::clone(&client)));
        let store = Self {
            listener: Listener::new(Arc::clone(&client), keys.clone()),
            expiry: Arc::new(Expiry::new(Arc::clone(&client), Arc::clone(&leases))),
            epochs: Epochs::new(Arc::clone(&client), keys.base.clone()),
            options: options.clone(),
            namespace: namespace.to_owned(),
            together: Together::default(),
            number: fastrand::u64(..),
            client,
            keys,
            leases,
        };
        let (client, until) = (&store.client, store.now() + options.remote.connect_timeout);
        let granted = store.leases.open(until);
        // A cluster that is full grants nothing, and an operator may look at what is held, and free it.
        if !Refusal::Full.is_in(&granted) {
            granted.map_err(|failure| client.connector.wanting_tls(at_opening(failure)))?;
        }
        let left = until.saturating_since(store.now());
        client.connector.compare_clusters(left / 2)?;
        let raised = store.epochs.raise(None, until);
        match Refusal::Full.is_in(&raised) {
            // The first grant raises it.
            true => store.epochs.note(epoch_at(SystemTime::now())),
            false => drop(raised.map_err(at_opening)?),
        }
        store.expiry.start()?;
        Ok(store)
    }

    fn now(&self) -> HostInstant {
        self.client.clock.now()
    }

    pub(crate) fn name_keys(&self, name: &LockName, mode: Mode) -> NameKeys {
        NameKeys::new(&self.namespace, name, mode.is_permit())
    }

    /// Deletes a key if it was created at this revision, and returns whether it was there.
    pub(crate) fn delete(
        &self,
        key: &str,
        created: i64,
        until: HostInstant,
    ) -> Result<bool, Failure> {
        let reply = self.client.txn(Txn::delete(key, created), until, None)?;
        Ok(reply.succeeded)
    }

    /// Deletes the keys of a request, also what a request without a reply is still to write.
    ///
    /// A read would overtake such a request. So each look comes behind a write, which changes nothing. The server may take
    /// requests of several connections in any order, so there are several looks.
    pub(crate) fn forget(
        &self,
        request: &AcquireRequest<'_>,
        until: HostInstant,
    ) -> Result<(), Failure> {
        let keys = self.name_keys(request.name(), request.mode());
        let is_own = |it: &KeyValue| Entry::read(&it.value).is_of(request);
        for _ in 0..LOOKS {
            self.delete(&self.keys.ended, i64::MAX, until)?;
            let mut all = self.client.read(&keys.all(), until, None)?.all;
            all.retain(is_own);
            for found in &all {
                self.delete(&found.key, found.seen.created, until)?;
            }
            if !all.is_empty() {
                break;
            }
        }
        Ok(())
    }
}
