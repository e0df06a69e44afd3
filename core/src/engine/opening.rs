//! Opening a store that comes up a little later.

use crate::cancel::CancelToken;
use crate::clock::{Clock, HostInstant};
use crate::error::{Error, ErrorKind};

use super::backoff::Limits;
use super::outage::OutageGate;
use super::retry::Retry;

/// Opens a store by `open`, and while it cannot be reached tries again until `until`, or until `cancel`
/// is cancelled. `waits` is called with the first failure that another attempt follows.
pub(crate) fn open_through_outage<T>(
    clock: &dyn Clock,
    until: HostInstant,
    cancel: Option<&CancelToken>,
    waits: impl FnOnce(&Error),
    mut open: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let limits = Limits {
        clock,
        until,
        cancel,
    };
    let cancelled = || Error::new(ErrorKind::Cancelled, "opening the store was cancelled");
    let gate = OutageGate::new();
    let mut retry = Retry::new(limits, clock.now());
    retry.ride_out(&gate);
    let mut waits = Some(waits);
    loop {
        if limits.is_cancelled() {
            return Err(cancelled());
        }
        let error = match open() {
            Err(error) if error.kind() == ErrorKind::Unavailable => error,
            opened => return opened,
        };
        if !limits.left().is_zero()
            && let Some(waits) = waits.take()
        {
            waits(&error);
        }
        let backend = error.backend();
        retry.after(&error, None).map_err(|error| match backend {
            _ if limits.is_cancelled() => cancelled(),
            Some(backend) => error.with_backend(backend),
            None => error,
        })?;
    }
}
