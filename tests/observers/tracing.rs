//! What the tracing observer reports to a subscriber.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::clock::ManualClock;
use lockkeeper::observers::TracingObserver;
use lockkeeper::{
    AcquireOptions, CancelToken, Config, Error, ErrorKind, FencingToken, LeasePolicy, LockKeeper,
    ObservedLock, Observer,
};
use lockkeeper_testkit::until;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::unanswering_store;

/// Records spans and events as lines.
#[derive(Clone, Default)]
struct Lines {
    lines: Arc<Mutex<Vec<String>>>,
    spans: Arc<AtomicU64>,
}

impl Lines {
    fn push(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    /// Returns the lines so far, and forgets them.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }
}

/// The fields of a span or event. What differs from run to run is left out.
#[derive(Default)]
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "waited_ms" | "held_ms" | "token" => write!(self.0, " {field}"),
            _ => write!(self.0, " {field}={value:?}"),
        }
        .unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "lockkeeper" || metadata.target() == "shop"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        let id = self.spans.fetch_add(1, Ordering::SeqCst) + 1;
        let (level, name) = (span.metadata().level(), span.metadata().name());
        self.push(format!("span {id} {level} {name}{}", fields.0));
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        self.push(format!("span {}{}", span.into_u64(), fields.0));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.push(format!("{}{}", event.metadata().level(), fields.0));
    }

    fn enter(&self, span: &Id) {
        self.push(format!("enter {}", span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        self.push(format!("exit {}", span.into_u64()));
    }
}

fn keeper() -> LockKeeper {
    let config = Config::from_url("memory:?wait=30s").unwrap();
    lockkeeper::open_config(&config.observer(Arc::new(TracingObserver::new()))).unwrap()
}

#[test]
fn acquisition_is_a_span_and_its_end_is_recorded() {
    let (keeper, lines) = (keeper(), Lines::default());
    let store = keeper.location();
    tracing::subscriber::with_default(lines.clone(), || {
        let guard = keeper.lock("a").unwrap();
        assert_eq!(
            lines.take(),
            [
                &format!("span 1 DEBUG acquire name=a mode=exclusive store={store:?}"),
                "enter 1",
                "span 1 outcome=\"acquired\"",
                "span 1 waited_ms",
                "span 1 token",
                "span 1 handed_over=false",
                "exit 1",
            ]
        );
        let busy = keeper.try_lock_for("a", Duration::from_millis(10));
        assert!(busy.unwrap().is_none());
        assert_eq!(
            lines.take(),
            [
                &format!("span 2 DEBUG acquire name=a mode=exclusive store={store:?}"),
                "enter 2",
                &format!("DEBUG message=another holder has the lock name=\"a\" store={store:?}"),
                "span 2 outcome=\"busy\"",
                "span 2 waited_ms",
                "exit 2",
            ]
        );
        drop(guard);
        let released = format!(
            "DEBUG message=the lock was released name=\"a\" store={store:?} token held_ms found=Done"
        );
        assert_eq!(lines.take(), [released]);
    });
}

#[test]
fn failure_is_a_warning_and_a_cancel_is_not() {
    let (keeper, lines) = (keeper(), Lines::default());
    tracing::subscriber::with_default(lines.clone(), || {
        let _two = keeper.semaphore("a", 2).unwrap().acquire().unwrap();
        lines.take();
        keeper.semaphore("a", 3).unwrap().acquire().unwrap_err();
        let told = lines.take().join("\n");
        assert!(
            told.contains("WARN message=the lock was not acquired"),
            "{told}"
        );
        assert!(told.contains("outcome=\"error\""), "{told}");

        let cancel = CancelToken::new();
        cancel.cancel();
        let options = AcquireOptions::new().cancel(&cancel);
        keeper.acquire("b", &options).unwrap_err();
        let told = lines.take().join("\n");
        assert!(!told.contains("WARN"), "{told}");
        assert!(told.contains("outcome=\"cancelled\""), "{told}");
    });
}

#[test]
fn handover_and_renewal_are_told() {
    let (keeper, lines) = (keeper(), Lines::default());
    let store = keeper.location();
    tracing::subscriber::with_default(lines.clone(), || {
        let _first = keeper.lock_shared("a").unwrap();
        lines.take();
        let second = keeper.lock_shared("a").unwrap();
        let told = lines.take().join("\n");
        assert!(told.contains("handed_over=true"), "{told}");
        second.renew().unwrap();
        let renewed =
            format!("TRACE message=the lease was renewed name=\"a\" store={store:?} token");
        assert_eq!(lines.take(), [renewed]);
    });
}

#[test]
fn renewal_and_release_without_an_answer_are_warnings() {
    let lines = Lines::default();
    let keeper = unanswering_store::open(Arc::new(TracingObserver::new()));
    tracing::subscriber::with_default(lines.clone(), || {
        let guard = keeper.lock("a").unwrap();
        lines.take();
        guard.renew().unwrap_err();
        let release = guard.release().unwrap_err();
        assert_eq!(
            lines.take(),
            [
                "WARN message=a renewal has no answer; the lease keeps its deadline name=\"a\" store=\"unanswering:\" token error=no connection",
                &format!(
                    "WARN message=the release has no answer name=\"a\" store=\"unanswering:\" token held_ms error={release}"
                ),
            ]
        );
    });
}

/// Reports losses to a subscriber. A thread of the keeper finds them, which has no subscriber of its own.
struct Losses(Lines);

impl Observer for Losses {
    fn lost(&self, lock: &ObservedLock<'_>, token: FencingToken) {
        tracing::subscriber::with_default(self.0.clone(), || {
            TracingObserver::new().lost(lock, token);
        });
    }
}

#[test]
fn loss_is_an_error() {
    let (clock, lines) = (ManualClock::new(), Lines::default());
    let config = Config::from_url("memory:").unwrap();
    let config = config.clock(Arc::new(clock.clone()));
    let config = config.observer(Arc::new(Losses(lines.clone())));
    let keeper = lockkeeper::open_config(&config).unwrap();
    let ttl = Duration::from_secs(10);
    let options = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let _guard = keeper.acquire("a", &options).unwrap().unwrap();
    clock.advance(ttl);
    let mut told = Vec::new();
    until("the loss is told", || {
        told.extend(lines.take());
        !told.is_empty()
    });
    assert_eq!(
        told,
        ["ERROR message=the lock was lost name=\"a\" store=\"memory:\" token"]
    );
}

#[test]
fn trouble_of_the_store_is_told_at_its_level() {
    let (observer, lines) = (TracingObserver::new(), Lines::default());
    let gone = Error::new(ErrorKind::Unavailable, "no connection");
    tracing::subscriber::with_default(lines.clone(), || {
        observer.outage_began("far:", &gone);
        observer.outage_ended("far:", Duration::from_secs(2));
        observer.warning("far:", "its clock is slow");
        observer.open_waits("far:", &gone);
        observer.fallback("far:", "memory:", &gone);
    });
    assert_eq!(
        lines.take(),
        [
            "WARN message=the store cannot be reached store=\"far:\" reason=no connection",
            "INFO message=the store answers again store=\"far:\" lasted_ms=2000",
            "WARN message=its clock is slow store=\"far:\"",
            "INFO message=the store is not up yet; opening waits for it store=\"far:\" reason=no connection",
            "WARN message=a fallback is used, which excludes no holder on the first store from=\"far:\" to=\"memory:\" reason=no connection",
        ]
    );
}
