//! Keepers that wait.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, LockKeeper};

use super::{HANG, Witness};

/// A thread with a keeper of its own that waits for the lock `a`.
pub(crate) struct Waiter {
    answer: Receiver<Result<u64, ErrorKind>>,
    deadline: Instant,
}

impl Waiter {
    /// Starts a thread on which the keeper waits for `a`.
    pub(crate) fn start(keeper: LockKeeper, wait: Duration, witness: &Witness) -> Self {
        let (sender, answer) = channel();
        let witness = witness.clone();
        let deadline = Instant::now() + wait;
        thread::spawn(move || {
            let granted = match keeper.try_lock_for("a", wait) {
                Ok(Some(guard)) => {
                    let token = guard.token().get();
                    witness.pass(guard);
                    Ok(token)
                }
                Ok(None) => Err(ErrorKind::TimedOut),
                Err(error) => Err(error.kind()),
            };
            let _ = sender.send(granted);
        });
        Self { answer, deadline }
    }

    /// Waits for the token of the grant, or for the kind of the error.
    #[track_caller]
    pub(crate) fn answer(self) -> Result<u64, ErrorKind> {
        let left = self.deadline.saturating_duration_since(Instant::now()) + HANG;
        let answer = self.answer.recv_timeout(left);
        answer.expect("the waiter returns by its deadline, and does not panic")
    }

    /// Checks that the waiter got no grant because of an outage, and returns the kind of the error.
    #[track_caller]
    pub(crate) fn fails(self) -> ErrorKind {
        let kind = self.answer().expect_err("no server can grant it");
        let kinds = [
            ErrorKind::Unavailable,
            ErrorKind::Unknown,
            ErrorKind::TimedOut,
        ];
        assert!(kinds.contains(&kind), "{kind:?}");
        kind
    }
}
