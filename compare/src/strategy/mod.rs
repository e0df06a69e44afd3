//! Ways of keeping a transaction whole. Each is a file that can be read as the explanation of its
//! technique; all but the last are as their write-ups have them, no better and no worse.

mod freed_early;
mod lock;
mod lockkeeper;
mod named_lock;
mod named_lock_shared_pool;
mod none;
mod optimistic;
mod pubsub;
mod redis;
mod redlock;
mod reentrant_hash;
mod setnx_once;
mod setnx_spin;
mod setnx_unsafe;
mod transaction;

use std::fmt;
use std::str::FromStr;

use ::lockkeeper::CancelToken;
use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::store::client::Door;
use crate::store::data::Data;
use crate::store::{Reach, Store, mysql};

pub(crate) use lock::{Held, Lock, Terms};
pub(crate) use transaction::{Job, Locked, Moment, Outcome, Strategy};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// No lock: the control, which shows that the scenario can fail.
    None,
    /// No lock, but a write that fails when somebody was quicker: WATCH and EXEC, or a version.
    Optimistic,
    /// Redis: SET NX, and DEL by anyone.
    SetnxUnsafe,
    /// Redis: SET NX PX with an owner, tried once.
    SetnxOnce,
    /// Redis: the same, tried every 100 ms.
    SetnxSpin,
    /// Redis: Redisson's script and channel.
    Pubsub,
    /// Redis: a hash of owner and count, with a watchdog.
    ReentrantHash,
    /// Redis: most of five servers.
    Redlock,
    /// MySQL: GET_LOCK, a connection for each thread.
    NamedLock,
    /// MySQL: the same, from the application's pool of ten.
    NamedLockSharedPool,
    /// A good lock that is freed before the commit.
    FreedEarly,
    /// This library.
    Lockkeeper,
}

impl Kind {
    /// All strategies, in the order in which they are run and shown.
    pub const ALL: [Self; 12] = [
        Self::None,
        Self::Optimistic,
        Self::SetnxUnsafe,
        Self::SetnxOnce,
        Self::SetnxSpin,
        Self::Pubsub,
        Self::ReentrantHash,
        Self::Redlock,
        Self::NamedLock,
        Self::NamedLockSharedPool,
        Self::FreedEarly,
        Self::Lockkeeper,
    ];

    /// Returns the name: lower case with hyphens, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Optimistic => "optimistic",
            Self::SetnxUnsafe => "setnx-unsafe",
            Self::SetnxOnce => "setnx-once",
            Self::SetnxSpin => "setnx-spin",
            Self::Pubsub => "pubsub",
            Self::ReentrantHash => "reentrant-hash",
            Self::Redlock => "redlock",
            Self::NamedLock => "named-lock",
            Self::NamedLockSharedPool => "named-lock-shared-pool",
            Self::FreedEarly => "freed-early",
            Self::Lockkeeper => "lockkeeper",
        }
    }

    /// Describes the strategy in a few words.
    pub fn description(self) -> &'static str {
        match self {
            Self::None => "No lock: the control, which shows that the scenario can fail",
            Self::Optimistic => {
                "No lock, but a write that fails when somebody was quicker: WATCH and EXEC, or a version"
            }
            Self::SetnxUnsafe => "Redis: SET NX, and DEL by anyone",
            Self::SetnxOnce => "Redis: SET NX PX with an owner, tried once",
            Self::SetnxSpin => "Redis: the same, tried every 100 ms",
            Self::Pubsub => "Redis: Redisson's script and channel",
            Self::ReentrantHash => "Redis: a hash of owner and count, with a watchdog",
            Self::Redlock => "Redis: most of five servers",
            Self::NamedLock => "MySQL: GET_LOCK, a connection for each thread",
            Self::NamedLockSharedPool => "MySQL: the same, from the application's pool of ten",
            Self::FreedEarly => "A good lock that is freed before the commit",
            Self::Lockkeeper => "This library",
        }
    }

    /// Why it is not run on this store with so many threads; `None`: it is.
    pub(crate) fn not_on(self, reach: &Reach, threads: u32) -> Option<&'static str> {
        let door = reach.door();
        match self {
            Kind::None | Kind::Lockkeeper | Kind::FreedEarly => None,
            Kind::Optimistic => {
                matches!(door, Door::Memory).then_some("is for stores that have transactions")
            }
            Kind::SetnxUnsafe
            | Kind::SetnxOnce
            | Kind::SetnxSpin
            | Kind::Pubsub
            | Kind::ReentrantHash => (!matches!(door, Door::Redis(_)))
                .then_some("needs Redis: give its --url, or --servers"),
            Kind::Redlock => reach
                .redlock()
                .is_empty()
                .then_some("needs five Redis servers: --servers starts them"),
            Kind::NamedLock | Kind::NamedLockSharedPool if !matches!(door, Door::MySql(_)) => {
                Some("needs MySQL or MariaDB: give its --url, or --servers")
            }
            Kind::NamedLock => None,
            // The pool must run dry, and it must not be luck that it does.
            Kind::NamedLockSharedPool => (threads < 2 * mysql::Tables::POOL as u32)
                .then_some("needs twice as many --threads as its pool has connections: 20"),
        }
    }

    /// The commands that it sends to Redis; what scripts run within the server goes by other names.
    pub(crate) fn commands(self) -> &'static [&'static str] {
        match self {
            Kind::None | Kind::NamedLock | Kind::NamedLockSharedPool => &[],
            Kind::Optimistic => &["watch", "unwatch", "get", "multi", "set", "rpush", "exec"],
            Kind::SetnxUnsafe => &["set", "del"],
            Kind::SetnxOnce | Kind::SetnxSpin | Kind::Redlock => {
                &["set", "eval", "evalsha", "script|load"]
            }
            Kind::Pubsub | Kind::ReentrantHash => &["eval", "evalsha", "script|load", "subscribe"],
            Kind::FreedEarly | Kind::Lockkeeper => &[
                "eval",
                "evalsha",
                "script|load",
                "subscribe",
                "unsubscribe",
                "ping",
                "wait",
            ],
        }
    }

    /// Opens it on `store`, as one program with so many threads would; `stop` wakes those who wait.
    pub(crate) fn open(
        self,
        store: &Store,
        threads: u32,
        stop: &CancelToken,
    ) -> Result<Box<dyn Strategy>, Failure> {
        let (reach, state) = (store.reach(), store.data().state());
        Ok(match (self, reach.door(), store.data()) {
            (Kind::Optimistic, _, Data::Sqlite(rows)) => {
                Box::new(optimistic::sqlite::Versions::new(rows, stop))
            }
            (Kind::Optimistic, Door::Redis(door), Data::Redis(keys)) => {
                Box::new(optimistic::redis::Watch::new(door, keys, stop))
            }
            (Kind::Optimistic, _, Data::MySql(tables)) => {
                Box::new(optimistic::mysql::Versions::new(tables.rows(), stop))
            }
            (Kind::NamedLockSharedPool, Door::MySql(door), Data::MySql(tables)) => Box::new(
                named_lock_shared_pool::SharedPool::open(door, tables.rows(), stop)?,
            ),
            (Kind::FreedEarly, ..) => {
                let lock = lockkeeper::Lockkeeper::open(reach.config(), stop)?;
                Box::new(freed_early::FreedEarly::new(lock, state))
            }
            _ => Box::new(Locked::new(self.open_lock(reach, threads, stop)?, state)),
        })
    }

    /// The lock alone, where it is one.
    pub(crate) fn open_lock(
        self,
        reach: &Reach,
        threads: u32,
        stop: &CancelToken,
    ) -> Result<Box<dyn Lock>, Failure> {
        Ok(match (self, reach.door()) {
            (Kind::None, _) => Box::new(none::NoLock),
            (Kind::Lockkeeper, _) => Box::new(lockkeeper::Lockkeeper::open(reach.config(), stop)?),
            (Kind::SetnxUnsafe, Door::Redis(door)) => {
                Box::new(setnx_unsafe::SetnxUnsafe::open(door, stop)?)
            }
            (Kind::SetnxOnce, Door::Redis(door)) => Box::new(setnx_once::SetnxOnce::open(door)?),
            (Kind::SetnxSpin, Door::Redis(door)) => {
                Box::new(setnx_spin::SetnxSpin::open(door, stop)?)
            }
            (Kind::Pubsub, Door::Redis(door)) => Box::new(pubsub::PubSub::open(door, stop)?),
            (Kind::ReentrantHash, Door::Redis(door)) => {
                Box::new(reentrant_hash::ReentrantHash::open(door, stop)?)
            }
            (Kind::Redlock, Door::Redis(first)) => {
                let doors: Vec<_> = [first]
                    .into_iter()
                    .chain(reach.redlock())
                    .cloned()
                    .collect();
                Box::new(redlock::Redlock::open(&doors, stop))
            }
            (Kind::NamedLock, Door::MySql(door)) => {
                Box::new(named_lock::NamedLock::dedicated(door, threads, stop)?)
            }
            (Kind::NamedLockSharedPool, Door::MySql(door)) => {
                Box::new(named_lock_shared_pool::lock(door, stop)?)
            }
            (_, door) => {
                let what = format!("{self} is no lock on {}", door.label());
                return Err(Failure::Usage(what));
            }
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        let found = Self::ALL.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| Failure::Usage(format!("unknown strategy {name:?}")))
    }
}
