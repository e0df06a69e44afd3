//! The cost of many held names.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::backend::{
    AcquireRequest, Capabilities, ErasedLease, Grant, LeaseId, LeaseVerifier, LockProvider,
    Operation, Proof, ReleaseDispatch, StoreInfo,
};
use lockkeeper::backends::redis::{RedisOptions, RedisProvider};
use lockkeeper::clock::HostInstant;
use lockkeeper::{Error, LeasePolicy, LockKeeper, Usage};

use crate::memory::{resident, status};
use crate::row::{NONE, Row, Rows};
use crate::store::{Kind, memory_of_redis, sent_to_redis, start_redis};

const LEASES: u32 = 10_000;
const MORE_LEASES: u32 = 100_000;
const TTL: Duration = Duration::from_secs(30);
const WATCHED: Duration = Duration::from_secs(10);

/// Counts the renewal calls of a provider, each of which is one round trip.
#[derive(Debug)]
struct Counted {
    provider: Arc<dyn LockProvider>,
    renewals: Arc<AtomicU64>,
}

impl StoreInfo for Counted {
    fn backend(&self) -> &'static str {
        self.provider.backend()
    }

    fn capabilities(&self) -> Capabilities {
        self.provider.capabilities()
    }

    fn usage(&self) -> Option<Usage> {
        self.provider.usage()
    }

    fn location(&self) -> String {
        self.provider.location()
    }
}

impl LockProvider for Counted {
    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<ErasedLease>>, Error> {
        self.provider.acquire(request)
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        self.provider.abandon(request);
    }

    fn part(&self, request: &AcquireRequest<'_>) -> usize {
        self.provider.part(request)
    }

    fn batch(&self, batch: &mut [Operation<'_, ErasedLease>]) {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        self.provider.batch(batch);
    }

    fn send_release(&self, lease: &mut ErasedLease) -> ReleaseDispatch {
        self.provider.send_release(lease)
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.provider.watch_leases(verifier);
    }

    fn detach(
        &self,
        lease: &mut ErasedLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Option<LeaseId>, Error> {
        self.provider.detach(lease, ttl, deadline)
    }

    fn proof(&self, lease: &ErasedLease) -> Option<Proof> {
        self.provider.proof(lease)
    }
}

/// What holding many leases costs.
struct Cost {
    threads: Option<f64>,
    /// Bytes of resident memory a lease.
    memory: Option<f64>,
    /// Bytes of the server's memory a lease.
    stored: f64,
    round_trips: f64,
}

/// Holds `leases` leases on a server of their own.
fn hold(leases: u32) -> Result<Cost, Box<dyn StdError>> {
    let server = start_redis()?;
    let options = RedisOptions::tcp(server.addr().ip().to_string(), server.addr().port());
    let renewals = Arc::new(AtomicU64::new(0));
    let counted = Counted {
        provider: Arc::new(RedisProvider::open(&options, "bench")?),
        renewals: Arc::clone(&renewals),
    };
    let keeper = LockKeeper::builder(Arc::new(counted))
        .lease(LeasePolicy::Renewed { ttl: TTL })
        .build()?;
    // The first renewal starts the keeper's threads. Three more join while a batch of renewals takes longer than 5
    // ms, whatever the number of leases.
    let first = keeper.lock("first")?;
    let until = Instant::now() + TTL;
    while renewals.load(Ordering::Relaxed) == 0 {
        if Instant::now() > until {
            return Err("the first lease is not renewed".into());
        }
        thread::sleep(Duration::from_millis(100));
    }
    let read = || -> Result<_, Box<dyn StdError>> {
        let (threads, memory) = (status(None, "Threads"), resident(None));
        Ok((threads, memory, memory_of_redis(&server)?))
    };
    let before = read()?;
    let mut guards = Vec::new();
    // The first lease is one of them.
    for number in 1..leases {
        guards.push(keeper.lock(format!("seat:{number}"))?);
    }
    let (from, sent) = (renewals.load(Ordering::Relaxed), sent_to_redis(&server)?);
    thread::sleep(WATCHED);
    let round_trips = renewals.load(Ordering::Relaxed) - from;
    let renewed = sent_to_redis(&server)? - sent;
    let after = read()?;
    let lost = guards
        .iter()
        .filter(|guard| guard.lost_signal().is_lost())
        .count();
    if lost > 0 {
        return Err(format!("{lost} leases were lost").into());
    }
    // Each is renewed every 10 s; a tenth may fall just outside of the interval.
    if renewed < u64::from(leases) * 9 / 10 {
        return Err(format!("only {renewed} of {leases} leases were renewed").into());
    }
    drop(guards);
    drop(first);
    let more = |before: Option<f64>, after: Option<f64>| Some(after? - before?);
    Ok(Cost {
        threads: more(before.0, after.0),
        memory: more(before.1, after.1).map(|bytes| bytes / f64::from(leases)),
        stored: (after.2 - before.2) / f64::from(leases),
        round_trips: round_trips as f64,
    })
}

/// Measures both numbers of leases. The rows of the smaller one have budgets. Those of the larger one show the
/// growth: their floor is the figure of the smaller one.
pub(crate) fn rows(_: Kind) -> Rows {
    let (few, many) = (hold(LEASES)?, hold(MORE_LEASES)?);
    let mut rows = Vec::new();
    if let (Some(of_few), Some(of_many)) = (few.threads, many.threads) {
        let what = |leases: &str| format!("threads more for {leases} held leases, redis");
        rows.push(Row::plain(what("10,000"), of_few, 0, "", 0.0));
        rows.push(Row::plain(what("100,000"), of_many, 0, "", NONE));
    }
    let mut add = |what: &str, (few, many), unit, budget| {
        let of = |leases| format!("  {what}, {leases}");
        rows.push(Row::plain(of("10,000"), few, 0, unit, budget));
        rows.push(Row::growth(of("100,000"), many, few, unit));
    };
    if let Some(memory) = few.memory.zip(many.memory) {
        add("memory a lease (RSS)", memory, " B", 1024.0);
    }
    let stored = (few.stored, many.stored);
    add("memory of the server a lease", stored, " B", NONE);
    let round_trips = (few.round_trips, many.round_trips);
    add("renewal round trips in 10 s", round_trips, "", 20.0);
    Ok(rows)
}
