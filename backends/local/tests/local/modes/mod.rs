//! Shared locks and permits, on each of the stores.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, AcquireRequest, CancelToken, Capability, Clock, ErasedLease, Error, ErrorKind,
    Grant, HeldName, HostInstant, LeasePolicy, LockGuard, LockKeeper, LockName, LockProvider,
    ManualClock, Mode, Released, Renewal, Wait,
};

use crate::{manual_clock, until};

mod waiting;

pub(crate) use waiting::*;

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
            modes_admit_each_other_as_they_say
            grants_take_the_smallest_free_slot
            lock_and_permits_of_one_name_are_separate
            leases_of_one_name_are_renewed_and_released_each_for_itself
            leases_of_one_name_expire_each_for_itself
            another_limit_is_refused_while_permits_are_held
            readers_and_writers_are_served_first_in_first_out
            readers_behind_a_writer_get_in_together
            reader_gets_in_when_the_writer_before_it_gives_up
            writer_gets_in_when_the_last_of_several_leases_has_expired
            writer_waits_in_the_store_behind_its_own_shared_lease
            each_released_permit_goes_to_one_waiter
            each_lease_is_listed_and_released_by_force
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

    /// Has a keeper of its own wait for the name, and waits until it is queued.
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

pub(crate) fn modes_admit_each_other_as_they_say<S: TestStore>(rig: &Rig<S>) {
    let capabilities = rig.provider.capabilities();
    assert!(capabilities.has(Capability::Shared) && capabilities.has(Capability::Permits));
    for (held, asked, is_admitted) in [
        (Exclusive, Exclusive, false),
        (Exclusive, Shared, false),
        (Shared, Exclusive, false),
        (Shared, Shared, true),
        (permit(1), permit(1), false),
        (permit(2), permit(2), true),
    ] {
        let held = rig.grant(held);
        let asked = rig.attempt(asked).unwrap();
        assert_eq!(asked.is_some(), is_admitted, "{held:?}");
        if let Some(asked) = asked {
            assert!(asked.epoch > held.epoch);
            assert_eq!(rig.release(asked), Released::Done);
        }
        assert_eq!(rig.release(held), Released::Done);
        rig.store.assert_empty();
    }
}

pub(crate) fn grants_take_the_smallest_free_slot<S: TestStore>(rig: &Rig<S>) {
    let permits = [0, 1, 2].map(|slot| {
        let permit = rig.grant(permit(3));
        assert_eq!(permit.slot, slot);
        permit
    });
    rig.assert_busy(permit(3));
    let [first, second, third] = permits;
    let before = second.epoch;
    rig.release(second);
    let second = rig.grant(permit(3));
    assert_eq!(second.slot, 1);
    assert!(second.epoch > before, "the epochs of a slot grow");
    rig.release(third);
    rig.release(first);
    let again = [rig.grant(permit(3)), rig.grant(permit(3))];
    assert_eq!([0, 2], again.each_ref().map(|permit| permit.slot));
    rig.assert_busy(permit(3));
    again.into_iter().chain([second]).for_each(|permit| {
        rig.release(permit);
    });
    rig.store.assert_empty();
    assert_eq!(rig.grant(Shared).slot, 0);
    assert_eq!(rig.grant(Shared).slot, 0);
}

pub(crate) fn lock_and_permits_of_one_name_are_separate<S: TestStore>(rig: &Rig<S>) {
    let lock = rig.grant(Exclusive);
    let mut permit_1 = rig.grant(permit(1));
    rig.assert_busy(permit(1));
    assert_eq!(rig.release(lock), Released::Done);
    let lock = rig.grant(Shared);
    assert_eq!(rig.renew(&mut permit_1), Renewal::Renewed);
    assert_eq!(rig.release(permit_1), Released::Done);
    rig.assert_busy(Exclusive);
    // The limit can change while the lock is held.
    let permit_2 = rig.grant(permit(2));
    assert!(permit_2.epoch > lock.epoch);
    assert_eq!(rig.release(lock), Released::Done);
    assert_eq!(rig.release(permit_2), Released::Done);
    rig.store.assert_empty();
}

pub(crate) fn leases_of_one_name_are_renewed_and_released_each_for_itself<S: TestStore>(
    rig: &Rig<S>,
) {
    for mode in [Shared, permit(3)] {
        let [first, mut second, third] = [(); 3].map(|()| rig.grant(mode));
        assert_eq!(rig.release(first), Released::Done);
        assert_eq!(rig.renew(&mut second), Renewal::Renewed);
        assert_eq!(rig.release(third), Released::Done);
        assert_eq!(rig.held().len(), 1);
        assert_eq!(rig.renew(&mut second), Renewal::Renewed);
        assert_eq!(rig.release(second), Released::Done);
        rig.store.assert_empty();
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
        let last = rig.grant(excluded);
        assert_eq!(rig.release(last), Released::Done);
        rig.store.assert_empty();
    }
}

pub(crate) fn another_limit_is_refused_while_permits_are_held<S: TestStore>(rig: &Rig<S>) {
    let held = rig.grant(permit(2));
    let refused = |options| {
        let error = rig.keeper().acquire("seat", &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitMismatch, "{error}");
        assert!(error.to_string().contains("permits of 2"), "{error}");
    };
    for limit in [1, 3] {
        let error = rig.attempt(permit(limit)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitMismatch);
        // At once, with a wait and without.
        refused(mode(permit(limit)).wait(Duration::ZERO));
        refused(mode(permit(limit)).wait_forever());
    }
    assert_eq!(rig.release(held), Released::Done);
    let held = rig.grant(permit(3));
    rig.clock.advance(TTL);
    let next = rig.grant(permit(1));
    assert_eq!(next.slot, 0, "expired permits have no limit");
    assert_eq!(rig.release(held), Released::AlreadyLost);
    assert_eq!(rig.release(next), Released::Done);
    rig.store.assert_empty();
}

pub(crate) fn each_lease_is_listed_and_released_by_force<S: TestStore>(rig: &Rig<S>) {
    let mut grants = [Shared, Shared, permit(7), permit(7)].map(|mode| rig.grant(mode));
    let held = rig.held();
    let listed: Vec<_> = held
        .iter()
        .map(|it| (it.epoch.unwrap(), it.mode, it.slot))
        .collect();
    let [a, b, c, d] = grants.each_ref().map(|grant| grant.epoch);
    let slot = |epoch, slot| (epoch, permit(7), Some(slot));
    assert_eq!(
        listed,
        [(a, Shared, None), (b, Shared, None), slot(c, 0), slot(d, 1)]
    );
    let admin = rig.provider.admin().unwrap();
    for ended in [1, 2] {
        assert!(
            admin
                .force_release(&held[ended], HostInstant::NEVER)
                .unwrap()
        );
        assert!(
            !admin
                .force_release(&held[ended], HostInstant::NEVER)
                .unwrap()
        );
    }
    let renewed = grants.each_mut().map(|grant| rig.renew(grant));
    use Renewal::{Lost, Renewed};
    assert_eq!(renewed, [Renewed, Lost, Lost, Renewed]);
    assert_eq!(rig.grant(permit(7)).slot, 0);
    // A waiter gets the name that was taken from its last holder.
    let writer = rig.queue(mode(Exclusive));
    assert!(admin.force_release(&held[0], HostInstant::NEVER).unwrap());
    drop(writer.join().unwrap().unwrap());
}
