//! What holds for every driver: locks at `url`, and data behind the connection.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lockkeeper::transactions::{CommitError, CommitIn};
use lockkeeper::{ErrorKind, LockKeeper, LockName};

use crate::application::{Application, sell, take_away};

/// How the lock is proved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Proved {
    /// By a statement in the transaction, which costs the keeper no request.
    ByStatement,
    /// By a renewal.
    ByRenewal,
}

/// Opens a keeper, on a server with time for a reply on a busy machine.
pub(crate) fn open(url: &str) -> LockKeeper {
    let timeouts = match url.starts_with("sqlite:") {
        true => "",
        false => "?response_timeout=5s&connect_timeout=5s",
    };
    lockkeeper::open(&format!("{url}{timeouts}")).unwrap()
}

/// A held lock is proved, and the work is committed with its value.
pub(crate) fn commit<A: Application>(url: &str, application: &mut A, proved: Proved) {
    let keeper = open(url);
    let guard = keeper.lock("seat:42").unwrap();
    commit_under(&keeper, &guard, application, proved);
}

/// The held locks of several names are proved, and the work is committed with its value.
pub(crate) fn commit_under_several<A: Application>(url: &str, application: &mut A, proved: Proved) {
    let keeper = open(url);
    let guards = keeper.lock_all(["seat:42", "seat:43"]).unwrap();
    commit_under(&keeper, &guards, application, proved);
}

fn commit_under<A: Application>(
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
pub(crate) fn failed_work<A: Application>(url: &str, application: &mut A) {
    let keeper = open(url);
    let guard = keeper.lock("seat:42").unwrap();
    let ended = guard.commit_in(application, |transaction| {
        A::sell(transaction).unwrap();
        Err::<(), _>("sold out")
    });
    let Err(CommitError::Work("sold out")) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(application.sold(), 0);
    assert_eq!(sell(&guard, application, || {}).unwrap(), 7);
}

/// What the work itself has committed is not said to be rolled back, whether it fails or the lock is lost.
pub(crate) fn commit_in_the_work<A: Application>(url: &str, application: &mut A, commit: &str) {
    let [keeper, operator] = [(); 2].map(|()| open(url));
    let guard = keeper.lock("seat:42").unwrap();
    let failed = guard.commit_in(application, |transaction| {
        A::sell(transaction).unwrap();
        A::run(transaction, commit).unwrap();
        Err::<(), _>("sold out")
    });
    assert!(matches!(failed, Err(CommitError::Unknown(_))), "{failed:?}");
    assert_eq!(application.sold(), 1);
    let lost = guard.commit_in(application, |transaction| {
        A::sell(transaction)?;
        A::run(transaction, "COMMIT")?;
        take_away(&operator, guard.name());
        Ok::<_, A::Error>(())
    });
    assert!(matches!(lost, Err(CommitError::Unknown(_))), "{lost:?}");
    assert_eq!(application.sold(), 2);
    let guard = keeper.lock("seat:42").unwrap();
    assert_eq!(sell(&guard, application, || {}).unwrap(), 7);
}

/// A connection on which a transaction is open is refused, and that transaction is not committed.
pub(crate) fn open_transaction<A: Application>(
    url: &str,
    application: &mut A,
    statements: [&str; 2],
) {
    let keeper = open(url);
    let guard = keeper.lock("seat:42").unwrap();
    for statement in statements {
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
pub(crate) fn loss_during_the_work<A: Application>(url: &str, application: &mut A) {
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
pub(crate) fn loss_of_one_of_several<A: Application>(url: &str, application: &mut A) {
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
pub(crate) fn panic_in_the_work<A: Application>(url: &str, application: &mut A) {
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

/// The reply to the commit does not come: `is_lost` says whether it is.
pub(crate) fn unanswered_commit<A: Application>(
    url: &str,
    application: &mut A,
    lose: impl FnOnce(),
) {
    let keeper = open(url);
    let guard = keeper.lock("seat:42").unwrap();
    let ended = sell(&guard, application, lose);
    let Err(error @ CommitError::Unknown(_)) = ended else {
        panic!("{ended:?}");
    };
    assert!(!error.is_rolled_back());
}
