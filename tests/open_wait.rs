//! Opening waits for a store that comes up a little later.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::backend::{Driver, KeySpec, LockProvider, OpenContext, OpenOptions};
use lockkeeper::backends::local::MemoryProvider;
use lockkeeper::{CancelToken, Config, Error, ErrorKind, LockKeeper, Observer, Wait};

/// A store that is up from attempt `up_at` on. The host of its URL says how it fails before.
#[derive(Clone, Debug)]
struct Late {
    up_at: usize,
    attempts: Arc<AtomicUsize>,
}

impl Late {
    fn new(up_at: usize) -> Self {
        let attempts = Arc::default();
        Self { up_at, attempts }
    }

    fn open(&self, url: &str, options: &OpenOptions) -> Result<LockKeeper, Error> {
        self.open_config(&Config::from_url(url)?, options)
    }

    fn open_config(&self, config: &Config, options: &OpenOptions) -> Result<LockKeeper, Error> {
        let drivers = lockkeeper::backend::drivers().with(self.clone());
        drivers.open_with(config, options)
    }

    fn attempts(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }
}

impl Driver for Late {
    fn schemes(&self) -> &'static [&'static str] {
        &["late"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        &[]
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let attempt = self.attempts.fetch_add(1, Ordering::SeqCst) + 1;
        if attempt >= self.up_at {
            return Ok(Arc::new(MemoryProvider::new()));
        }
        Err(match context.url().host() {
            Some("loading") => Error::new(ErrorKind::Unavailable, "it loads its data"),
            Some("locked") => Error::new(ErrorKind::PermissionDenied, "the password is wrong"),
            _ => Error::unreachable("connection refused").with_backend("late"),
        })
    }
}

#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Observer for Told {
    fn open_waits(&self, store: &str, reason: &Error) {
        self.0.lock().unwrap().push(format!("{store}: {reason}"));
    }

    fn fallback(&self, _from: &str, to: &str, reason: &Error) {
        self.0.lock().unwrap().push(format!("{to}: {reason:?}"));
    }
}

const NEVER_UP: usize = usize::MAX;

#[test]
fn store_that_is_up_in_time_is_opened() {
    let told = Arc::new(Told::default());
    let shared = |url: &str| {
        Config::from_url(url)
            .unwrap()
            .observer(Arc::clone(&told) as _)
    };
    let late = Late::new(4);
    let config = shared("late://me:s3cret@down/?open_wait=1m");
    late.open_config(&config, &OpenOptions::new()).unwrap();
    assert_eq!(late.attempts(), 4);
    let once = ["late://me:***@down/: connection refused (late)"];
    assert_eq!(*told.0.lock().unwrap(), once);
    let late = Late::new(4);
    let config = shared("late://loading").open_wait(Wait::Forever);
    late.open_config(&config, &OpenOptions::new()).unwrap();
    let late = Late::new(4);
    let options = OpenOptions::new().wait_forever();
    late.open("late://down?open_wait=0s&fallback=memory:", &options)
        .unwrap();
    assert_eq!(late.attempts(), 4, "the fallback was opened");
}

#[test]
fn store_that_is_not_up_in_time_is_unavailable() {
    let late = Late::new(NEVER_UP);
    let error = late.open("late://down?open_wait=2s", &OpenOptions::new());
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.is_unreachable() && error.backend() == Some("late"),
        "{error:?}"
    );
    assert!(error.to_string().contains("for the last"), "{error:?}");
    assert!(
        error.source().unwrap().to_string().contains("refused"),
        "{error:?}"
    );
    assert!(late.attempts() > 1);
}

#[test]
fn opening_without_a_wait_is_one_attempt() {
    let zero = OpenOptions::new().wait(Duration::ZERO);
    for (url, options) in [
        ("late://down", &OpenOptions::new()),
        ("late://down?open_wait=1m", &zero),
    ] {
        let late = Late::new(NEVER_UP);
        let error = late.open(url, options).unwrap_err();
        assert_eq!(error.to_string(), "connection refused (late)");
        assert_eq!(late.attempts(), 1);
    }
}

#[test]
fn fallback_is_opened_after_the_wait() {
    let (late, told) = (Late::new(NEVER_UP), Arc::new(Told::default()));
    let config = Config::from_url("late://down?open_wait=2s&fallback=memory:").unwrap();
    let config = config.observer(Arc::clone(&told) as _);
    let keeper = late.open_config(&config, &OpenOptions::new()).unwrap();
    assert_eq!(keeper.backend(), "memory");
    assert!(late.attempts() > 1);
    let told = told.0.lock().unwrap().clone();
    let [waits, fallback] = &told[..] else {
        panic!("{told:?}");
    };
    assert!(waits.starts_with("late://down: "), "{waits}");
    assert!(
        fallback.contains("caused by: connection refused"),
        "{fallback}"
    );
    // A wait that does not end is refused beside a fallback, unless the call has another one.
    let url = "late://down?open_wait=forever&fallback=memory:";
    let zero = OpenOptions::new().wait(Duration::ZERO);
    let keeper = Late::new(NEVER_UP).open(url, &zero).unwrap();
    assert_eq!(keeper.backend(), "memory");
    // Other programs may lock on a store that answers.
    let late = Late::new(NEVER_UP);
    let url = "late://loading?open_wait=2s&fallback=memory:";
    let error = late.open(url, &OpenOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn only_an_unavailable_store_is_waited_for() {
    let late = Late::new(NEVER_UP);
    let options = OpenOptions::new().wait_forever();
    let error = late.open("late://locked", &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(late.attempts(), 1);
    for url in [
        "late://down?open_wait=soon",
        "late://down?open_wait=1000years",
    ] {
        let error = Late::new(1).open(url, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidWait, "{error}");
    }
}

#[test]
fn cancel_ends_the_wait() {
    /// Cancels when it is notified of the wait.
    struct Canceller(CancelToken);
    impl Observer for Canceller {
        fn open_waits(&self, _store: &str, _reason: &Error) {
            self.0.cancel();
        }
    }
    let (late, cancel) = (Late::new(NEVER_UP), CancelToken::new());
    let config = Config::from_url("late://down").unwrap();
    let config = config.observer(Arc::new(Canceller(cancel.clone())));
    let options = OpenOptions::new().wait_forever().cancel(&cancel);
    let error = late.open_config(&config, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!(late.attempts(), 1);
}
