//! An observer that a case can wait on: the cases' only clock.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, FencingToken, LockName, Observer, Released};

/// What an observer was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Acquired,
    Contended,
    NotAcquired,
    Renewed,
    RenewalUnknown,
    Lost,
    Released,
}

/// Hears what a keeper does.
pub(crate) struct Ear {
    heard: Mutex<Vec<Event>>,
    news: Condvar,
    patience: Duration,
}

impl Ear {
    pub(crate) fn new(patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            heard: Mutex::new(Vec::new()),
            news: Condvar::new(),
            patience,
        })
    }

    fn hear(&self, event: Event) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.push(event);
        self.news.notify_all();
    }

    /// How often `event` was heard so far.
    pub(crate) fn count(&self, event: Event) -> usize {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.iter().filter(|other| **other == event).count()
    }

    /// Waits until `event` was heard `times` times in all.
    pub(crate) fn wait_for(&self, event: Event, times: usize) {
        let deadline = Instant::now() + self.patience;
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        while heard.iter().filter(|other| **other == event).count() < times {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "the observer was to be told {event:?} {times} times and was told only {heard:?}{}",
                hint(event)
            );
            heard = self
                .news
                .wait_timeout(heard, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

fn hint(event: Event) -> &'static str {
    match event {
        Event::Contended => {
            "; does the provider call `AcquireRequest::contended` before it starts to wait?"
        }
        _ => "",
    }
}

impl Observer for Ear {
    fn acquired(&self, _: &LockName, _: FencingToken, _: Duration, _: bool) {
        self.hear(Event::Acquired);
    }

    fn contended(&self, _: &LockName) {
        self.hear(Event::Contended);
    }

    fn not_acquired(&self, _: &LockName, _: Duration, _: Option<&Error>) {
        self.hear(Event::NotAcquired);
    }

    fn renewed(&self, _: &LockName, _: FencingToken) {
        self.hear(Event::Renewed);
    }

    fn renewal_unknown(&self, _: &LockName, _: FencingToken, _: &Error) {
        self.hear(Event::RenewalUnknown);
    }

    fn lost(&self, _: &LockName, _: FencingToken) {
        self.hear(Event::Lost);
    }

    fn released(&self, _: &LockName, _: FencingToken, _: &Result<Released, Error>) {
        self.hear(Event::Released);
    }
}
