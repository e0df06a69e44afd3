//! What holds for every driver: locks at `url`, and data behind the connection.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use lockkeeper::transactions::{CommitError, CommitIn, OpenTransaction as _};
use lockkeeper::{ErrorKind, LockGuard, LockKeeper, LockName};
use lockkeeper_testkit::{Fault, Proxy, with_timeouts};

use crate::application::{Application, Proved, sell, take_away};

/// The time-outs of a keeper on a busy machine.
const REPLY_LIMIT: Duration = Duration::from_secs(5);

/// A case with the URL of the locks, and the application's connection.
pub(crate) type Case<A> = (&'static str, fn(&str, &mut A));

/// Returns the cases of every driver.
pub(crate) fn all<Kind, A: Application<Kind>>() -> [Case<A>; 10] {
    [
        ("no_guard_is_refused", |_, application| {
            let none: [&LockGuard; 0] = [];
            let ended = sell(&none, application, || {});
            assert!(matches!(ended, Err(CommitError::Lock(_))), "{ended:?}");
            assert_eq!(application.sold(), 0);
        }),
        ("held_lock_is_proved", |url, application| {
            commit(url, application, A::PROVED);
        }),
        ("locks_of_several_names_are_proved", commit_under_several),
        ("locks_of_an_array_are_proved", commit_under_an_array),
        ("failed_work_is_rolled_back", failed_work),
        ("loss_during_the_work_is_rolled_back", loss_during_the_work),
        (
            "loss_of_one_of_several_names_is_rolled_back",
            loss_of_one_of_several,
        ),
        ("commit_in_the_work_is_unknown", commit_in_the_work),
        ("connection_in_a_transaction_is_refused", open_transaction),
        ("panic_in_the_work_is_rolled_back", panic_in_the_work),
    ]
}

/// Opens a keeper, on a server with time for a reply on a busy machine.
pub(crate) fn open(url: &str) -> LockKeeper {
    match url.starts_with("sqlite:") {
        true => lockkeeper::open(url).unwrap(),
        false => lockkeeper::open(&with_timeouts(url, REPLY_LIMIT)).unwrap(),
    }
}

/// A held lock is proved, and the work is committed with its value.
pub(crate) fn commit<Kind, A: Application<Kind>>(url: &str, application: &mut A, proved: Proved) {
    let keeper = open(url);
    let guard = keeper.lock("seat:42").unwrap();
    commit_under(&keeper, &guard, application, proved);
}

fn commit_under_several<Kind, A: Application<Kind>>(url: &str, application: &mut A) {
    let keeper = open(url);
    let guards = keeper.lock_all(["seat:42", "seat:43"]).unwrap();
    commit_under(&keeper, &guards, application, A::PROVED);
}

fn commit_under_an_array<Kind, A: Application<Kind>>(url: &str, application: &mut A) {
    let keeper = open(url);
    let [first, second] = ["seat:42", "seat:43"].map(|name| keeper.lock(name).unwrap());
    commit_under(&keeper, &[&first, &second], application, A::PROVED);
    let operator = open(url);
    let ended = sell(&[&first, &second], application, || {
        take_away(&operator, second.name());
    });
    assert!(matches!(ended, Err(CommitError::Lock(_))), "{ended:?}");
    assert_eq!(application.sold(), 2);
}

fn commit_under<Kind, A: Application<Kind>>(
    keeper: &LockKeeper,
    guard: &impl CommitIn,
    application: &mut A,
    proved: Proved,
) {
    let requests = || keeper.usage().unwrap().commands;
    let before = requests();
    assert_eq!(sell(guard, application, || {}).unwrap(), 7);
    assert_eq!(application.sold(), 1);
    assert_eq!(requests() > before, proved == Proved::ByRenewal);
    // The connection is free for the next transaction.
    assert_eq!(sell(guard, application, || {}).unwrap(), 7);
    assert_eq!(application.sold(), 2);
}

/// The error of the work is returned with its type, and nothing is committed.
fn failed_work<Kind, A: Application<Kind>>(url: &str, application: &mut A) {
    let keeper = open(url);
    let guard = keeper.lock("seat:42").unwrap();
    let ended = guard.commit_in(application, |transaction| {
        transaction.execute(A::SELL).unwrap();
        Err::<(), _>("sold out")
    });
    let Err(CommitError::Work("sold out")) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(application.sold(), 0);
    assert_eq!(sell(&guard, application, || {}).unwrap(), 7);
}

/// What the work itself has committed is not said to be rolled back, whether it fails or the lock is lost.
fn commit_in_the_work<Kind, A: Application<Kind>>(url: &str, application: &mut A) {
    let [keeper, operator] = [(); 2].map(|()| open(url));
    let guard = keeper.lock("seat:42").unwrap();
    let failed = guard.commit_in(application, |transaction| {
        transaction.execute(A::SELL).unwrap();
        transaction.execute(A::COMMIT).unwrap();
        Err::<(), _>("sold out")
    });
    assert!(matches!(failed, Err(CommitError::Unknown(_))), "{failed:?}");
    assert_eq!(application.sold(), 1);
    let lost = guard.commit_in(application, |transaction| {
        transaction.execute(A::SELL)?;
        transaction.execute("COMMIT")?;
        take_away(&operator, guard.name());
        Ok::<_, A::Error>(())
    });
    assert!(matches!(lost, Err(CommitError::Unknown(_))), "{lost:?}");
    assert_eq!(application.sold(), 2);
    let guard = keeper.lock("seat:42").unwrap();
    assert_eq!(sell(&guard, application, || {}).unwrap(), 7);
}

/// A connection on which a transaction is open is refused, and that transaction is not committed.
fn open_transaction<Kind, A: Application<Kind>>(url: &str, application: &mut A) {
    let keeper = open(url);
    let guard = keeper.lock("seat:42").unwrap();
    for statement in ["BEGIN", A::SELL] {
        application.run_outside(statement);
    }
    let refused = sell(&guard, application, || panic!("the work ran"));
    assert!(
        matches!(refused, Err(CommitError::Database(_))),
        "{refused:?}"
    );
    application.run_outside("ROLLBACK");
    assert_eq!(application.sold(), 0);
    assert_eq!(sell(&guard, application, || {}).unwrap(), 7);
}

/// A lock that an operator takes away during the work is noticed before the commit.
fn loss_during_the_work<Kind, A: Application<Kind>>(url: &str, application: &mut A) {
    let [keeper, operator] = [(); 2].map(|()| open(url));
    let guard = keeper.lock("seat:42").unwrap();
    let mut next = None;
    let ended = sell(&guard, application, || {
        take_away(&operator, guard.name());
        next = operator.try_lock("seat:42").unwrap();
    });
    assert!(next.is_some());
    let Err(CommitError::Lock(error)) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(application.sold(), 0);
    // The guard is lost now, and the work does not run.
    let ended = sell(&guard, application, || panic!("the work ran"));
    assert!(matches!(ended, Err(CommitError::Lock(_))), "{ended:?}");
}

/// The loss of any one of several locks during the work is noticed before the commit.
fn loss_of_one_of_several<Kind, A: Application<Kind>>(url: &str, application: &mut A) {
    let [keeper, operator] = [(); 2].map(|()| open(url));
    for lost in ["seat:42", "seat:43"] {
        let guards = keeper.lock_all(["seat:42", "seat:43"]).unwrap();
        let name = LockName::new(lost).unwrap();
        let ended = sell(&guards, application, || take_away(&operator, &name));
        let Err(CommitError::Lock(error)) = ended else {
            panic!("{lost}: {ended:?}");
        };
        // Not which name: both may be held by one session, which ends for both.
        assert_eq!(error.kind(), ErrorKind::Lost, "{lost}: {error}");
        assert_eq!(application.sold(), 0);
    }
}

/// A panic of the work rolls back, goes on, and leaves the connection free.
fn panic_in_the_work<Kind, A: Application<Kind>>(url: &str, application: &mut A) {
    let keeper = open(url);
    let guard = keeper.lock("seat:42").unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _ = sell(&guard, application, || {
            std::panic::resume_unwind(Box::new("full"))
        });
    }));
    assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "full");
    assert_eq!(application.sold(), 0);
    assert_eq!(sell(&guard, application, || {}).unwrap(), 7);
    assert_eq!(application.sold(), 1);
}

/// The connection ends before the reply to the commit.
pub(crate) fn unanswered_commit<Kind, A: Application<Kind>>(
    url: &str,
    application: &mut A,
    proxy: &Proxy,
) {
    let keeper = open(url);
    let guard = keeper.lock("seat:42").unwrap();
    let ended = sell(&guard, application, || {
        proxy.once("COMMIT", Fault::CutReplyAfter(0));
    });
    let Err(error @ CommitError::Unknown(_)) = ended else {
        panic!("{ended:?}");
    };
    assert!(!error.is_rolled_back());
}
