//! An observer that records a keeper's events. Cases wait for events instead of sleeping.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, FencingToken, ObservedLock, Observer, Released};

/// The kind of an observer's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Contended,
    Renewed,
    Lost,
    Released,
}

/// Records the events of a keeper.
pub(crate) struct EventRecorder {
    events: Mutex<Vec<Event>>,
    changed: Condvar,
    timeout: Duration,
}

impl EventRecorder {
    pub(crate) fn new(timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            events: Mutex::new(Vec::new()),
            changed: Condvar::new(),
            timeout,
        })
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, event: Event) {
        self.events().push(event);
        self.changed.notify_all();
    }

    /// Returns how often `event` has occurred.
    pub(crate) fn count(&self, event: Event) -> usize {
        count(&self.events(), event)
    }

    /// Waits until `event` has occurred `times` times in all.
    pub(crate) fn wait_for(&self, event: Event, times: usize) {
        let deadline = Instant::now() + self.timeout;
        let mut events = self.events();
        while count(&events, event) < times {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "expected the event {event:?} {times} times, and only these occurred: {events:?}{}",
                hint(event)
            );
            let woken = self.changed.wait_timeout(events, left);
            events = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn count(events: &[Event], event: Event) -> usize {
    events.iter().filter(|other| **other == event).count()
}

fn hint(event: Event) -> &'static str {
    match event {
        Event::Contended => {
            "; does the provider call `AcquireRequest::contended` before it starts to wait?"
        }
        _ => "",
    }
}

impl Observer for EventRecorder {
    fn contended(&self, _: &ObservedLock<'_>) {
        self.record(Event::Contended);
    }

    fn renewed(&self, _: &ObservedLock<'_>, _: FencingToken) {
        self.record(Event::Renewed);
    }

    fn lost(&self, _: &ObservedLock<'_>, _: FencingToken) {
        self.record(Event::Lost);
    }

    fn released(
        &self,
        _: &ObservedLock<'_>,
        _: FencingToken,
        _: Duration,
        _: &Result<Released, Error>,
    ) {
        self.record(Event::Released);
    }
}
