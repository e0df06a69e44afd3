//! What a provider asks of its store: tasks, each about one entry. One read and one write serve all tasks of a call.
//!
//! A round reads the entries, decides, and writes those that change. A write that found another version is decided again
//! in the next round. After an unknown write the caller asks again, and that begins with a read: the entry shows by the
//! owner what the write did.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{CancelToken, Error, ErrorKind, Grant, Renewal};

use crate::decide::Attempt;
use crate::key::Key;
use crate::lease::RegisterLease;
use crate::register::Register;
use crate::round::Round;
use crate::store::{Call, RegisterStore, SessionId, Version};

/// The longest pause after a write that found another version.
const MAX_PAUSE: Duration = Duration::from_millis(16);

/// After so many conflicts, a transaction of an application may have locked the entry, for as long as it likes.
pub(crate) const LOCKED_AFTER: u32 = 6;

/// A request about one entry.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    pub(crate) key: &'a Key,
    pub(crate) owner: &'a str,
    pub(crate) verb: Verb<'a>,
}

#[derive(Debug)]
pub(crate) enum Verb<'a> {
    /// Acquires the name. Each round sets the sessions of the lease and of the place, and the least epoch.
    Attempt {
        attempt: Attempt<'a>,
        ttl: Duration,
        /// The ttl of its place in the queue.
        place_ttl: Duration,
    },
    /// Keeps the session of a lease, and looks for the lease.
    Renew {
        lease: &'a RegisterLease,
        /// How long the lease lives from now on.
        ttl: Duration,
    },
    /// Moves the lease to a session of its own.
    Move {
        lease: &'a RegisterLease,
        session: SessionId,
    },
    /// Removes the lease and the place of the owner.
    Remove {
        /// The epoch of the lease. `None` is any.
        epoch: Option<u64>,
        /// The version in which the lease was alone, and the last one that was granted.
        alone_at: Option<Version>,
        /// Whether the entry gets another version in any case, so that writes of the owner that are still under way fail.
        settles: bool,
        /// The version that was to be replaced for that.
        settling: Option<Version>,
    },
}

/// The answer to a task.
#[derive(Debug)]
pub(crate) enum Answered {
    Granted(Grant<RegisterLease>),
    /// Another holder has the name, or an earlier request waits.
    Waits(Position),
    /// There is no lease to resume.
    Gone,
    /// Whether the lease is there, and in which version it was alone.
    Renewed(Renewal, Option<Version>),
    /// Whether there was something to remove.
    Removed(bool),
}

/// What a request waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    /// The number of earlier waiters.
    pub(crate) ahead: usize,
    /// The version of the entry.
    pub(crate) version: Option<Version>,
}

/// The sessions of other holders and waiters. A read finds which of them have ended.
pub(crate) type Others = BTreeSet<SessionId>;

/// What came of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundEnd {
    /// All entries had the versions that were read. Tasks without an answer need another read.
    Written,
    /// An entry had another version.
    Conflict,
    /// The same, and a holder or a waiter in the queue is concerned.
    UrgentConflict,
}

/// The answers to tasks, as far as there are any.
pub(crate) type Answers = Vec<Option<Result<Answered, Error>>>;

impl Verb<'_> {
    /// Removes a lease that was granted, or in doubt what a request has written.
    pub(crate) fn remove(epoch: Option<u64>, settles: bool) -> Self {
        Verb::Remove {
            epoch,
            alone_at: None,
            settles,
            settling: None,
        }
    }
}

impl<S: RegisterStore> Register<S> {
    /// Carries out all tasks, and answers them in the same order. `others` are the sessions that are known from an earlier
    /// call for the entries.
    pub(crate) fn carry_out(
        &self,
        tasks: &mut [Task<'_>],
        others: &mut Others,
        call: Call<'_>,
    ) -> Answers {
        let mut answers: Answers = tasks.iter().map(|_| None).collect();
        let (mut is_first, mut conflicts) = (true, 0);
        while answers.iter().any(Option::is_none) {
            let is_cancelled = call.cancel.is_some_and(CancelToken::is_cancelled);
            let ended = match is_cancelled || self.now() >= call.deadline {
                true => Err(no_end(conflicts)),
                false => Round::carry_out(
                    self,
                    tasks,
                    &mut answers,
                    others,
                    (is_first, conflicts),
                    call,
                ),
            };
            match ended {
                Ok(RoundEnd::Written) => {}
                Ok(ended) => {
                    conflicts += 1;
                    // Releases, and requests that wait in the queue, go first, unless the entry is locked.
                    if ended == RoundEnd::Conflict || conflicts > LOCKED_AFTER {
                        let pause = MAX_PAUSE.min(Duration::from_millis(1 << conflicts.min(10)));
                        thread::sleep(pause.mul_f64(fastrand::f64()));
                    }
                }
                Err(error) => {
                    for open in answers.iter_mut().filter(|it| it.is_none()) {
                        *open = Some(Err(error.clone()));
                    }
                }
            }
            is_first = false;
        }
        answers
    }

    /// Carries out one task.
    pub(crate) fn carry_out_one(
        &self,
        task: Task<'_>,
        others: &mut Others,
        call: Call<'_>,
    ) -> Result<Answered, Error> {
        let answers = self.carry_out(&mut [task], others, call);
        answers
            .into_iter()
            .next()
            .flatten()
            .unwrap_or_else(|| Err(unexpected()))
    }
}

/// Returns the error of tasks for which no time is left.
fn no_end(conflicts: u32) -> Error {
    match conflicts {
        0 => Error::not_sent("no time was left to ask the store; wait longer"),
        _ => Error::name_unavailable(
            "other programs changed the lock's entry each time before this one could, or a transaction has locked it; try again",
        ),
    }
}

pub(crate) fn unexpected() -> Error {
    Error::new(
        ErrorKind::Incompatible,
        "the store gave another number of answers than it was asked; its backend has a defect",
    )
}
