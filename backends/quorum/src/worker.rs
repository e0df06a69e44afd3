//! The thread of a member, which carries out in one request what was posted while the last one was under way.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, CancelToken, Clock, ErasedLease, Error, ErrorKind, Grant,
    LockProvider, Operation, ReleaseRequest, Released, RenewRequest, Renewal,
};

use crate::hold::{Ask, GIVE_BACK, Job};
use crate::member::{Member, start_thread};

/// Starts the worker of a member. It ends after [`Member::close`], and drops `running` then.
pub(crate) fn start(member: Arc<Member>, running: Sender<Infallible>) -> Result<(), Error> {
    start_thread(format!("lockkeeper-m{}", member.index), move || {
        run(&member);
        drop(running);
    })
}

fn run(member: &Member) {
    loop {
        let opened = member.opened();
        let most = opened.map_or(1, |store| store.capabilities().batch());
        let taken = member.take(most);
        if taken.is_empty() {
            return;
        }
        let now = member.clock.now();
        // A release is of use also later.
        let is_due = |job: &Job| now < job.deadline || matches!(job.ask, Ask::Release(..));
        let (mut jobs, late): (Vec<_>, Vec<_>) = taken.into_iter().partition(is_due);
        for job in late {
            deliver(member, job, Reply::Failed(too_late()));
        }
        if jobs.is_empty() {
            continue;
        }
        // A store that is open says nothing about how quick it is.
        let opened = match member.opened() {
            Some(store) => Some(Ok(store)),
            None => member.in_call(|| caught(|| member.open())),
        };
        let opened = opened.unwrap_or_else(|| Err(no_answer()));
        // By their epochs, since a store may count the epochs of all names together.
        jobs.sort_by_key(|job| match job.ask {
            Ask::Propose { epoch, .. } => epoch.unwrap_or_default(),
            Ask::Renew(..) | Ask::Release(..) => 0,
        });
        let replies = match &opened {
            Ok(store) => ask(member, &**store, &mut jobs),
            Err(error) => jobs.iter().map(|_| Reply::Failed(error.clone())).collect(),
        };
        if replies.iter().all(Reply::is_failure) {
            member.failed();
        }
        for (job, reply) in jobs.into_iter().zip(replies) {
            deliver(member, job, reply);
        }
    }
}

/// Calls a backend. Returns `None` after a panic, which must not end the worker: the queue would grow without end.
fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// What the store has said to a job.
enum Reply {
    Vote(Option<Grant<ErasedLease>>),
    Renewal(Renewal),
    Release(Released),
    Failed(Error),
}

impl Reply {
    fn of(operation: Operation<'_, ErasedLease>) -> Self {
        let reply = match operation {
            Operation::Acquire(it) => it.answer.map(|it| it.map(Reply::Vote)),
            Operation::Renew(it) => it.answer.map(|it| it.map(Reply::Renewal)),
            Operation::Release(it) => it.answer.map(|it| it.map(Reply::Release)),
        };
        reply.map_or_else(
            || Reply::Failed(no_answer()),
            |it| it.unwrap_or_else(Reply::Failed),
        )
    }

    /// Returns whether the store could not be asked.
    fn is_failure(&self) -> bool {
        matches!(self, Reply::Failed(error) if error.last_epoch().is_none())
    }
}

fn too_late() -> Error {
    let text = "the member was busy with earlier requests until the time was over";
    Error::new(ErrorKind::Unavailable, text)
}

fn no_answer() -> Error {
    let text = "the member gave no answer; what it may have granted ends with its ttl";
    Error::new(ErrorKind::Unknown, text)
}

/// Asks the store in one batch, and gives back what it may have granted without a reply.
fn ask(member: &Member, store: &dyn LockProvider, jobs: &mut [Job]) -> Vec<Reply> {
    let clock: &dyn Clock = &*member.clock;
    let lost = CancelToken::new();
    let holds: Vec<_> = jobs.iter().map(|job| Arc::clone(&job.hold)).collect();
    let requests = jobs.iter().zip(&holds).map(|(job, hold)| {
        let Ask::Propose { epoch, ttl } = job.ask else {
            return None;
        };
        let request = AcquireRequest::attempt(&hold.name, ttl, clock);
        let request = request.cancelled_by(Some(&lost));
        Some(match epoch {
            Some(epoch) => request.with_proposed_epoch(epoch),
            None => request,
        })
    });
    let requests: Vec<_> = requests.collect();
    let operations = jobs.iter_mut().zip(&requests).filter_map(|(job, request)| {
        let deadline = job.deadline;
        Some(match &mut job.ask {
            Ask::Propose { .. } => Operation::Acquire(AttemptRequest {
                request: request.as_ref()?,
                deadline,
                answer: None,
            }),
            Ask::Renew(round, lease) => Operation::Renew(RenewRequest {
                lease,
                ttl: round.ttl,
                deadline,
                answer: None,
            }),
            Ask::Release(lease, ..) => Operation::Release(ReleaseRequest::new(lease, deadline)),
        })
    });
    let mut operations: Vec<_> = operations.collect();
    // What was carried out before a panic has an answer.
    let _ = member.in_call(|| caught(|| store.batch(&mut operations)));
    let replies: Vec<_> = operations.into_iter().map(Reply::of).collect();
    let until = clock.now() + GIVE_BACK;
    for (request, reply) in requests.iter().zip(&replies) {
        if let Some(request) = request
            && matches!(reply, Reply::Failed(error) if error.kind() == ErrorKind::Unknown)
            && clock.now() < until
        {
            lost.cancel();
            let _ = member.in_call(|| caught(|| store.abandon(request)));
        }
    }
    replies
}

/// Tells the hold what came of a job, and posts what follows.
fn deliver(member: &Member, job: Job, reply: Reply) {
    let (index, now) = (member.index, member.clock.now());
    let Job {
        hold,
        ask,
        deadline,
    } = job;
    let next = match (ask, reply) {
        (Ask::Propose { .. }, Reply::Vote(vote)) => hold.voted(index, now, deadline, Ok(vote)),
        (Ask::Propose { .. }, Reply::Failed(error)) => hold.voted(index, now, deadline, Err(error)),
        (Ask::Renew(round, lease), Reply::Renewal(renewal)) => {
            hold.renewed(index, now, round, lease, Ok(renewal))
        }
        (Ask::Renew(round, lease), Reply::Failed(error)) => {
            hold.renewed(index, now, round, lease, Err(error))
        }
        (Ask::Release(_, _, lost_reply), Reply::Release(released)) => {
            let answer = match (released, lost_reply) {
                // The release without a reply may have freed it.
                (Released::AlreadyLost, Some(error)) => Err(error),
                _ => Ok(released),
            };
            hold.released(index, answer, false);
            None
        }
        (Ask::Release(lease, ends, lost_reply), Reply::Failed(error)) => {
            let is_repeated = now < ends;
            hold.released(index, Err(error.clone()), is_repeated);
            if is_repeated {
                let unknown = Some(error).filter(|it| it.kind() == ErrorKind::Unknown);
                member.post_again(Job {
                    hold,
                    ask: Ask::Release(lease, ends, lost_reply.or(unknown)),
                    deadline: now + GIVE_BACK,
                });
            }
            None
        }
        _ => None,
    };
    if let Some(next) = next {
        member.post_next(next);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkeeper_core::{HostInstant, LockName, SystemClock};
    use lockkeeper_local::MemoryProvider;

    use crate::ballot::{Tally, Vote};
    use crate::hold::Hold;
    use crate::open::QuorumMember;

    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    /// The caller has begun another vote before the member answers the first one.
    #[test]
    fn release_of_a_late_grant_goes_before_the_next_vote() {
        let store: Arc<dyn LockProvider> = Arc::new(MemoryProvider::new());
        let (source, clock) = (QuorumMember::from(store), Arc::new(SystemClock));
        let member = Member::new(0, source, clock, Arc::default());
        let propose = |epoch| {
            let name = LockName::new("a").unwrap();
            let hold = Arc::new(Hold::new(name, TTL, epoch, vec![None], |_| true));
            member.post(Job {
                hold: Arc::clone(&hold),
                ask: Ask::Propose {
                    epoch: None,
                    ttl: TTL,
                },
                deadline: HostInstant::NEVER,
            });
            hold
        };
        propose(1).give_up();
        let next = propose(2);
        member.close();
        run(&member);
        let name = LockName::new("a").unwrap();
        let request = AcquireRequest::attempt(&name, TTL, &SystemClock);
        let (vote, _) = next.vote_of(0, &request, SystemClock.now());
        assert!(matches!(vote, Vote::Granted(_)), "{vote:?}");
    }

    #[test]
    fn release_after_a_lost_reply_finds_nothing_and_stays_unknown() {
        let store: Arc<dyn LockProvider> = Arc::new(MemoryProvider::new());
        let name = LockName::new("a").unwrap();
        let request = AcquireRequest::attempt(&name, TTL, &SystemClock);
        let lease = store.acquire(&request).unwrap().unwrap().lease;
        let source = QuorumMember::from(store);
        let member = Member::new(0, source, Arc::new(SystemClock), Arc::default());
        let leases = vec![Some((lease, 1))];
        let hold = Arc::new(Hold::new(name.clone(), TTL, 1, leases, |_| false));
        let (_, lease) = hold.begin_release().pop().unwrap();
        let job = Job::release(&hold, lease, SystemClock.now(), HostInstant::NEVER);
        deliver(&member, job, Reply::Failed(no_answer()));
        let repeated = member.take(1).pop().unwrap();
        deliver(&member, repeated, Reply::Release(Released::AlreadyLost));
        let tally = || hold.release(&SystemClock, SystemClock.now(), &[]).0;
        assert_eq!(tally(), Tally::Unknown);
        // The keeper, which knows of the lost reply, asks again.
        assert!(hold.begin_release().is_empty());
        assert_eq!(tally(), Tally::Lost);
    }
}
