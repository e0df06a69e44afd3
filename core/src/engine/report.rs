//! Reports acquisitions and outages to observers.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use crate::clock::HostInstant;
use crate::engine::observer::ObservedLock;
use crate::error::{Error, ErrorKind};
use crate::mode::Mode;
use crate::name::LockName;
use crate::sync::lock;

use super::Engine;
use super::hold::Hold;
use super::hold::acquired::Acquired;

/// Reports one acquisition to observers. Its end is reported also if the backend panics.
///
/// The code that keepers without observers pass is always inlined, as in `release.rs`.
pub(super) struct AcquisitionReport<'a> {
    engine: &'a Engine,
    name: &'a LockName,
    mode: Mode,
    began: HostInstant,
    /// Whether the end is still to be reported.
    is_open: bool,
    is_contended: Cell<bool>,
}

impl<'a> AcquisitionReport<'a> {
    #[inline(always)]
    pub(super) fn begin(
        engine: &'a Engine,
        name: &'a LockName,
        mode: Mode,
        began: HostInstant,
    ) -> Self {
        let report = Self {
            engine,
            name,
            mode,
            began,
            is_open: engine.notifier.is_observed(),
            is_contended: Cell::new(false),
        };
        if report.is_open {
            let lock = report.lock();
            engine.notifier.notify(|o| o.requested(&lock));
        }
        report
    }

    fn lock(&self) -> ObservedLock<'a> {
        self.engine.observed(self.name, self.mode)
    }

    /// Reports, once, that another holder has the name.
    pub(super) fn contended(&self) {
        if self.is_open && !self.is_contended.replace(true) {
            let lock = self.lock();
            self.engine.notifier.notify(|o| o.contended(&lock));
        }
    }

    /// Reports the result.
    #[inline(always)]
    pub(super) fn end(mut self, result: &mut Result<Option<Acquired>, Error>) {
        if self.is_open {
            match result {
                Ok(Some(acquired)) => self.end_acquired(acquired),
                Ok(None) => self.end_without(None),
                Err(error) => self.end_without(Some(error)),
            }
        }
    }

    fn end_acquired(&mut self, acquired: &mut Acquired) {
        let (now, lock) = (self.close(), self.lock());
        acquired.reported_at = Some(now);
        let (waited, token) = (now.saturating_since(self.began), acquired.token());
        let is_handed_over = acquired.number > 0;
        let notifier = &self.engine.notifier;
        notifier.notify(|o| o.acquired(&lock, token, waited, is_handed_over));
    }

    fn end_without(&mut self, error: Option<&Error>) {
        let (now, lock) = (self.close(), self.lock());
        let waited = now.saturating_since(self.began);
        let notifier = &self.engine.notifier;
        notifier.notify(|o| o.not_acquired(&lock, waited, error));
    }

    /// Returns the time of the end.
    fn close(&mut self) -> HostInstant {
        self.is_open = false;
        self.engine.clock.now()
    }
}

impl Drop for AcquisitionReport<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_open {
            let text = "the backend panicked while it acquired the lock; what the store may have granted expires with its ttl";
            self.end_without(Some(&Error::new(ErrorKind::Unknown, text)));
        }
    }
}

/// The beginnings and ends of outages that are not reported yet.
#[derive(Default)]
pub(super) struct OutageReports(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of parts of the store that have an outage.
    down: usize,
    /// When the first of these outages began.
    began: HostInstant,
    due: VecDeque<OutageEvent>,
    /// Whether a thread is notifying the observers, which must be in order.
    is_telling: bool,
}

enum OutageEvent {
    Began(Error),
    Ended(Duration),
}

impl OutageReports {
    pub(super) fn is_due(&self) -> bool {
        !lock(&self.0).due.is_empty()
    }
}

impl Engine {
    /// Returns the lock that an event is about.
    pub(super) fn observed<'a>(&'a self, name: &'a LockName, mode: Mode) -> ObservedLock<'a> {
        ObservedLock {
            name,
            mode,
            store: &self.location,
        }
    }

    pub(super) fn observed_hold<'a>(&'a self, hold: &'a Hold) -> ObservedLock<'a> {
        self.observed(&hold.name, hold.mode)
    }

    /// Reports, on a thread of the keeper, that an outage has begun. The calling thread may have to release or
    /// renew a lease, and must not wait for the user's code.
    pub(super) fn report_outage(&self, since: HostInstant, reason: &Error) {
        let mut state = lock(&self.outage_reports.0);
        state.down += 1;
        if state.down == 1 {
            state.began = since;
            state.due.push_back(OutageEvent::Began(reason.clone()));
            self.timer.note(HostInstant::from_nanos(0));
        }
    }

    /// Reports, on a thread of the keeper, that an outage has ended, if it was the only one.
    pub(super) fn report_outage_end(&self) {
        let now = self.clock.now();
        let mut state = lock(&self.outage_reports.0);
        state.down = state.down.saturating_sub(1);
        if state.down == 0 {
            let lasted = now.saturating_since(state.began);
            state.due.push_back(OutageEvent::Ended(lasted));
            self.timer.note(HostInstant::from_nanos(0));
        }
    }

    /// Reports the end of all outages when the keeper ends, since each beginning needs an end.
    pub(super) fn end_outages(&self) {
        let mut state = lock(&self.outage_reports.0);
        // So many never end, and none is the first: what is still under way reports nothing more.
        if std::mem::replace(&mut state.down, usize::MAX / 2) > 0 {
            let lasted = self.clock.now().saturating_since(state.began);
            state.due.push_back(OutageEvent::Ended(lasted));
        }
        drop(state);
        self.notify_outages();
    }

    /// Reports the due events, unless another thread does.
    pub(super) fn notify_outages(&self) {
        let mut is_first = true;
        loop {
            let mut state = lock(&self.outage_reports.0);
            if is_first && state.is_telling {
                return;
            }
            is_first = false;
            let next = state.due.pop_front();
            state.is_telling = next.is_some();
            drop(state);
            let store = &self.location;
            match next {
                None => return,
                Some(OutageEvent::Began(reason)) => {
                    self.notifier.notify(|o| o.outage_began(store, &reason));
                }
                Some(OutageEvent::Ended(lasted)) => {
                    self.notifier.notify(|o| o.outage_ended(store, lasted));
                }
            }
        }
    }
}
