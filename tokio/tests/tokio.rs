//! The async keeper and its guard, in the process and in a SQLite file.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "that is how a test fails"
)]

use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use lockkeeper::{
    AcquireOptions, CancelToken, Config, Error, ErrorKind, FencingToken, LockGuard, Mode,
    ObservedLock, Observer, Released,
};
use lockkeeper_tokio::{AsyncGuard, AsyncKeeper};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

/// The longest wait of a case for what must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// What a keeper does, and on which thread.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Contended,
    NotAcquired(Option<ErrorKind>),
    Released(ThreadId),
}

#[derive(Debug)]
struct Events(UnboundedSender<Event>);

impl Observer for Events {
    fn contended(&self, _: &ObservedLock<'_>) {
        let _ = self.0.send(Event::Contended);
    }

    fn not_acquired(&self, _: &ObservedLock<'_>, _: Duration, error: Option<&Error>) {
        let _ = self.0.send(Event::NotAcquired(error.map(Error::kind)));
    }

    fn released(
        &self,
        _: &ObservedLock<'_>,
        _: FencingToken,
        _: Duration,
        _: &Result<Released, Error>,
    ) {
        let _ = self.0.send(Event::Released(thread::current().id()));
    }
}

fn open(url: &str) -> (AsyncKeeper, UnboundedReceiver<Event>) {
    let (sender, events) = unbounded_channel();
    let config = Config::from_url(url).unwrap();
    let config = config.observer(Arc::new(Events(sender)));
    (
        AsyncKeeper::new(lockkeeper::open_config(&config).unwrap()),
        events,
    )
}

fn file() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    (folder, url)
}

#[tokio::test]
async fn guards_exclude_each_other() {
    let keeper = open("memory:").0;
    let cell = Arc::new(Mutex::new(0));
    let add = |_| {
        let (keeper, cell) = (keeper.clone(), Arc::clone(&cell));
        tokio::spawn(async move {
            let guard = keeper.lock("a").await.unwrap();
            let seen = *cell.lock().unwrap();
            tokio::task::yield_now().await;
            *cell.lock().unwrap() = seen + 1;
            guard.release().await.unwrap()
        })
    };
    for task in (0..20).map(add).collect::<Vec<_>>() {
        assert_eq!(task.await.unwrap(), Released::Done);
    }
    assert_eq!(*cell.lock().unwrap(), 20);
}

#[tokio::test]
async fn busy_lock_is_none_and_options_are_applied() {
    let keeper = open("memory:").0;
    let reader = AcquireOptions::new()
        .mode(Mode::Shared)
        .wait(Duration::ZERO);
    let guard = keeper.lock_with("a", &reader).await.unwrap();
    assert_eq!((guard.name().as_str(), guard.mode()), ("a", Mode::Shared));
    assert!(keeper.acquire("a", &reader).await.unwrap().is_some());
    assert!(keeper.try_lock("a").await.unwrap().is_none());
    drop(guard);
    let guard = keeper.try_lock("a").await.unwrap().unwrap();
    assert!(guard.is_held() && !guard.remaining().is_zero());
    let error = keeper.lock_with("a", &reader).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[tokio::test]
async fn dropped_future_and_a_token_of_the_options_end_the_wait() {
    let (keeper, mut events) = open("memory:");
    let _held = keeper.lock("a").await.unwrap();
    let token = CancelToken::new();
    let options = AcquireOptions::new().wait(LIMIT).cancel(&token);
    let start = || {
        let (keeper, options) = (keeper.clone(), options.clone());
        tokio::spawn(async move { keeper.lock_with("a", &options).await.map(drop) })
    };
    for drops in [true, false] {
        let wait = start();
        assert_eq!(events.recv().await, Some(Event::Contended));
        match drops {
            true => wait.abort(),
            false => token.cancel(),
        }
        let ended = Event::NotAcquired(Some(ErrorKind::Cancelled));
        assert_eq!(events.recv().await, Some(ended));
        match wait.await {
            Err(error) => assert!(drops && error.is_cancelled()),
            Ok(result) => assert_eq!(result.unwrap_err().kind(), ErrorKind::Cancelled),
        }
    }
}

/// Takes the lock away, as an operator does.
fn take_away(keeper: &AsyncKeeper) {
    let admin = keeper.keeper().admin().unwrap();
    let deadline = lockkeeper::clock::HostInstant::NEVER;
    for held in admin.held(None, deadline).unwrap() {
        assert!(admin.force_release(&held, deadline).unwrap());
    }
}

#[tokio::test]
async fn loss_is_a_future() {
    let (_folder, file) = file();
    for url in ["memory:", &file] {
        let keeper = open(url).0;
        let guard = keeper.lock("a").await.unwrap();
        let is_lost = tokio::select! {
            biased;
            () = guard.lost() => true,
            () = tokio::task::yield_now() => false,
        };
        assert!(!is_lost && guard.ensure_held().is_ok());
        take_away(&keeper);
        for _caller in 0..2 {
            timeout(LIMIT, guard.lost()).await.unwrap();
        }
        assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    }
}

/// Whoever writes to the file holds its lock until the runtime's only thread goes on.
#[tokio::test]
async fn drop_beside_another_writer_waits_for_no_end_of_it() {
    let (folder, file) = file();
    let (keeper, mut events) = open(&file);
    let guard = keeper.lock("a").await.unwrap();
    let writer = rusqlite::Connection::open(folder.path().join("locks.db")).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    drop(guard);
    writer.execute_batch("ROLLBACK").unwrap();
    let released = timeout(LIMIT, events.recv()).await.unwrap();
    let own = Event::Released(thread::current().id());
    assert!(matches!(released, Some(Event::Released(_))) && released != Some(own));
    assert!(keeper.lock("a").await.is_ok());
}

#[test]
fn guard_is_released_outside_of_a_runtime() {
    let (_folder, file) = file();
    for url in ["memory:", &file] {
        let (keeper, mut events) = open(url);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let guard = runtime.unwrap().block_on(keeper.lock("a")).unwrap();
        drop(guard);
        let released = events.blocking_recv();
        // A busy machine may leave it to the keeper's threads.
        assert!(matches!(released, Some(Event::Released(_))));
    }
}

#[tokio::test]
async fn closure_is_locked_and_its_loss_and_panic_are_told() {
    let keeper = open("memory:").0;
    let token = keeper.run_locked("a", LockGuard::token).await;
    let token = token.unwrap().held().unwrap();
    let guard: AsyncGuard = keeper.lock("a").await.unwrap();
    assert!(guard.token() > token);
    drop(guard);
    let panics = keeper.clone();
    let task = tokio::spawn(async move {
        let work = panics.run_locked("a", |_| std::panic::panic_any("no seat"));
        work.await
    });
    let panic = task.await.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref(), Some(&"no seat"));
    assert!(keeper.try_lock("a").await.unwrap().is_some());
    let taken_away = keeper.clone();
    let work = keeper
        .run_locked("b", move |_| take_away(&taken_away))
        .await;
    assert_eq!(work.unwrap().held().unwrap_err().kind(), ErrorKind::Lost);
    let refused = keeper.run_locked("", |_| ()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidName);
}
