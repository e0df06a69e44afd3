//! Shared locks and permits, on each of the stores: what takes a clock that stands still, and the exact order in which
//! waiters are served. The conformance suite has the rest.

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, AcquireRequest, Clock, ErasedLease, Error, Grant, HeldName, HostInstant,
    LeasePolicy, LockGuard, LockKeeper, LockName, LockProvider, ManualClock, Mode, Released,
    Renewal, Wait,
};

use crate::{manual_clock, until};

use Mode::{Exclusive, Shared};

const TTL: Duration = Duration::from_secs(10);

/// A store of one kind, which several providers open.
pub(crate) trait TestStore {
    fn new(clock: Arc<dyn Clock>) -> Self;
    fn open(&self) -> Arc<dyn LockProvider>;
    /// Tests that no holder and no waiter is left behind.
    fn assert_empty(&self);
}

/// Makes a test of each case.
macro_rules! mode_cases {
    ($store:ty) => {
        $crate::modes::mode_cases! { $store:
            leases_of_one_name_expire_each_for_itself
            readers_and_writers_are_served_first_in_first_out
            writer_gets_in_when_the_last_of_several_leases_has_expired
        }
    };
    ($store:ty: $($case:ident)*) => {
        $(#[test] fn $case() { $crate::modes::$case(&$crate::modes::Rig::<$store>::new()); })*
    };
}
pub(crate) use mode_cases;

pub(crate) struct Rig<S> {
    clock: ManualClock,
    shared_clock: Arc<dyn Clock>,
    store: S,
    provider: Arc<dyn LockProvider>,
    name: LockName,
}

fn permit(limit: u32) -> Mode {
    Mode::Permit { limit }
}

fn mode(mode: Mode) -> AcquireOptions {
    AcquireOptions::new().mode(mode)
}

impl<S: TestStore> Rig<S> {
    pub(crate) fn new() -> Self {
        let (clock, shared_clock) = manual_clock();
        let store = S::new(Arc::clone(&shared_clock));
        let provider = store.open();
        let name = LockName::new("seat").unwrap();
        Self {
            clock,
            shared_clock,
            store,
            provider,
            name,
        }
    }

    /// Makes one attempt as a process of its own would.
    fn attempt(&self, mode: Mode) -> Result<Option<Grant<ErasedLease>>, Error> {
        let request = AcquireRequest::attempt(&self.name, TTL, &*self.shared_clock).with_mode(mode);
        self.provider.acquire(&request)
    }

    fn grant(&self, mode: Mode) -> Grant<ErasedLease> {
        self.attempt(mode).unwrap().unwrap()
    }

    fn assert_busy(&self, mode: Mode) {
        assert!(self.attempt(mode).unwrap().is_none(), "{mode:?}");
    }

    fn renew(&self, grant: &mut Grant<ErasedLease>) -> Renewal {
        self.provider
            .renew(&mut grant.lease, TTL, HostInstant::NEVER)
            .unwrap()
    }

    fn release(&self, mut grant: Grant<ErasedLease>) -> Released {
        self.provider
            .release(&mut grant.lease, HostInstant::NEVER)
            .unwrap()
    }

    /// Opens a keeper of another process, as far as the store knows.
    fn keeper(&self) -> LockKeeper {
        LockKeeper::builder(self.store.open())
            .clock(Arc::clone(&self.shared_clock))
            .lease(LeasePolicy::Fixed { ttl: TTL })
            .handover_max(0)
            .wait(Wait::Forever)
            .build()
            .unwrap()
    }

    /// Starts a keeper that waits for the name, and returns when it is queued.
    fn queue(&self, options: AcquireOptions) -> JoinHandle<Result<LockGuard, Error>> {
        let (keeper, before) = (self.keeper(), self.waiting());
        let waiting = thread::spawn(move || Ok(keeper.acquire("seat", &options)?.unwrap()));
        until("the waiter is queued", || self.waiting() > before);
        waiting
    }

    fn held(&self) -> Vec<HeldName> {
        let admin = self.provider.admin().unwrap();
        admin.held(Some(&self.name), HostInstant::NEVER).unwrap()
    }

    fn waiting(&self) -> u64 {
        self.held().first().map_or(0, |held| held.waiting.unwrap())
    }
}

pub(crate) fn leases_of_one_name_expire_each_for_itself<S: TestStore>(rig: &Rig<S>) {
    for (mode, excluded) in [(Shared, Exclusive), (permit(2), permit(2))] {
        let [mut first, mut second] = [(); 2].map(|()| rig.grant(mode));
        rig.clock.advance(TTL / 2);
        assert_eq!(rig.renew(&mut second), Renewal::Renewed);
        rig.assert_busy(excluded);
        rig.clock.advance(TTL / 2);
        assert_eq!(rig.renew(&mut first), Renewal::Lost);
        assert_eq!(rig.held().len(), 1);
        let next = rig.attempt(excluded).unwrap();
        // The first lease has expired, and the second one goes on.
        assert_eq!(
            next.as_ref().map(|next| next.slot),
            excluded.limit().map(|_| 0)
        );
        assert_eq!(rig.renew(&mut second), Renewal::Renewed);
        next.map(|next| rig.release(next));
        rig.clock.advance(TTL);
        assert_eq!(rig.renew(&mut second), Renewal::Lost);
        // Expired permits have no limit.
        let last = rig.grant(excluded.limit().map_or(excluded, |_| permit(1)));
        assert_eq!(rig.release(last), Released::Done);
        rig.store.assert_empty();
    }
}

pub(crate) fn readers_and_writers_are_served_first_in_first_out<S: TestStore>(rig: &Rig<S>) {
    let reader = rig.grant(Shared);
    let (sender, order) = mpsc::channel();
    let queue = |asked: Mode, number: u64| {
        let (keeper, sender) = (rig.keeper(), sender.clone());
        let thread = thread::spawn(move || {
            let guard = keeper.acquire("seat", &mode(asked)).unwrap().unwrap();
            sender.send(number).unwrap();
            drop(guard);
        });
        until("the waiter is queued", || rig.waiting() > number);
        // A reader that comes now could be granted beside the first one, but waits behind the writer.
        rig.assert_busy(Shared);
        thread
    };
    let modes = [Exclusive, Shared, Exclusive, Exclusive, Shared];
    let threads: Vec<_> = (0..)
        .zip(modes)
        .map(|(number, mode)| queue(mode, number))
        .collect();
    rig.release(reader);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    rig.store.assert_empty();
}

pub(crate) fn writer_gets_in_when_the_last_of_several_leases_has_expired<S: TestStore>(
    rig: &Rig<S>,
) {
    let _first = rig.grant(Shared);
    rig.clock.advance(TTL / 2);
    let mut second = rig.grant(Shared);
    let writer = rig.queue(mode(Exclusive));
    rig.clock.advance(TTL / 2);
    until("the first lease has expired", || rig.held().len() == 1);
    assert_eq!(rig.renew(&mut second), Renewal::Renewed);
    assert_eq!(rig.waiting(), 1);
    rig.clock.advance(TTL);
    let writer = writer.join().unwrap().unwrap();
    assert_eq!(rig.renew(&mut second), Renewal::Lost);
    drop(writer);
    rig.store.assert_empty();
}
