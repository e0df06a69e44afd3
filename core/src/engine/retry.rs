//! Asking a store again after a lost reply, and while the store cannot be reached.
//!
//! A provider makes one attempt a call. Whether another attempt follows, and what the last error
//! means, is decided here for every store.

use std::time::Duration;

use crate::clock::HostInstant;
use crate::error::{Error, ErrorKind};

use super::backoff::{Limits, backoff};
use super::health::turns::OutageWait;
use super::health::{Health, outlasted};

/// The retries of one operation, until a deadline or until it is cancelled.
pub(super) struct Retry<'a> {
    limits: Limits<'a>,
    /// Set if the operation waits for the end of outages.
    rides_out: Option<&'a Health>,
    /// Its turn to ask the store in an outage.
    outage: Option<OutageWait<'a>>,
    /// When the attempt that is under way began. If it has failed for good, when the store last answered it.
    asked_at: HostInstant,
    retries: u32,
    /// Whether no attempt follows the one that is under way.
    is_last: bool,
    /// Whether an exhausted pool is no reason to end.
    waits_for_pool: bool,
    /// The longest time of the retries after a failure, until the store answers.
    resolve_limit: Option<Duration>,
    /// When that time is over.
    resolve_until: HostInstant,
    lost_reply: Option<Error>,
}

impl<'a> Retry<'a> {
    /// Creates the retries of an operation that begins at `began`.
    pub(super) fn new(limits: Limits<'a>, began: HostInstant) -> Self {
        Self {
            limits,
            rides_out: None,
            outage: None,
            asked_at: began,
            retries: 0,
            is_last: false,
            waits_for_pool: false,
            resolve_limit: None,
            resolve_until: HostInstant::NEVER,
            lost_reply: None,
        }
    }

    /// Returns when the attempt that is under way began.
    pub(super) fn asked_at(&self) -> HostInstant {
        self.asked_at
    }

    /// Begins with the attempts, also those that follow an answer of the store.
    pub(super) fn begin(&mut self, began: HostInstant) {
        self.asked_at = began;
        self.resolve_until = HostInstant::NEVER;
    }

    /// Makes the operation retry while a part of the store cannot be reached, together with all others.
    pub(super) fn ride_out(&mut self, health: &'a Health) {
        self.rides_out = Some(health);
    }

    /// Makes the operation retry also while all connections are in use. `lost_reply` is the error of an
    /// attempt that was made before.
    pub(super) fn continued(mut self, lost_reply: Option<Error>) -> Self {
        self.waits_for_pool = true;
        self.lost_reply = lost_reply;
        self
    }

    /// Returns the error of the first attempt whose reply was lost.
    pub(super) fn lost_reply(&self) -> Option<&Error> {
        self.lost_reply.as_ref()
    }

    /// Limits retries to `limit` after a failure, until the store answers.
    pub(super) fn limit_to(&mut self, limit: Duration) {
        self.resolve_limit = Some(limit);
    }

    /// Waits until the first attempt may be made: in an outage, until the store answers another thread,
    /// or this one is to ask.
    ///
    /// # Errors
    /// The error to end with.
    pub(super) fn before_first(&mut self) -> Result<(), Error> {
        let Some(waited) = self.wait_in_outage() else {
            return Ok(());
        };
        self.asked_at = self.limits.clock.now();
        waited.map_err(|cause| self.last(cause))
    }

    /// Backs off before the next attempt. `answered_at` says when the store answered in this attempt before
    /// it failed, if it did.
    ///
    /// # Errors
    /// The error to end with, when there is no next attempt. After a lost reply nothing may have been
    /// granted or released for sure, so an unreachable store is [`ErrorKind::Unknown`] then.
    pub(super) fn after(
        &mut self,
        error: &Error,
        answered_at: Option<HostInstant>,
    ) -> Result<(), Error> {
        let paused = self.pause(error, answered_at);
        paused.map_err(|error| self.last(error))
    }

    /// Backs off as [`after`](Self::after) does.
    ///
    /// # Errors
    /// The cause of the error to end with, for [`last`](Self::last). After that every call fails.
    pub(super) fn pause(
        &mut self,
        error: &Error,
        answered_at: Option<HostInstant>,
    ) -> Result<(), Error> {
        // Unless all goes well.
        let was_last = std::mem::replace(&mut self.is_last, true);
        let may_pass = match error.kind() {
            ErrorKind::Unknown => {
                self.lost_reply.get_or_insert_with(|| error.clone());
                true
            }
            // A single attempt, too, has time to ask again.
            ErrorKind::Unavailable if error.is_of_name() => true,
            ErrorKind::Unavailable => self.rides_out.is_some() || self.lost_reply.is_some(),
            // A silent store keeps the connections in use.
            ErrorKind::PoolExhausted => {
                self.waits_for_pool || self.rides_out.is_some_and(Health::is_in_doubt)
            }
            _ => false,
        };
        if !may_pass {
            return Err(error.clone());
        }
        let now = self.limits.clock.now();
        if let Some(limit) = self.resolve_limit
            && self.resolve_until == HostInstant::NEVER
        {
            self.resolve_until = now + limit;
        }
        let until = self.limits.until.min(self.resolve_until);
        let is_over = now >= until;
        // The store may have been silent since then.
        self.asked_at = match error.is_not_sent() {
            true => now,
            false => answered_at.unwrap_or(self.asked_at),
        };
        // A store that has answered and failed behind the deadline is asked once more whether the name
        // is still held. After a lost reply that could grant what the caller no longer waits for.
        let asks_at_deadline = self.rides_out.is_some() && self.lost_reply.is_none();
        if was_last || (is_over && !(answered_at.is_some() && asks_at_deadline)) {
            return Err(error.clone());
        }
        if !is_over {
            match self.wait_in_outage() {
                Some(waited) => waited?,
                None => self.limits.pause(backoff(self.retries)),
            }
        }
        self.retries = self.retries.saturating_add(1);
        self.asked_at = self.limits.clock.now();
        let is_last = self.asked_at >= until;
        if self.limits.is_cancelled() || (is_last && !asks_at_deadline) {
            return Err(error.clone());
        }
        self.is_last = is_last;
        Ok(())
    }

    /// Waits in an outage until the store answers another thread, or this one is to ask. `None` if there is no outage.
    fn wait_in_outage(&mut self) -> Option<Result<(), Error>> {
        let health = self.rides_out.filter(|it| it.is_down())?;
        let outage = self.outage.get_or_insert_with(|| OutageWait::new(health));
        Some(outage.wait(&self.limits, self.retries))
    }

    /// Leaves the outage to the others. Returns whether a reply was lost.
    pub(super) fn end(&mut self) -> bool {
        (self.rides_out, self.outage) = (None, None);
        self.lost_reply.is_some()
    }

    /// Returns what the last error means, and leaves the outage to the others.
    pub(super) fn last(&mut self, error: Error) -> Error {
        let may_be_granted = self.lost_reply.is_some();
        let is_outage = match error.kind() {
            ErrorKind::Unavailable if error.is_of_name() => may_be_granted,
            ErrorKind::Unavailable | ErrorKind::Unknown => true,
            kind => kind == ErrorKind::PoolExhausted && may_be_granted,
        };
        self.outage = None;
        let rides_out = self.rides_out.take();
        if !is_outage {
            return error;
        }
        let since = rides_out.map(|it| it.outage().map_or(self.asked_at, |(since, _)| since));
        let now = self.limits.clock.now();
        let span = since.map_or(Duration::ZERO, |since| now.saturating_since(since));
        outlasted(error, span, may_be_granted)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::health::{Asked, Unanswered};
    use super::*;
    use crate::cancel::CancelToken;
    use crate::clock::{Clock, ManualClock};

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "the test's store failed")
    }

    fn limits(clock: &ManualClock) -> Limits<'_> {
        Limits {
            clock,
            until: clock.now() + Duration::from_secs(60),
            cancel: None,
        }
    }

    /// A waiter of a backend may ask once more after it was told to end.
    #[test]
    fn nothing_follows_the_end_of_the_retries() {
        let clock = ManualClock::new();
        let mut retry = Retry::new(limits(&clock), clock.now());
        assert!(retry.pause(&error(ErrorKind::Unknown), None).is_ok());
        assert!(retry.pause(&error(ErrorKind::InvalidName), None).is_err());
        for _ in 0..2 {
            assert!(retry.pause(&error(ErrorKind::Unknown), None).is_err());
        }
    }

    /// The first retry follows at once, and the others do not.
    #[test]
    fn retries_pause() {
        let (clock, health) = (ManualClock::new(), Health::new());
        for rides_out in [false, true] {
            let mut retry = Retry::new(limits(&clock), clock.now());
            if rides_out {
                retry.ride_out(&health);
            }
            let began = Instant::now();
            for _ in 0..4 {
                retry.pause(&error(ErrorKind::Unknown), None).unwrap();
            }
            let shortest = Duration::from_millis(5 + 10 + 20);
            assert!(began.elapsed() >= shortest);
        }
    }

    /// Which failures another attempt follows, and what the last one means.
    #[test]
    fn kind_of_a_failure_decides_whether_it_is_repeated_and_what_it_means() {
        use ErrorKind::{InvalidName, PoolExhausted, Unavailable, Unknown};

        let of_name = Error::name_unavailable("moved");
        // Whether another attempt follows; after a lost reply; as a release in the background.
        let cases = [
            (error(Unknown), [true, true, true], Unknown),
            (error(Unavailable), [false, true, false], Unavailable),
            (of_name, [true, true, true], Unavailable),
            (error(PoolExhausted), [false, false, true], PoolExhausted),
            (error(InvalidName), [false, false, false], InvalidName),
        ];
        for (failure, expected, kind) in cases {
            let clock = ManualClock::new();
            let new = || Retry::new(limits(&clock), clock.now());
            let mut after_lost_reply = new();
            after_lost_reply.pause(&error(Unknown), None).unwrap();
            let mut retries = [new(), after_lost_reply, new().continued(None)];
            let repeated = retries
                .each_mut()
                .map(|it| it.pause(&failure, None).is_ok());
            assert_eq!(repeated, expected, "{failure}");

            let last = retries.each_mut().map(|it| it.last(failure.clone()).kind());
            let lost = if kind == InvalidName { kind } else { Unknown };
            assert_eq!(last, [kind, lost, kind], "{failure}");
        }
    }

    #[test]
    fn limit_of_retries_begins_with_a_failure_and_ends_with_an_answer() {
        let (clock, second) = (ManualClock::new(), Duration::from_secs(1));
        let mut retry = Retry::new(limits(&clock), clock.now());
        retry.limit_to(5 * second);
        clock.advance(20 * second);
        for _ in 0..2 {
            assert!(retry.pause(&error(ErrorKind::Unknown), None).is_ok());
            clock.advance(2 * second);
        }
        retry.begin(clock.now());
        for _ in 0..2 {
            assert!(retry.pause(&error(ErrorKind::Unknown), None).is_ok());
            clock.advance(3 * second);
        }
        assert!(retry.pause(&error(ErrorKind::Unknown), None).is_err());
    }

    /// A silent store keeps the connections in use, and a busy one does not.
    #[test]
    fn exhausted_pool_ends_no_wait_while_the_store_is_in_doubt() {
        for in_doubt in [false, true] {
            let (clock, health) = (ManualClock::new(), Health::new());
            let mut retry = Retry::new(limits(&clock), clock.now());
            retry.ride_out(&health);
            if in_doubt {
                let unanswered = Unanswered {
                    error: &error(ErrorKind::Unknown),
                    asked_at: clock.now(),
                    deadline: HostInstant::NEVER,
                    asked: Asked::ForName,
                };
                health.fail(&unanswered, clock.now(), |_| {});
            }
            let paused = retry.pause(&error(ErrorKind::PoolExhausted), None);
            assert_eq!(paused.is_ok(), in_doubt);
        }
    }

    /// A store that showed a holder and fails behind the deadline is asked once more, unless a reply was lost.
    #[test]
    fn store_is_asked_once_more_at_the_deadline() {
        for (kind, again) in [(ErrorKind::Unavailable, true), (ErrorKind::Unknown, false)] {
            for answered in [true, false] {
                let (clock, health) = (ManualClock::new(), Health::new());
                let mut retry = Retry::new(limits(&clock), clock.now());
                retry.ride_out(&health);
                let answered_at = answered.then(|| clock.now());
                clock.advance(Duration::from_secs(60));
                let paused = retry.pause(&error(kind), answered_at);
                assert_eq!(paused.is_ok(), again && answered);
                assert!(retry.pause(&error(kind), answered_at).is_err());
            }
        }
    }

    #[test]
    fn cancel_ends_the_retries() {
        let (clock, health, cancel) = (ManualClock::new(), Health::new(), CancelToken::new());
        let limits = Limits {
            cancel: Some(&cancel),
            ..limits(&clock)
        };
        let mut retry = Retry::new(limits, clock.now());
        retry.ride_out(&health);
        assert!(retry.pause(&error(ErrorKind::Unavailable), None).is_ok());
        cancel.cancel();
        assert!(retry.pause(&error(ErrorKind::Unavailable), None).is_err());
    }
}
