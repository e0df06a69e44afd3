//! Tokens while locks move through stores of all kinds, in every order: where they keep growing by
//! themselves, and where that needs `epoch_offset`.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

use std::collections::HashMap;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime};

use lockkeeper::backend::{drivers, epoch_at};
use lockkeeper::{Config, LockKeeper};
use lockkeeper_testkit::{
    MySqlKind, MySqlOptions, MySqlServer, RedisKind, RedisOptions, RedisServer, suite,
    with_timeouts,
};
use tempfile::TempDir;

/// Longer than a busy machine takes for a reply.
const REPLY_LIMIT: Duration = Duration::from_secs(30);
/// Longer than any server of a test has been up.
const OFFSET: Duration = Duration::from_secs(3_600);
/// The bits of a token below the epoch.
const HANDOVER_BITS: u32 = 7;
/// Two readings of the clock that belong to the same grant are no further apart, as epochs.
const MINUTE: u64 = 60 << 24;

fn main() -> ExitCode {
    let ignored = || {
        let mysql = MySqlKind::ALL.into_iter().find_map(MySqlKind::ignored);
        RedisKind::Redis7.ignored().or(mysql)
    };
    let case = || {
        let mut stores = Stores::start();
        check_units(&mut stores);
        check_every_order(&mut stores);
    };
    let trial = suite::named_trial("tokens_grow_in_every_order_of_stores", ignored, case);
    libtest_mimic::run(&suite::arguments(), vec![trial]).exit_code()
}

/// One store of each kind, and the keepers that were opened on them.
struct Stores {
    /// The URL of each store.
    urls: [String; 5],
    keepers: HashMap<(usize, Duration), LockKeeper>,
    _kept: (TempDir, RedisServer, [MySqlServer; 2]),
}

impl Stores {
    /// Starts the servers, all at the same time.
    fn start() -> Self {
        let mysql = |kind| move || MySqlServer::start(kind, &MySqlOptions::new()).unwrap();
        let (redis, servers) = thread::scope(|scope| {
            let servers = MySqlKind::ALL.map(|kind| scope.spawn(mysql(kind)));
            let redis = RedisServer::start(RedisKind::Redis7, &RedisOptions::new()).unwrap();
            (redis, servers.map(|server| server.join().unwrap()))
        });
        let folder = tempfile::tempdir().unwrap();
        let patient = |url: String| with_timeouts(&url, REPLY_LIMIT);
        let [maria, mysql] = servers.each_ref().map(|server| patient(server.url()));
        Self {
            urls: [
                "memory:tokens".to_owned(),
                format!("sqlite:{}/locks.db", folder.path().display()),
                patient(redis.url()),
                maria,
                mysql,
            ],
            keepers: HashMap::new(),
            _kept: (folder, redis, servers),
        }
    }

    fn follows_clock(&self, store: usize) -> bool {
        !self.urls[store].starts_with("mysql") && !self.urls[store].starts_with("mariadb")
    }

    /// Returns the token of the next grant on a store, as an epoch.
    fn grant(&mut self, store: usize, offset: Duration) -> u64 {
        let keeper = self.keepers.entry((store, offset)).or_insert_with(|| {
            let config = Config::from_url(&self.urls[store]).unwrap();
            drivers().open(&config.epoch_offset(offset)).unwrap()
        });
        let guard = keeper.lock("seat").unwrap();
        guard.token().get() >> HANDOVER_BITS
    }
}

/// Stores that follow the clock count from 1970, the others from the start of their server.
fn check_units(stores: &mut Stores) {
    for store in 0..stores.urls.len() {
        let before = epoch_at(SystemTime::now());
        let epoch = stores.grant(store, Duration::ZERO);
        let after = epoch_at(SystemTime::now());
        let url = &stores.urls[store];
        if stores.follows_clock(store) {
            // A server may read its clock less precisely than this process.
            let (least, most) = (before - MINUTE, after + MINUTE);
            assert!((least..most).contains(&epoch), "{url}: {epoch}");
        } else {
            let start = after - epoch_at(SystemTime::UNIX_EPOCH + OFFSET);
            assert!((start..after).contains(&epoch), "{url}: {epoch}");
        }
    }
}

/// Ends each order where it began, as programs do that return from a fallback.
fn check_every_order(stores: &mut Stores) {
    for mut order in orders(stores.urls.len()) {
        order.extend(order.first().copied());
        let mut offset = Duration::ZERO;
        let mut last = (None, 0);
        for &store in &order {
            let mut epoch = stores.grant(store, offset);
            let what = format!("store {store} of {order:?} grants {epoch} after {}", last.1);
            if stores.follows_clock(store) {
                assert!(epoch > last.1, "{what}");
            } else if last.0.is_some_and(|before| stores.follows_clock(before)) {
                assert!(epoch < last.1, "{what}");
            }
            if epoch <= last.1 {
                offset += OFFSET;
                epoch = stores.grant(store, offset);
                assert!(epoch > last.1, "{what}, and {epoch} with the offset");
            }
            last = (Some(store), epoch);
        }
    }
}

/// Returns all orders of the numbers below `count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    (0..count).fold(vec![Vec::new()], |shorter, next| {
        let insert = |order: &Vec<usize>| {
            let order = order.clone();
            (0..=order.len()).map(move |at| {
                let mut longer = order.clone();
                longer.insert(at, next);
                longer
            })
        };
        shorter.iter().flat_map(insert).collect()
    })
}
