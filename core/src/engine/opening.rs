//! Opening a store that comes up a little later.

use crate::cancel::CancelToken;
use crate::clock::{Clock, HostInstant};
use crate::error::{Error, ErrorKind};

use super::backoff::{Limits, backoff};
use super::health::outlasted;

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
    let (began, mut waits) = (clock.now(), Some(waits));
    let mut retries = 0;
    loop {
        if limits.is_cancelled() {
            let text = "opening the store was cancelled";
            return Err(Error::new(ErrorKind::Cancelled, text));
        }
        let error = match open() {
            Err(error) if error.kind() == ErrorKind::Unavailable => error,
            opened => return opened,
        };
        if limits.left().is_zero() {
            let backend = error.backend();
            let error = outlasted(error, clock.now().saturating_since(began), false);
            return Err(match backend {
                Some(backend) => error.with_backend(backend),
                None => error,
            });
        }
        if let Some(waits) = waits.take() {
            waits(&error);
        }
        limits.pause(backoff(retries));
        retries = retries.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;

    const WAIT: Duration = Duration::from_secs(10);

    /// Opens a store that answers with these errors in turn, and then opens. Returns the result, how often
    /// it was asked, and how often `waits` was called.
    fn open(errors: &[Error], wait: Duration) -> (Result<(), Error>, usize, usize) {
        let (clock, told) = (ManualClock::new(), Cell::new(0));
        let (until, mut asked) = (clock.now() + wait, 0);
        let opened = open_through_outage(
            &clock,
            until,
            None,
            |_| told.set(told.get() + 1),
            || {
                asked += 1;
                errors.get(asked - 1).map_or(Ok(()), |it| Err(it.clone()))
            },
        );
        (opened, asked, told.get())
    }

    #[test]
    fn only_a_store_that_cannot_be_reached_is_asked_again() {
        let unavailable = Error::new(ErrorKind::Unavailable, "gone").with_backend("test");
        let unknown = Error::new(ErrorKind::Unknown, "no reply");
        let (opened, asked, told) = open(&[], WAIT);
        assert!(opened.is_ok() && (asked, told) == (1, 0));
        let (opened, asked, told) = open(&[unavailable.clone(), unavailable.clone()], WAIT);
        assert!(opened.is_ok() && (asked, told) == (3, 1));

        let (refused, asked, told) = open(&[unknown], WAIT);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unknown);
        assert_eq!((asked, told), (1, 0));

        let (ended, asked, told) = open(&[unavailable], Duration::ZERO);
        let error = ended.unwrap_err();
        assert_eq!(
            (error.kind(), error.backend()),
            (ErrorKind::Unavailable, Some("test"))
        );
        assert_eq!((asked, told), (1, 0), "no other attempt follows");
    }

    #[test]
    fn error_at_the_end_says_for_how_long_the_store_was_gone() {
        let clock = ManualClock::new();
        let fail = || {
            clock.advance(WAIT / 4);
            Err::<(), _>(Error::new(ErrorKind::Unavailable, "gone"))
        };
        let opened = open_through_outage(&clock, clock.now() + WAIT, None, |_| {}, fail);
        let error = opened.unwrap_err();
        assert!(error.message().contains("for the last 10.0s"), "{error}");
    }

    #[test]
    fn cancel_ends_the_opening_before_and_after_an_attempt() {
        let cancel = CancelToken::new();
        let clock = ManualClock::new();
        let asked = Cell::new(0);
        let open = || {
            let fail = || {
                asked.set(asked.get() + 1);
                cancel.cancel();
                Err::<(), _>(Error::new(ErrorKind::Unavailable, "gone"))
            };
            let until = clock.now() + WAIT;
            open_through_outage(&clock, until, Some(&cancel), |_| {}, fail).unwrap_err()
        };
        assert_eq!(open().kind(), ErrorKind::Cancelled);
        assert_eq!(asked.get(), 1);
        assert_eq!(open().kind(), ErrorKind::Cancelled);
        assert_eq!(asked.get(), 1);
    }
}
