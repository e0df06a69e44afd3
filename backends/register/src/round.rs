//! One round of tasks: a read, the decisions, and a write.

mod deciding;
mod reading;
mod writing;

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::{Error, HostInstant};

use crate::entry::Contents;
use crate::key::Key;
use crate::register::Register;
use crate::sessions::Session;
use crate::store::{Call, SessionId, Version};
use crate::task::{Answers, Others, RoundEnd, Task, Verb};

pub(crate) struct Round<'r> {
    register: &'r Register,
    call: Call<'r>,
    is_first: bool,
    conflicts: u32,
    /// The sessions that the read checks.
    checked: &'r Others,
    /// When the read began.
    asked_at: HostInstant,
    /// The current sessions, by their ttl.
    sessions: BTreeMap<Duration, Session>,
    /// Those of the sessions that were read that have ended.
    ended: Vec<SessionId>,
    /// The version and the epoch of the floor, if it was read and is there. An error if it cannot be read.
    floor: Result<Option<(Version, u64)>, Error>,
    /// The sessions on which the answers depend.
    deciding: Others,
}

/// The entries of the tasks.
type Changes<'k> = BTreeMap<&'k Key, Change>;

/// An entry that may be written.
#[derive(Default)]
struct Change {
    seen: Option<Version>,
    found: Option<Contents>,
    /// Whether the entry need not be read.
    is_known: bool,
    next: Option<Contents>,
    /// The session that must live, if a lease or a place is added.
    session: Option<SessionId>,
    /// What the tasks are answered once it is written.
    then: Vec<(usize, Then)>,
}

/// The answer to a task once its entry is written.
enum Then {
    Granted {
        owner: String,
        session: Session,
        slot: u32,
        is_queued: bool,
    },
    Waits {
        owner: String,
        ahead: usize,
    },
    Mismatch(Error),
    Moved,
    /// Whether there was something to remove, and whether it may have been a lease.
    Removed {
        is_done: bool,
        is_lease: bool,
    },
}

impl<'r> Round<'r> {
    /// Carries out a round of the tasks without an answer.
    pub(crate) fn carry_out(
        register: &'r Register,
        tasks: &mut [Task<'_>],
        answers: &mut Answers,
        others: &mut Others,
        (is_first, conflicts): (bool, u32),
        call: Call<'r>,
    ) -> Result<RoundEnd, Error> {
        let mut round = Round {
            register,
            call,
            is_first,
            conflicts,
            checked: &others.clone(),
            asked_at: register.now(),
            sessions: BTreeMap::new(),
            ended: Vec::new(),
            floor: Ok(None),
            deciding: Others::new(),
        };
        let mut changes = round.read(tasks, answers)?;
        // A name that is released is free for the others.
        for removes in [true, false] {
            for (index, (task, answer)) in tasks.iter_mut().zip(answers.iter_mut()).enumerate() {
                let is_remove = matches!(task.verb, Verb::Remove { .. });
                if is_remove == removes
                    && answer.is_none()
                    && let Some(change) = changes.get_mut(task.key)
                {
                    *answer = round.decide(index, task, change);
                }
            }
        }
        if is_first {
            // Those of an earlier look may be gone from the entry.
            others.clear();
        }
        others.append(&mut round.deciding);
        round.write(changes, answers)
    }

    /// Returns the least epoch of a grant.
    fn least_epoch(&self) -> u64 {
        let floor = self.floor.as_ref().ok().copied().flatten();
        let floor = floor.map_or(0, |(_, last)| last);
        self.register.least_epoch().max(floor + 1)
    }
}

impl Change {
    fn known((version, contents): (Version, Contents)) -> Self {
        Self {
            seen: Some(version),
            found: Some(contents),
            is_known: true,
            ..Self::default()
        }
    }

    /// Returns the contents as the tasks so far leave them.
    fn base(&self) -> Option<&Contents> {
        self.next.as_ref().or(self.found.as_ref())
    }
}
