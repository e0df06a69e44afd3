//! Spans and events for the crate `tracing`.

use std::cell::RefCell;
use std::time::Duration;

use tracing::field::Empty;
use tracing::span::EnteredSpan;
use tracing::{debug, debug_span, error, info, trace, warn};

use super::outcome;
use crate::{Error, ErrorKind, FencingToken, ObservedLock, Observer, Released};

thread_local! {
    /// The spans of the acquisitions that are under way on this thread, the inner ones last.
    static ACQUIRING: RefCell<Vec<EnteredSpan>> = const { RefCell::new(Vec::new()) };
}

/// Reports what a keeper does as spans and events of the crate [`tracing`](https://docs.rs/tracing), with the
/// target `lockkeeper`.
///
/// Each acquisition is a span `acquire` of the level `DEBUG`, on the thread of the caller, within the
/// current span of that thread. Its fields are `name`, `mode` and `store`, and at its end `outcome` and
/// `waited_ms`. `outcome` is `acquired`, `busy`, `cancelled`, `unavailable`, `unknown`, `pool_exhausted`
/// or `error`. A lock that was granted also has `token` and `handed_over`.
///
/// Events, with `name`, `store` and what belongs to them:
///
/// | level | events |
/// |---|---|
/// | `ERROR` | the lock was lost |
/// | `WARN` | an acquisition failed, other than because the lock was held or the wait was cancelled; a renewal or a release has no answer; an outage began; a fallback is used; a warning about the store |
/// | `INFO` | an outage ended; opening waits for the store |
/// | `DEBUG` | another holder has the lock; the lock was released, with `held_ms` |
/// | `TRACE` | a lease was renewed |
///
/// Spans and events show the names of locks unchanged. Do not use a secret in a lock's name.
#[derive(Debug, Default)]
pub struct TracingObserver(());

impl TracingObserver {
    /// Makes an observer that reports to the subscriber of the thread on which an event happens.
    pub fn new() -> Self {
        Self::default()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Ends the acquisition that began last on this thread.
fn end_acquiring(outcome: &str, waited: Duration, granted: Option<(FencingToken, bool)>) {
    let span = ACQUIRING.with_borrow_mut(Vec::pop);
    if let Some(span) = span {
        span.record("outcome", outcome);
        span.record("waited_ms", millis(waited));
        if let Some((token, handed_over)) = granted {
            span.record("token", token.get());
            span.record("handed_over", handed_over);
        }
    }
}

impl Observer for TracingObserver {
    fn requested(&self, lock: &ObservedLock<'_>) {
        let span = debug_span!(
            target: "lockkeeper",
            "acquire",
            name = %lock.name,
            mode = %lock.mode,
            store = lock.store,
            outcome = Empty,
            waited_ms = Empty,
            token = Empty,
            handed_over = Empty,
        );
        let span = span.entered();
        ACQUIRING.with_borrow_mut(|spans| spans.push(span));
    }

    fn acquired(
        &self,
        _lock: &ObservedLock<'_>,
        token: FencingToken,
        waited: Duration,
        handed_over: bool,
    ) {
        end_acquiring("acquired", waited, Some((token, handed_over)));
    }
    fn contended(&self, lock: &ObservedLock<'_>) {
        let (name, store) = (lock.name.as_str(), lock.store);
        debug!(target: "lockkeeper", name, store, "another holder has the lock");
    }

    fn not_acquired(&self, lock: &ObservedLock<'_>, waited: Duration, error: Option<&Error>) {
        if let Some(error) = error.filter(|error| error.kind() != ErrorKind::Cancelled) {
            let (name, store) = (lock.name.as_str(), lock.store);
            warn!(target: "lockkeeper", name, store, %error, "the lock was not acquired");
        }
        end_acquiring(outcome(error), waited, None);
    }

    fn renewed(&self, lock: &ObservedLock<'_>, token: FencingToken) {
        let (name, store, token) = (lock.name.as_str(), lock.store, token.get());
        trace!(target: "lockkeeper", name, store, token, "the lease was renewed");
    }

    fn renewal_unknown(&self, lock: &ObservedLock<'_>, token: FencingToken, error: &Error) {
        let (name, store, token) = (lock.name.as_str(), lock.store, token.get());
        warn!(target: "lockkeeper", name, store, token, %error, "a renewal has no answer; the lease keeps its deadline");
    }

    fn lost(&self, lock: &ObservedLock<'_>, token: FencingToken) {
        let (name, store, token) = (lock.name.as_str(), lock.store, token.get());
        error!(target: "lockkeeper", name, store, token, "the lock was lost");
    }

    fn released(
        &self,
        lock: &ObservedLock<'_>,
        token: FencingToken,
        held: Duration,
        result: &Result<Released, Error>,
    ) {
        let (name, store, token) = (lock.name.as_str(), lock.store, token.get());
        let held_ms = millis(held);
        match result {
            Ok(found) => {
                debug!(target: "lockkeeper", name, store, token, held_ms, ?found, "the lock was released");
            }
            Err(error) => {
                warn!(target: "lockkeeper", name, store, token, held_ms, %error, "the release has no answer");
            }
        }
    }

    fn outage_began(&self, store: &str, reason: &Error) {
        warn!(target: "lockkeeper", store, %reason, "the store cannot be reached");
    }

    fn outage_ended(&self, store: &str, lasted: Duration) {
        let lasted_ms = millis(lasted);
        info!(target: "lockkeeper", store, lasted_ms, "the store answers again");
    }

    fn warning(&self, store: &str, text: &str) {
        warn!(target: "lockkeeper", store, "{text}");
    }

    fn open_waits(&self, store: &str, reason: &Error) {
        info!(target: "lockkeeper", store, %reason, "the store is not up yet; opening waits for it");
    }

    fn fallback(&self, from: &str, to: &str, reason: &Error) {
        warn!(target: "lockkeeper", from, to, %reason, "a fallback is used, which excludes no holder on the first store");
    }
}
