//! Blocking locks by name, on the store of a URL: Redis, MySQL, MariaDB, PostgreSQL, etcd, Consul, ZooKeeper, a SQLite file,
//! or the process itself. For programs whose work is done by threads. No async runtime comes along.
//!
//! ```
//! let keeper = lockkeeper::open("memory:?ttl=30s&wait=5s")?;
//! let guard = keeper.lock("seat:42")?; // waits at most 5 s
//! guard.ensure_held()?; // call it before a step that must not happen without the lock
//! drop(guard); // releases the lock
//! # Ok::<(), lockkeeper::Error>(())
//! ```
//!
//! # Open a store
//!
//! [`open`] takes a URL and returns a [`LockKeeper`]. Open one keeper for a store and share it. It is cheap to clone,
//! and all threads of the process use the same queue and connections.
//!
//! | URL | locks exclude |
//! |---|---|
//! | `memory:` | the threads that share this keeper |
//! | `memory:NAME` | all threads of this process that open the same name |
//! | `sqlite:/var/lib/shop/locks.db` | all processes of this host |
//! | `redis://HOST`, `rediss://HOST` (TLS), `unix:/run/redis.sock`; `valkey://HOST`, `valkeys://HOST` | all processes that reach the server |
//! | `redis+sentinel://HOST,HOST,HOST/mymaster`, `rediss+sentinel://…` | all processes that reach the primary that Redis Sentinel names |
//! | `redis+cluster://HOST,HOST,HOST`, `rediss+cluster://…` | all processes that reach the nodes of this Redis Cluster |
//! | `mysql://USER:PASSWORD@HOST`, `mariadb://…` | all processes that reach the server |
//! | `postgres://USER:PASSWORD@HOST/DATABASE`, `postgresql://…` | all processes that reach the server, in one database |
//! | `etcd://HOST,HOST,HOST`, `etcds://…` (TLS) | all processes that reach the cluster, also when it loses a server |
//! | `consul://HOST`, `consuls://…` (TLS) | all processes that reach the cluster, also when it loses a server |
//! | `zookeeper://HOST,HOST,HOST/PATH`, `zookeepers://…` (TLS) | all processes that reach the ensemble, also when it loses a server |
//! | `quorum:?member=URL&member=URL&member=URL` | all processes that reach a majority of the stores |
//!
//! The page `docs/choosing-a-store.md` says how to choose, and `docs/stores/` has a page for each store.
//!
//! The URL's query has the settings, such as `?ttl=30s&wait=5s&namespace=shop`. The [table of
//! keys](#keys) lists them all. An unknown key is an error that names the nearest known key.
//!
//! Require what the program relies on ([`Capability`]), and an unfit store fails at start-up:
//!
//! ```
//! use lockkeeper::ErrorKind;
//!
//! let error = lockkeeper::open("memory:?require=cross_process").unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Unsupported);
//! ```
//!
//! A program that starts together with its store gives the store time to come up: `open_wait=1m`.
//!
//! # Lock a name
//!
//! A name is any UTF-8 string of 1 to 512 bytes. Two different strings are two different locks.
//!
//! ```
//! use std::time::Duration;
//! use lockkeeper::{AcquireOptions, LeasePolicy};
//!
//! let keeper = lockkeeper::open("memory:?wait=5s")?;
//!
//! // Waits as long as the keeper's `wait`; a lock that stays busy is `ErrorKind::TimedOut`.
//! let first = keeper.lock("report")?;
//!
//! // One attempt. `None` means that another holder has the lock.
//! assert!(keeper.try_lock("report")?.is_none());
//!
//! // Waits at most this long.
//! assert!(keeper.try_lock_for("report", Duration::from_millis(10))?.is_none());
//! drop(first);
//!
//! // Runs a closure under the lock. `held` fails if the lock was lost before the closure ended.
//! let pages = keeper.run_locked("report", |_guard| 42)?.held()?;
//! assert_eq!(pages, 42);
//!
//! // Every option of one acquisition: wait, lease policy, cancel token.
//! let ttl = Duration::from_secs(5);
//! let options = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
//! let fixed = keeper.acquire("report", &options)?;
//! assert!(fixed.is_some());
//! # Ok::<(), lockkeeper::Error>(())
//! ```
//!
//! Which call?
//!
//! | the wait, and a busy lock | one name | shared | several names | a permit |
//! |---|---|---|---|---|
//! | the keeper's `wait`; busy is an error | [`lock`](LockKeeper::lock) | [`lock_shared`](LockKeeper::lock_shared) | [`lock_all`](LockKeeper::lock_all) | [`acquire`](Semaphore::acquire) |
//! | none: one attempt; busy is `None` | [`try_lock`](LockKeeper::try_lock) | [`try_lock_shared`](LockKeeper::try_lock_shared) | [`try_lock_all`](LockKeeper::try_lock_all) | [`try_acquire`](Semaphore::try_acquire) |
//! | at most a time; busy is `None` | [`try_lock_for`](LockKeeper::try_lock_for) | [`try_lock_shared_for`](LockKeeper::try_lock_shared_for) | [`try_lock_all_for`](LockKeeper::try_lock_all_for) | [`try_acquire_for`](Semaphore::try_acquire_for) |
//! | until a deadline; busy is `None` | [`try_lock_until`](LockKeeper::try_lock_until) | [`try_lock_shared_until`](LockKeeper::try_lock_shared_until) | [`try_lock_all_until`](LockKeeper::try_lock_all_until) | [`try_acquire_until`](Semaphore::try_acquire_until) |
//! | [`AcquireOptions`]; busy is an error | [`lock_with`](LockKeeper::lock_with) | [`lock_shared_with`](LockKeeper::lock_shared_with) | [`lock_all_with`](LockKeeper::lock_all_with) | – |
//! | [`AcquireOptions`]; busy is `None` | [`acquire`](LockKeeper::acquire) | [`acquire`](LockKeeper::acquire) with [`Mode::Shared`] | [`acquire_all`](LockKeeper::acquire_all) | [`acquire_with`](Semaphore::acquire_with) |
//!
//! [`run_locked`](LockKeeper::run_locked) calls a closure under the lock, [`run_tick`](LockKeeper::run_tick) at each tick of
//! a schedule, and [`lead`](LockKeeper::lead) for as long as this process leads.
//!
//! A busy lock, an unreachable store and a reply that never came are three different outcomes; see
//! [`ErrorKind`]. The error's text says what happened and what to do, and
//! [`is_retryable`](Error::is_retryable) whether the same call can succeed later.
//!
//! While the store is out of reach, an acquisition with a wait asks again until its deadline. It gets the lock if
//! the store is back in time. A single attempt fails at once. With `outage=fail` ([`Outage`]) every acquisition
//! fails at once.
//!
//! A [`LockKeeper`] is not reentrant: a thread that asks for a name that it holds waits like any other
//! thread. [`ReentrantKeeper`] grants it again at once.
//!
//! A [`CancelToken`] ends single waits. At the end of a program, [`LockKeeper::close`] ends all.
//!
//! ## Shared: readers and writers
//!
//! [`lock_shared`](LockKeeper::lock_shared) is granted beside other shared holders, and
//! [`lock`](LockKeeper::lock) beside no other holder. Both are about the same lock, first come, first
//! served. Readers that come after a waiting writer wait behind it, so neither side starves.
//!
//! ```
//! let keeper = lockkeeper::open("memory:")?;
//!
//! let reading = keeper.lock_shared("prices")?;
//! let beside = keeper.try_lock_shared("prices")?;
//! assert!(beside.is_some());
//! assert!(keeper.try_lock("prices")?.is_none()); // a writer waits until both are done
//! drop((reading, beside));
//! assert!(keeper.try_lock("prices")?.is_some());
//! # Ok::<(), lockkeeper::Error>(())
//! ```
//!
//! ## Permits: at most so many holders
//!
//! [`semaphore`](LockKeeper::semaphore) limits how many holders there are. Each [`Permit`] has a slot that no
//! other one has at the same time. All programs use the same limit.
//!
//! ```
//! use lockkeeper::ErrorKind;
//!
//! let keeper = lockkeeper::open("memory:")?;
//! let connections = keeper.semaphore("reports-server", 2)?;
//!
//! let (first, second) = (connections.acquire()?, connections.acquire()?);
//! assert_eq!((first.slot(), second.slot()), (0, 1));
//! assert!(connections.try_acquire()?.is_none());
//!
//! let error = keeper.semaphore("reports-server", 3)?.acquire().unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::LimitMismatch);
//! # Ok::<(), lockkeeper::Error>(())
//! ```
//!
//! ## Several names, all or none
//!
//! Two threads that lock names one by one, in different orders, can wait for each other until a wait is
//! over. [`lock_all`](LockKeeper::lock_all) always locks in the same order, so its callers do not. Hold no
//! other lock while you wait for several names: `lock_all` cannot order that one.
//!
//! ```
//! let keeper = lockkeeper::open("memory:")?;
//!
//! let accounts = keeper.lock_all(["account:7", "account:3"])?; // one wait for both
//! accounts.ensure_held()?; // fails if either is lost
//! assert!(keeper.try_lock_all(["account:3", "account:5"])?.is_none());
//! assert!(keeper.try_lock("account:5")?.is_some()); // none of a set is held, if not all are
//! // A name can have a mode of its own.
//! let seat = keeper.lock_all([("hall", lockkeeper::Mode::Shared), ("seat:42", lockkeeper::Mode::Exclusive)])?;
//! assert!(keeper.try_lock_shared("hall")?.is_some());
//! # drop(seat);
//! for (name, token) in accounts.tokens() {
//!     println!("{name}: {token}");
//! }
//! # Ok::<(), lockkeeper::Error>(())
//! ```
//!
//! ## One of many processes
//!
//! [`run_tick`](LockKeeper::run_tick) lets one process do the work of each tick of a schedule.
//! [`lead`](LockKeeper::lead) makes one process the leader for as long as it holds the lock. The page
//! `docs/schedules.md` has the rules.
//!
//! ## From one process to another
//!
//! [`LockGuard::detach`] leaves the lock to a [`Ticket`], which is a text. [`LockKeeper::resume`] goes on with the lock, in
//! another process or later. It is for jobs that are locked where they are queued, and freed where they are done. SQLite,
//! Redis, etcd, Consul, ZooKeeper and `locks=table` have tickets. The page `docs/tickets.md` has the rules, and the example
//! `job_queue` a queue.
//!
//! The page `docs/shapes.md` says what each shape is for and what it costs. On a store without a shape,
//! acquiring it is [`ErrorKind::Unsupported`]. If you require [`Capability::Shared`] or
//! [`Capability::Permits`], opening fails instead.
//!
//! # Hold it, and notice its loss
//!
//! While the guard lives, the keeper renews the lease in the background. If the process dies, the store
//! frees the lock by itself, at the latest `ttl` + 1 s after the last renewal. A lease can also be
//! fixed: [`LeasePolicy::Fixed`].
//!
//! A guard can be *lost*: the store was out of reach for too long, or the process was stopped. Then it is lost before the
//! store grants the name to another holder. If an operator takes the lock away, or the store forgets it, another holder
//! can be granted the name a moment earlier. A lost guard stays lost.
//!
//! ```
//! use std::time::Duration;
//! use lockkeeper::WaitOutcome;
//!
//! let keeper = lockkeeper::open("memory:")?;
//! let guard = keeper.lock("export")?;
//!
//! guard.lost_signal().on_lost(|| eprintln!("the export's lock is lost: stopping"));
//! for _page in 0..3 {
//!     guard.ensure_held()?; // ErrorKind::Lost: stop, and do not write
//!     // … one piece of the work …
//!     # break;
//! }
//! println!("valid for {:?} without a renewal", guard.remaining());
//!
//! // A pause that ends early if the lock is lost.
//! let outcome = guard.lost_signal().wait(Duration::from_millis(1));
//! assert_eq!(outcome, WaitOutcome::TimedOut);
//! # Ok::<(), lockkeeper::Error>(())
//! ```
//!
//! # Refuse late writes
//!
//! No lock stops a thread that goes on after its lock was lost. The data can. Every grant has a
//! [`FencingToken`] that is larger than all tokens of the name before it. Write the token beside the
//! data, and refuse a smaller one:
//!
//! ```
//! let keeper = lockkeeper::open("memory:")?;
//! let earlier = keeper.lock("product:7")?.token();
//! let later = keeper.lock("product:7")?.token();
//! assert!(later > earlier);
//!
//! // UPDATE product SET stock = ?1, token = ?2 WHERE id = 7 AND token <= ?2
//! let column: i64 = later.as_i64();
//! # assert!(column > 0);
//! # Ok::<(), lockkeeper::Error>(())
//! ```
//!
//! A transaction can prove the lock as its last step. `guard.commit_in(&mut connection, work)` does so, and returns
//! how the transaction ended. It takes connections of Diesel, mysql, postgres and rusqlite, each by a feature of
//! the module `transactions`. On PostgreSQL, `keeper.lock_in_transaction` takes a lock that ends with the
//! transaction.
//!
//! For other drivers: on MySQL, MariaDB and PostgreSQL, [`LockGuard::commit_proof`] returns one SQL statement that
//! proves the hold. On every other store, [`LockGuard::renew`] is the last step before the commit.
//! [`CommitProof`] has both recipes.
//!
//! # Settings in code, from the environment or a file
//!
//! [`Config`] has the same keys everywhere. In code they have types. In the environment they are
//! variables with a prefix of your choice, such as `SHOP_LOCKS_URL=redis://cache.internal` and
//! `SHOP_LOCKS_TTL=10s`.
//!
//! ```no_run
//! # #[cfg(feature = "redis")] {
//! use std::time::Duration;
//! use lockkeeper::backends::{redis::RedisDriver, remote};
//! use lockkeeper::{Capability, Config};
//!
//! let config = Config::from_url("rediss://cache.internal")?
//!     .namespace("shop")
//!     .ttl(Duration::from_secs(10))
//!     .require(Capability::CrossHost)
//!     .with(&remote::POOL_SIZE, 20)
//!     .with(&RedisDriver::REPLICAS, 1);
//! let keeper = lockkeeper::open_config(&config)?;
//!
//! let keeper = lockkeeper::open_config(&Config::from_env("SHOP_LOCKS")?)?;
//! # }
//! # Ok::<(), lockkeeper::Error>(())
//! ```
//!
//! With the feature `serde`, a table of your config file is a [`Config`]:
//!
//! ```
//! # #[cfg(feature = "serde")] {
//! #[derive(serde::Deserialize)]
//! struct Settings {
//!     locks: lockkeeper::Config,
//! }
//!
//! let settings: Settings = toml::from_str(r#"
//!     [locks]
//!     url = "memory:"
//!     namespace = "shop"
//!     wait = "2s"
//! "#)?;
//! let keeper = lockkeeper::open_config(&settings.locks)?;
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Fallbacks
//!
//! A `fallback` is opened if no server answers at the first store:
//! `redis://cache.internal?fallback=sqlite:/var/lib/shop/locks.db`. That happens only at opening, and
//! observers are notified. A fallback excludes no process that locks on the first store, so `fallback`
//! and `require=cross_host` exclude each other. If the first server answers but cannot serve, that is an
//! error, and no fallback is opened.
//!
//! Tokens keep growing in a move to each store except MySQL and MariaDB, also to a fallback, since they follow the
//! clock. MySQL and MariaDB count tokens from the start of the server. So tokens become smaller in a move to a
//! server that has been up for long, such as the return from a fallback. Opening warns of that, and
//! [`Config::epoch_offset`] prevents it.
//!
//! # Observe
//!
//! An [`Observer`] in the [`Config`] receives every event: acquisitions, waits, renewals, losses, releases,
//! outages, warnings about the store, and fallbacks. A keeper can have several. With the features `tracing`
//! and `metrics` the module `observers` has two that report to the crates of these names.
//!
//! # Async programs, and fork
//!
//! Every call blocks its thread. For programs with tokio, the package `lockkeeper-tokio` makes the calls on threads
//! for blocking work, and has a guard that blocks no thread of the runtime. With another runtime, call them on such
//! threads. A guard can be moved to another thread and shared by several. Only on SQLite may its drop wait, for another
//! process. The page `docs/async.md` has the rules.
//!
//! After a `fork`, open a keeper in the child, and do not use the parent's: its threads do not exist
//! there. On SQLite a store that was opened before the fork is refused in the child.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `sqlite` | yes | `sqlite:`; builds SQLite's C source, so it needs a C compiler. With rusqlite 0.32 to 0.43, so it resolves beside Diesel 2.2 and 2.3, sqlx 0.8 and your own rusqlite |
//! | `redis` | yes | `redis:`, `rediss:`, `unix:`, `redis+sentinel:`, `rediss+sentinel:`, `redis+cluster:` and `rediss+cluster:`; `valkey:` and `valkeys:` |
//! | `mysql` | yes | `mysql:` and `mariadb:` |
//! | `postgres` | no | `postgres:` and `postgresql:` |
//! | `consul` | no | `consul:` and `consuls:` |
//! | `etcd` | no | `etcd:` and `etcds:` |
//! | `zookeeper` | no | `zookeeper:` and `zookeepers:` |
//! | `quorum` | no | `quorum:`, a majority of three or five stores |
//! | `tls` | yes | encrypted connections to servers, by rustls with ring, which needs a C compiler |
//! | `metrics` | no | `observers::MetricsObserver`: gauges, histograms and counters for the crate `metrics` |
//! | `tracing` | no | `observers::TracingObserver`: spans and events for the crate `tracing` |
//! | `transactions-diesel`, `transactions-mysql`, `transactions-postgres`, `transactions-rusqlite` | no | the module `transactions`: commits of your own connections under a guard |
//! | `macros` | no | the attribute `#[locked]`, which runs a function under a lock |
//! | `serde` | no | [`Config`] implements `serde::Deserialize`; tokens and names serialize |
//!
//! `memory:` is always there. A scheme whose feature is not compiled in is an error that names the
//! feature.
//!
//! An application gets 14 crates for `memory:` alone, 63 for `redis` without `tls` and 130 for the default,
//! this one included (`scripts/neighbours` counts them). The redis and mysql crates depend on the crate
//! `url`, which brings more than 20 crates of tables for Unicode host names. Lock URLs do not need these.
//! If your program does not need them either, `cargo update -p idna_adapter --precise 1.0.0` leaves them
//! out: then it is 38 and 109 crates.
//!
//! # A store of your own
//!
//! The module [`backend`] has the traits. The package `lockkeeper-conformance` tests a store against the
//! contract.
//!
//! # Keys
//!
#![doc = include_str!("keys.md")]
// Shows on docs.rs which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

use std::sync::LazyLock;

#[doc(inline)]
pub use lockkeeper_core::{
    AcquireOptions, AsLockName, CancelRegistration, CancelToken, Capability, CommitProof, Config,
    Error, ErrorKind, FencingToken, InSet, Leader, LeasePolicy, LockGuard, LockGuards, LockKeeper,
    LockKeeperBuilder, LockName, LostSignal, MAX_PERMITS, Mode, ObservedLock, Observer, Outage,
    Permit, ReentrantGuard, ReentrantKeeper, Released, RunLocked, Semaphore, Ticket,
    TransactionLock, Usage, Wait, WaitOutcome,
};

/// What operators ask a store: see [`LockKeeper::admin`].
pub mod admin {
    #[doc(inline)]
    pub use lockkeeper_core::{
        Admin, Finding, HeldName, Holder, Severity, process_label, set_process_label,
    };
}

/// The clock of leases and deadlines, which neither steps nor stops while the host is suspended.
pub mod clock {
    #[doc(inline)]
    pub use lockkeeper_core::{Clock, HostInstant, ManualClock, SystemClock};
}

/// What the author of a backend needs: [`Backend`](backend::Backend) for a store, and
/// [`Driver`](backend::Driver) to open it by a URL.
///
/// It is for a backend inside of a program. A backend in a package of its own depends on `lockkeeper-core`, which has the
/// same types, and its tests on `lockkeeper-conformance`.
pub mod backend {
    #[doc(inline)]
    pub use lockkeeper_core::{
        AcquireRequest, AttemptRequest, Backend, COMMON_KEYS, Capabilities, Capability, Driver,
        Drivers, ErasedLease, Grant, Key, KeySpec, KeyValue, LeaseId, LeaseVerifier,
        LeaseVerifiers, LockProvider, MAX_EPOCH, MAX_HANDOVERS, MEMBER, Member, OpenContext,
        OpenOptions, Operation, Owner, Proof, ProofValue, ReleaseDispatch, ReleaseRequest,
        RenewRequest, Renewal, SentRelease, StoreInfo, StoreUrl, Takes, Tick, Timer,
        TransactionLockSql, epoch_at, epochs_in, limit_mismatch,
    };

    /// Returns the drivers that were compiled in. Add one of your own with [`Drivers::with`].
    pub fn drivers() -> Drivers {
        let drivers = Drivers::new().with(lockkeeper_local::MemoryDriver);
        #[cfg(feature = "sqlite")]
        let drivers = drivers.with(lockkeeper_local::SqliteDriver);
        #[cfg(not(feature = "sqlite"))]
        let drivers = drivers.without(&["sqlite"], "sqlite");
        #[cfg(feature = "redis")]
        let drivers = drivers.with(lockkeeper_redis::RedisDriver);
        #[cfg(not(feature = "redis"))]
        let drivers = drivers.without(
            &[
                "redis",
                "rediss",
                "unix",
                "redis+sentinel",
                "rediss+sentinel",
                "redis+cluster",
                "rediss+cluster",
                "valkey",
                "valkeys",
            ],
            "redis",
        );
        #[cfg(feature = "consul")]
        let drivers = drivers.with(lockkeeper_consul::ConsulDriver);
        #[cfg(not(feature = "consul"))]
        let drivers = drivers.without(&["consul", "consuls"], "consul");
        #[cfg(feature = "etcd")]
        let drivers = drivers.with(lockkeeper_etcd::EtcdDriver);
        #[cfg(not(feature = "etcd"))]
        let drivers = drivers.without(&["etcd", "etcds"], "etcd");
        #[cfg(feature = "mysql")]
        let drivers = drivers.with(lockkeeper_mysql::MySqlDriver);
        #[cfg(not(feature = "mysql"))]
        let drivers = drivers.without(&["mysql", "mariadb"], "mysql");
        #[cfg(feature = "postgres")]
        let drivers = drivers.with(lockkeeper_postgres::PostgresDriver);
        #[cfg(not(feature = "postgres"))]
        let drivers = drivers.without(&["postgres", "postgresql"], "postgres");
        #[cfg(feature = "quorum")]
        let drivers = drivers.with(lockkeeper_quorum::QuorumDriver);
        #[cfg(not(feature = "quorum"))]
        let drivers = drivers.without(&["quorum"], "quorum");
        #[cfg(feature = "zookeeper")]
        let drivers = drivers.with(lockkeeper_zookeeper::ZooKeeperDriver);
        #[cfg(not(feature = "zookeeper"))]
        let drivers = drivers.without(&["zookeeper", "zookeepers"], "zookeeper");
        drivers
    }
}

/// The types of each backend: keys for [`Config::with`], and options for programs that build their
/// keeper without a URL ([`LockKeeper::builder`]).
pub mod backends {
    #[cfg(feature = "consul")]
    pub use lockkeeper_consul as consul;
    #[cfg(feature = "etcd")]
    pub use lockkeeper_etcd as etcd;
    pub use lockkeeper_local as local;
    #[cfg(feature = "mysql")]
    pub use lockkeeper_mysql as mysql;
    #[cfg(feature = "postgres")]
    pub use lockkeeper_postgres as postgres;
    #[cfg(feature = "quorum")]
    pub use lockkeeper_quorum as quorum;
    #[cfg(feature = "redis")]
    pub use lockkeeper_redis as redis;
    /// The keys that every store behind a network takes.
    #[cfg(any(
        feature = "consul",
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "zookeeper"
    ))]
    pub use lockkeeper_remote::keys as remote;
    #[cfg(feature = "zookeeper")]
    pub use lockkeeper_zookeeper as zookeeper;
}

#[cfg(any(feature = "metrics", feature = "tracing"))]
pub mod observers;

#[cfg(feature = "macros")]
#[doc(inline)]
pub use lockkeeper_macros::locked;
#[cfg(feature = "transactions")]
pub use lockkeeper_transactions as transactions;

static DRIVERS: LazyLock<backend::Drivers> = LazyLock::new(backend::drivers);

/// Opens the store of a URL, such as `sqlite:/var/lib/shop/locks.db?ttl=30s&wait=5s`. [`Config`]
/// lists the keys.
///
/// # Errors
/// What is wrong with the URL or one of its keys, before any store is contacted, or why the store could not
/// be opened. Each has a kind of its own.
pub fn open(url: &str) -> Result<LockKeeper, Error> {
    open_config(&Config::from_url(url)?)
}

/// Opens the store of a [`Config`], which can come from a URL, from the environment or from a
/// file.
///
/// # Errors
/// As [`open`].
pub fn open_config(config: &Config) -> Result<LockKeeper, Error> {
    DRIVERS.open(config)
}

/// Compiles and runs the README's code.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;

/// Compiles the code of `docs/schedules.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/schedules.md")]
struct SchedulesDoctests;

/// Compiles the code of `docs/own-connections.md`.
#[cfg(all(
    doctest,
    unix,
    feature = "mysql",
    feature = "postgres",
    feature = "redis"
))]
#[doc = include_str!("../docs/own-connections.md")]
struct OwnConnectionsDoctests;

/// Compiles the code of `docs/coming-from.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/coming-from.md")]
struct ComingFromDoctests;
