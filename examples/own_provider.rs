//! A store of one's own: two traits, in less than sixty lines, and the same suite on it that all
//! backends pass.
//!
//! `cargo run --example own_provider`

#![allow(
    clippy::unwrap_used,
    reason = "short; a real store answers with an Error"
)]

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use lockkeeper::{Error, LockProvider};
use lockkeeper_conformance::{Fixture, Run, Suite};

mod mine {
    use std::collections::{HashMap, VecDeque};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::Duration;

    use lockkeeper::*;

    /// Who holds a name, and behind it those who wait: each an epoch, and until when it stands.
    type Line = VecDeque<(u64, HostInstant)>;
    static EPOCH: AtomicU64 = AtomicU64::new(1);

    #[derive(Clone, Debug, Default)]
    pub(super) struct Mine(Arc<(Mutex<HashMap<LockName, Line>>, Condvar)>);

    #[rustfmt::skip]
    impl Backend for Mine {
        type Lease = MyLease;
        fn backend(&self) -> &'static str { "mine" }
        fn location(&self) -> String { "mine:".to_owned() }
        fn capabilities(&self) -> Capabilities { Capabilities::new() }
        fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<MyLease>>, Error> {
            let (name, epoch) = (request.name(), EPOCH.fetch_add(1, Ordering::Relaxed));
            let mut names = self.0.0.lock().unwrap();
            names.entry(name.clone()).or_default().push_back((epoch, HostInstant::NEVER));
            loop {
                let (asked_at, line) = (request.now(), names.entry(name.clone()).or_default());
                line.retain(|(_, until)| asked_at < *until);
                if let Some((first, until)) = line.front_mut() && *first == epoch {
                    *until = asked_at + request.ttl();
                    let lease = MyLease(name.clone(), epoch);
                    return Ok(Some(Grant { lease, epoch, asked_at }));
                }
                request.contended();
                let left = request.deadline().unwrap_or_default().saturating_since(asked_at);
                if left.is_zero() || request.is_cancelled() {
                    line.retain(|(other, _)| *other != epoch);
                    return Ok(None);
                }
                let look = left.min(Duration::from_millis(50));
                names = self.0.1.wait_timeout(names, look).unwrap().0;
            }
        }
        fn renew(&self, lease: &mut MyLease, ttl: Duration, _: HostInstant) -> Result<Renewal, Error> {
            let renewed = self.end_at(lease, SystemClock.now() + ttl);
            Ok(renewed.map_or(Renewal::Lost, |()| Renewal::Renewed))
        }
        fn release(&self, lease: &mut MyLease, _: HostInstant) -> Result<Released, Error> {
            let released = self.end_at(lease, HostInstant::default());
            Ok(released.map_or(Released::AlreadyLost, |()| Released::Done))
        }
    }

    #[derive(Debug)]
    pub(super) struct MyLease(LockName, u64);

    impl Mine {
        /// Ends a lease at `end`, unless it has ended already.
        fn end_at(&self, lease: &MyLease, end: HostInstant) -> Option<()> {
            let (mut names, now) = (self.0.0.lock().unwrap(), SystemClock.now());
            let holder = names.get_mut(&lease.0)?.front_mut();
            let (_, until) = holder.filter(|(epoch, until)| *epoch == lease.1 && now < *until)?;
            *until = end;
            self.0.1.notify_all();
            Some(())
        }
    }
}

/// A throw-away store, with a map of its own for every namespace.
#[derive(Default)]
struct Fresh(Mutex<HashMap<String, mine::Mine>>);

impl Fixture for Fresh {
    fn open(&self, namespace: &str) -> Result<Arc<dyn LockProvider>, Error> {
        let mut stores = self.0.lock().unwrap();
        let store = stores.entry(namespace.to_owned()).or_default();
        Ok(Arc::new(store.clone()))
    }
}

fn main() -> ExitCode {
    let suite = Suite::new("own_provider", "mine", || Box::new(Fresh::default()));
    Run::new().suite(suite).main()
}
