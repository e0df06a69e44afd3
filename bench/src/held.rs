//! The cost of many held names.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::backend::{
    AcquireRequest, Capabilities, ErasedLease, Grant, LeaseVerifier, LockProvider, Operation,
    Proof, Renewal, StoreInfo,
};
use lockkeeper::backends::redis::{RedisOptions, RedisProvider};
use lockkeeper::clock::HostInstant;
use lockkeeper::{Error, LeasePolicy, LockKeeper, Released, Usage};

use crate::{Row, Rows, server};

const LEASES: u32 = 10_000;
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

    fn renew(
        &self,
        lease: &mut ErasedLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        self.provider.renew(lease, ttl, deadline)
    }

    fn batch(&self, batch: &mut [Operation<'_, ErasedLease>]) {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        self.provider.batch(batch);
    }

    fn release(&self, lease: &mut ErasedLease, deadline: HostInstant) -> Result<Released, Error> {
        self.provider.release(lease, deadline)
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.provider.watch_leases(verifier);
    }

    fn proof(&self, lease: &ErasedLease) -> Option<Proof> {
        self.provider.proof(lease)
    }
}

/// Returns a number of this process from /proc, such as `Threads` or `VmRSS` (in KiB), `None` on other
/// systems.
fn status(name: &str) -> Option<f64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number = line.trim_start_matches(':').split_whitespace().next()?;
    number.parse().ok()
}

pub(crate) fn redis() -> Rows {
    let server = server::start()?;
    let options = RedisOptions::tcp(server.addr().ip().to_string(), server.addr().port());
    let renewals = Arc::new(AtomicU64::new(0));
    let counted = Counted {
        provider: Arc::new(RedisProvider::open(&options, "bench")?),
        renewals: Arc::clone(&renewals),
    };
    let keeper = LockKeeper::builder(Arc::new(counted))
        .lease(LeasePolicy::Renewed { ttl: TTL })
        .build()?;
    // The first renewal has started all threads of the keeper.
    let first = keeper.lock("first")?;
    let until = Instant::now() + TTL;
    while renewals.load(Ordering::Relaxed) == 0 {
        if Instant::now() > until {
            return Err("the first lease is not renewed".into());
        }
        thread::sleep(Duration::from_millis(100));
    }
    let before = (status("Threads"), status("VmRSS"));
    let mut guards = Vec::new();
    // The first lease is one of them.
    for number in 1..LEASES {
        guards.push(keeper.lock(format!("seat:{number}"))?);
    }
    let (from, sent) = (renewals.load(Ordering::Relaxed), server::sent(&server)?);
    thread::sleep(WATCHED);
    let round_trips = renewals.load(Ordering::Relaxed) - from;
    let renewed = server::sent(&server)? - sent;
    let after = (status("Threads"), status("VmRSS"));
    let lost = guards
        .iter()
        .filter(|guard| guard.lost_signal().is_lost())
        .count();
    if lost > 0 {
        return Err(format!("{lost} leases were lost").into());
    }
    // Each is renewed every 10 s; a tenth may fall just outside of the interval.
    if renewed < u64::from(LEASES) * 9 / 10 {
        return Err(format!("only {renewed} of {LEASES} leases were renewed").into());
    }
    let mut rows = Vec::new();
    if let (Some(few), Some(many)) = (before.0, after.0) {
        rows.push(row(
            "threads more for 10,000 held leases, redis",
            many - few,
            0.0,
            "",
        ));
    }
    if let (Some(small), Some(large)) = (before.1, after.1) {
        let each = (large - small) * 1024.0 / f64::from(LEASES);
        rows.push(row("  memory a lease (RSS)", each, 1024.0, " B"));
    }
    rows.push(row(
        "  renewal round trips in 10 s",
        round_trips as f64,
        20.0,
        "",
    ));
    drop(guards);
    drop(first);
    Ok(rows)
}

fn row(what: &str, value: f64, budget: f64, unit: &'static str) -> Row {
    Row::plain(what.to_owned(), value, 0, unit, budget)
}
