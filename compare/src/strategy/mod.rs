//! Ways of protecting a transaction from others that use the same data. Each file explains its
//! technique. All techniques but `lockkeeper` are as their write-ups show them, no better and no
//! worse.

mod advisory_lock;
mod clients;
mod consul_lock;
mod etcdctl_lock;
mod exclusive;
mod freed_early;
mod incr_decr;
mod insert_delete;
pub(crate) mod lock;
mod lock_all;
mod lockkeeper;
mod named_lock;
mod named_lock_shared_pool;
pub(crate) mod none;
mod optimistic;
mod polled_locks;
mod pubsub;
mod reader_counter;
mod redis;
mod redlock;
mod reentrant_hash;
mod row_lock;
mod sequential_node;
mod session_lock;
mod setnx_once;
mod setnx_spin;
mod setnx_unsafe;
mod timer;
pub(crate) mod transaction;

use serde::{Deserialize, Serialize};

use self::consul_lock::ConsulLock;
use self::etcdctl_lock::EtcdctlLock;
use self::exclusive::Exclusive;
use self::freed_early::FreedEarly;
use self::incr_decr::IncrDecr;
use self::insert_delete::InsertDelete;
use self::lock::Lock;
use self::lock_all::LockAll;
use self::lockkeeper::Lockkeeper;
use self::none::NoLock;
use self::optimistic::redis::Watch;
use self::optimistic::revisions::Revisions;
use self::polled_locks::PolledLocks;
use self::pubsub::PubSub;
use self::reader_counter::ReaderCounter;
use self::redis::Client;
use self::redlock::Redlock;
use self::reentrant_hash::ReentrantHash;
use self::row_lock::LockTable;
use self::sequential_node::SequentialNode;
use self::session_lock::SessionLock;
use self::setnx_once::SetnxOnce;
use self::setnx_spin::SetnxSpin;
use self::setnx_unsafe::SetnxUnsafe;
use self::transaction::{Locked, Transactor};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::named::named_enum;
use crate::store::client::ClientConfig;
use crate::store::data::Data;
use crate::store::pool::APPLICATION;
use crate::store::{Store, StoreHandle, sql, zookeeper};

named_enum! {
    /// A way of keeping a transaction whole.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    #[non_exhaustive]
    pub enum Strategy {
        None "none": "No lock: the control, which shows that the scenario can fail",
        Optimistic "optimistic": "No lock, but a write that fails if another came first: WATCH and EXEC, or a version",
        SetnxUnsafe "setnx-unsafe": "Redis: SET NX, and DEL by any process",
        SetnxOnce "setnx-once": "Redis: SET NX PX with an owner, tried once",
        SetnxSpin "setnx-spin": "Redis: SET NX PX with an owner, tried every 100 ms",
        Pubsub "pubsub": "Redis: Redisson's script and channel",
        ReentrantHash "reentrant-hash": "Redis: a hash of owner and count, with a watchdog",
        IncrDecr "incr-decr": "Redis: a counter of permits, with INCR and DECR",
        Redlock "redlock": "Redis: most of five servers, as its write-up has it",
        NamedLock "named-lock": "MySQL: GET_LOCK, PostgreSQL: pg_advisory_lock, a connection for each thread",
        NamedLockSharedPool "named-lock-shared-pool": "The same locks, on connections of the application's pool of ten",
        RowLock "row-lock": "PostgreSQL: SELECT FOR UPDATE, a connection for each thread",
        InsertDelete "insert-delete": "MySQL, PostgreSQL: a table of locks, INSERT every 100 ms, and DELETE",
        PolledLocks "polled-locks": "MySQL, PostgreSQL: as many named locks as permits, tried one after the other",
        EtcdctlLock "etcdctl-lock": "etcd: what etcdctl lock does, a lease for each hold",
        ConsulLock "consul-lock": "Consul: what consul lock does, a session for each hold",
        SequentialNode "sequential-node": "ZooKeeper: its manual's recipe, a sequential ephemeral node for each hold",
        FreedEarly "freed-early": "A good lock that is released before the commit",
        Exclusive "exclusive": "A good lock that is exclusive for readers, too",
        ReaderCounter "reader-counter": "A good lock that the first reader acquires and the last one releases",
        LockAll "lock-all": "This library, several names in one call",
        Lockkeeper "lockkeeper": "This library",
    }
}

impl Strategy {
    /// Returns why the strategy does not run on this store with this many threads; `None` if it
    /// does.
    pub(crate) fn not_on(self, handle: &StoreHandle, threads: u32) -> Option<&'static str> {
        let client = &handle.client;
        match self {
            Self::None
            | Self::FreedEarly
            | Self::Exclusive
            | Self::ReaderCounter
            | Self::LockAll
            | Self::Lockkeeper => None,
            Self::Optimistic => matches!(client, ClientConfig::Memory | ClientConfig::Quorum)
                .then_some("is for stores that have transactions"),
            Self::SetnxUnsafe
            | Self::SetnxOnce
            | Self::SetnxSpin
            | Self::Pubsub
            | Self::ReentrantHash
            | Self::IncrDecr => (!matches!(client, ClientConfig::Redis(_)))
                .then_some("needs Redis: give its --url, or --servers"),
            Self::Redlock => handle
                .members
                .is_empty()
                .then_some("needs five Redis servers: --servers starts them"),
            Self::NamedLock
            | Self::NamedLockSharedPool
            | Self::InsertDelete
            | Self::PolledLocks
                if !matches!(client, ClientConfig::MySql(_) | ClientConfig::Postgres(_)) =>
            {
                Some("needs MySQL, MariaDB or PostgreSQL: give its --url, or --servers")
            }
            Self::NamedLock | Self::InsertDelete | Self::PolledLocks => None,
            // The pool must be exhausted every time.
            Self::NamedLockSharedPool => (threads < 2 * APPLICATION.end())
                .then_some("needs twice as many --threads as its pool has connections: 20"),
            Self::RowLock => (!matches!(client, ClientConfig::Postgres(_)))
                .then_some("needs PostgreSQL: give its --url, or --servers"),
            Self::EtcdctlLock => (!matches!(client, ClientConfig::Etcd(_)))
                .then_some("needs etcd: give its --url, or --servers"),
            Self::ConsulLock => (!matches!(client, ClientConfig::Consul(_)))
                .then_some("needs Consul: give its --url, or --servers"),
            Self::SequentialNode => (!matches!(client, ClientConfig::ZooKeeper(_)))
                .then_some("needs ZooKeeper: give its --url, or --servers"),
        }
    }

    /// Returns the commands that the strategy sends to Redis. Commands that its scripts run inside
    /// the server are not among them.
    pub(crate) fn commands(self) -> &'static [&'static str] {
        match self {
            Self::None
            | Self::NamedLock
            | Self::NamedLockSharedPool
            | Self::RowLock
            | Self::InsertDelete
            | Self::PolledLocks
            | Self::EtcdctlLock
            | Self::ConsulLock
            | Self::SequentialNode => &[],
            Self::Optimistic => &["watch", "unwatch", "get", "multi", "set", "rpush", "exec"],
            Self::SetnxUnsafe => &["set", "del"],
            Self::IncrDecr => &["incr", "decr"],
            Self::SetnxOnce | Self::SetnxSpin | Self::Redlock => {
                &["set", "eval", "evalsha", "script|load"]
            }
            Self::Pubsub | Self::ReentrantHash => &["eval", "evalsha", "script|load", "subscribe"],
            Self::FreedEarly
            | Self::Exclusive
            | Self::ReaderCounter
            | Self::LockAll
            | Self::Lockkeeper => &[
                "eval",
                "evalsha",
                "script|load",
                "hello",
                "client|tracking",
                "subscribe",
                "unsubscribe",
                "ping",
                "wait",
            ],
        }
    }

    /// Opens the strategy on `store`, as one program with this many threads would.
    pub(crate) fn open(
        self,
        store: &Store,
        threads: u32,
        cancel: &Cancellation,
    ) -> Result<Box<dyn Transactor>, Error> {
        let (handle, state) = (&store.handle, store.data.state());
        Ok(match (self, &store.data) {
            (Self::Optimistic, Data::Sqlite(rows)) => Box::new(Revisions::new(rows, cancel)),
            (Self::Optimistic, Data::MySql(_, rows)) => Box::new(Revisions::new(rows, cancel)),
            (Self::Optimistic, Data::Postgres(_, rows)) => Box::new(Revisions::new(rows, cancel)),
            (Self::Optimistic, Data::Etcd(keys)) => Box::new(Revisions::new(keys, cancel)),
            (Self::Optimistic, Data::Consul(keys)) => Box::new(Revisions::new(keys, cancel)),
            (Self::Optimistic, Data::ZooKeeper(nodes)) => Box::new(Revisions::new(nodes, cancel)),
            (Self::Optimistic, Data::Redis(keys)) => Box::new(Watch::open(keys, threads, cancel)?),
            (Self::NamedLockSharedPool, Data::MySql(config, rows)) => {
                Box::new(named_lock_shared_pool::open(config.as_ref(), rows, cancel)?)
            }
            (Self::NamedLockSharedPool, Data::Postgres(config, rows)) => {
                Box::new(named_lock_shared_pool::open(config.as_ref(), rows, cancel)?)
            }
            (Self::FreedEarly, _) => {
                let lock = Lockkeeper::open(&handle.config, cancel)?;
                Box::new(FreedEarly { lock, state })
            }
            _ => Box::new(Locked::new(self.open_lock(handle, threads, cancel)?, state)),
        })
    }

    /// Opens only the lock of the strategy; an error if it has none.
    pub(crate) fn open_lock(
        self,
        handle: &StoreHandle,
        threads: u32,
        cancel: &Cancellation,
    ) -> Result<Box<dyn Lock>, Error> {
        use ClientConfig::{Consul, Etcd, MySql, Postgres, Quorum, Redis, ZooKeeper};
        let state = &handle.settings.state;
        let client = |config| Client::open(config, cancel);
        let ours = || Lockkeeper::open(&handle.config, cancel);
        Ok(match (self, &handle.client) {
            (Self::None, _) => Box::new(NoLock),
            (Self::Lockkeeper, _) => Box::new(ours()?),
            (Self::LockAll, _) => Box::new(LockAll(ours()?)),
            (Self::Exclusive, _) => Box::new(Exclusive(ours()?)),
            (Self::ReaderCounter, _) => Box::new(ReaderCounter::new(ours()?)),
            (Self::IncrDecr, Redis(config)) => Box::new(IncrDecr::new(client(config)?)),
            (Self::SetnxUnsafe, Redis(config)) => Box::new(SetnxUnsafe::new(client(config)?)),
            (Self::SetnxOnce, Redis(config)) => Box::new(SetnxOnce(client(config)?)),
            (Self::SetnxSpin, Redis(config)) => Box::new(SetnxSpin(SetnxOnce(client(config)?))),
            (Self::Pubsub, Redis(config)) => Box::new(PubSub::new(client(config)?, config)),
            (Self::ReentrantHash, Redis(config)) => Box::new(ReentrantHash(client(config)?)),
            (Self::Redlock, Quorum) => Box::new(Redlock::open(&handle.members, cancel)),
            (Self::NamedLock | Self::NamedLockSharedPool, MySql(config)) => {
                Box::new(SessionLock::dedicated(config, threads, cancel)?)
            }
            (Self::NamedLock | Self::NamedLockSharedPool, Postgres(config)) => {
                Box::new(SessionLock::dedicated(config, threads, cancel)?)
            }
            (Self::RowLock, Postgres(config)) => {
                let table = LockTable::create(config, sql::locks(state))?;
                Box::new(SessionLock::dedicated(&table, threads, cancel)?)
            }
            (Self::InsertDelete, MySql(config)) => {
                let rows = config.rows(state)?;
                Box::new(InsertDelete::create(rows, sql::locks(state), cancel)?)
            }
            (Self::InsertDelete, Postgres(config)) => {
                let rows = config.rows(state)?;
                Box::new(InsertDelete::create(rows, sql::locks(state), cancel)?)
            }
            (Self::PolledLocks, MySql(_) | Postgres(_)) => {
                let lock = Self::NamedLock.open_lock(handle, threads, cancel)?;
                Box::new(PolledLocks::new(lock, cancel))
            }
            (Self::EtcdctlLock, Etcd(config)) => {
                let min_ttl = handle.capabilities.min_ttl();
                Box::new(EtcdctlLock::new(config, min_ttl, cancel))
            }
            (Self::ConsulLock, Consul(config)) => {
                let min_ttl = handle.capabilities.min_ttl();
                Box::new(ConsulLock::new(config, min_ttl, cancel))
            }
            (Self::SequentialNode, ZooKeeper(config)) => {
                let (locks, min_ttl) = (zookeeper::locks(state), handle.capabilities.min_ttl());
                Box::new(SequentialNode::new(config, locks, min_ttl, cancel))
            }
            (_, client) => {
                let store = client.label();
                return Err(Error::invalid(format!("{self} is no lock on {store}")));
            }
        })
    }
}
