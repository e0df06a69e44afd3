//! What a provider asks of its store: tasks, each about one entry. One read and one write serve all tasks of a call.
//!
//! A round reads the entries, decides, and writes those that change. A write that found another version is decided again
//! in the next round. After an unknown write the caller asks again, and that begins with a read: the entry shows by the
//! owner what the write did.

use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_core::{AcquireRequest, CancelToken, Error, Owner, host_name, process_label};
use lockkeeper_remote::pause;

use crate::decide::{Attempt, Kind};
use crate::entry::Lease;
use crate::key::Key;
use crate::register::Register;
use crate::round::Round;
use crate::store::Call;
use crate::task::{Answered, Answers, LOCKED_AFTER, Others, RoundEnd, Task, Verb, unexpected};

/// The longest pause after a write that found another version.
pub(crate) const MAX_PAUSE: Duration = Duration::from_millis(16);

/// How long a place in a queue lives if its process is dead. Until then it holds back who could be granted the name beside
/// the present holders.
const PLACE_TTL: Duration = Duration::from_secs(5);
/// How many letters of the name of a host and of the label of a process an entry keeps.
const LETTERS: usize = 40;

impl Register {
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
            // The answers to the other requests do not wait for a locked entry: the engine asks for that name again.
            let holds_up = conflicts > LOCKED_AFTER && answers.iter().any(Option::is_some);
            let ended = match is_cancelled || holds_up || self.now() >= call.deadline {
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
                        let longest = MAX_PAUSE.min(Duration::from_millis(1 << conflicts.min(10)));
                        pause(longest.mul_f64(fastrand::f64()), call.cancel);
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

    /// Returns the task of a request.
    pub(crate) fn task<'a>(
        &self,
        key: &'a Key,
        owner: &'a str,
        request: &AcquireRequest<'_>,
    ) -> Task<'a> {
        let Owner { pid, since, .. } = request.owner();
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = |text: &str| text.chars().take(LETTERS).collect::<String>();
        let lease = Lease {
            owner: owner.to_owned(),
            epoch: 0,
            mode: request.mode(),
            slot: 0,
            session: String::new(),
            host: start(host_name()),
            pid,
            label: start(process_label().unwrap_or_default()),
            since: u64::try_from(since.as_millis()).unwrap_or_default(),
        };
        let attempt = Attempt {
            key,
            lease,
            kind: match request.deadline() {
                _ if request.is_resume() => Kind::Resumes,
                Some(_) => Kind::Queues,
                None => Kind::Tries,
            },
            place: String::new(),
            least_epoch: 0,
        };
        let ttl = request.ttl();
        let place_ttl = PLACE_TTL.max(self.store.capabilities().min_ttl()).min(ttl);
        Task {
            key,
            owner,
            verb: Verb::Attempt {
                attempt,
                ttl,
                place_ttl,
            },
        }
    }

    /// Carries out [`Verb::Remove`], and returns whether there was something to remove.
    pub(crate) fn remove(
        &self,
        key: &Key,
        owner: &str,
        (epoch, settles): (Option<u64>, bool),
        call: Call<'_>,
    ) -> Result<bool, Error> {
        let verb = Verb::remove(epoch, settles);
        let task = Task { key, owner, verb };
        match self.carry_out_one(task, &mut Others::new(), call)? {
            Answered::Removed(done) => Ok(done),
            _ => Err(unexpected()),
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_utils::sync::Parker;
    use lockkeeper_core::{ErrorKind, HostInstant, SystemClock};

    use super::*;
    use crate::entry::Contents;
    use crate::map_store::{Faults, Map, MapStore};

    /// The call has time until the lock ends. A removal that waited for that would succeed.
    #[test]
    fn locked_entry_and_refused_ttl_concern_their_own_tasks() {
        let ttl = Duration::from_secs(600);
        let faults = Faults {
            locks: Some(("lock/b", 50)),
            refuses_ttl: Some(ttl),
            ..Faults::default()
        };
        let map = Arc::new(Map::new(false, faults));
        let (unparker, store) = (Parker::new().unparker().clone(), MapStore::new(&map, "n"));
        let register = Register::new(Arc::new(store), Arc::new(SystemClock), unparker);
        let call = Call::until(HostInstant::NEVER);
        let keys = ["lock/a", "lock/b", "lock/c"].map(Key::read);
        let mut tasks = keys.each_ref().map(|key| Task {
            key,
            owner: "1-1",
            verb: Verb::remove(None, true),
        });
        let [_, _, refused] = &mut tasks;
        refused.verb = Verb::Attempt {
            attempt: Attempt {
                key: refused.key,
                lease: Contents::alone(refused.key, "1-1", 0).leases.remove(0),
                kind: Kind::Tries,
                place: String::new(),
                least_epoch: 0,
            },
            ttl,
            place_ttl: ttl,
        };
        let answers = register.carry_out(&mut tasks, &mut Others::new(), call);
        let [Some(Ok(_)), Some(Err(locked)), Some(Err(refused))] = &answers[..] else {
            panic!("only the first is carried out: {answers:?}");
        };
        assert!(locked.is_of_name(), "{locked}");
        assert_eq!(refused.kind(), ErrorKind::InvalidTtl, "{refused}");
    }
}
