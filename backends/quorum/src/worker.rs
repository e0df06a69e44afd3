//! The thread of a member, which carries out in one request what was posted while the last one was under way.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, CancelToken, Clock, ErasedLease, Error, ErrorKind, Grant,
    LockProvider, Operation, ReleaseRequest, Released, RenewRequest, Renewal,
};

use crate::hold::{Hold, Next};
use crate::member::{Job, Member};

/// The time in which a lease that is of no use is given back.
pub(crate) const GIVE_BACK: Duration = Duration::from_secs(2);

/// Starts the worker of a member. It ends after [`Member::close`].
pub(crate) fn start(member: Arc<Member>) -> Result<(), Error> {
    let name = format!("lockkeeper-m{}", member.index);
    let started = thread::Builder::new()
        .name(name)
        .spawn(move || run(&member));
    started.map(drop).map_err(|error| {
        let text = "the system starts no thread for a member of the quorum; see its limits";
        Error::new(ErrorKind::Unavailable, text).with_source(error)
    })
}

fn run(member: &Member) {
    loop {
        let opened = member.opened();
        let most = opened.map_or(1, |store| store.capabilities().batch());
        let jobs = member.take(most);
        if jobs.is_empty() {
            return;
        }
        let now = member.clock.now();
        let is_due = |job: &Job| match job {
            Job::Propose { deadline, .. } => now < *deadline,
            Job::Renew { round, .. } => now < round.deadline,
            Job::Release { .. } | Job::Ask(_) => true,
        };
        let (due, late): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_due);
        let too_late = Error::new(
            ErrorKind::Unavailable,
            "the member was busy with earlier requests until the time was over",
        );
        fail(member, late, &too_late);
        if due.is_empty() {
            continue;
        }
        // A store that is open says nothing about how quick it is.
        let opened = match member.opened() {
            Some(store) => Some(Ok(store)),
            None => member.in_call(|| caught(|| member.open())),
        };
        match opened.unwrap_or_else(|| Err(no_answer())) {
            Ok(store) => carry_out(member, &*store, due),
            Err(error) => {
                member.failed();
                fail(member, due, &error);
            }
        }
    }
}

/// Calls a backend. Returns `None` after a panic, which must not end the worker: the queue would grow without end.
fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

fn fail(member: &Member, jobs: Vec<Job>, error: &Error) {
    for job in jobs {
        let error = error.clone();
        let reply = match job {
            Job::Ask(ask) => {
                ask(Err(error));
                continue;
            }
            Job::Propose { .. } => Reply::Vote(Err(error)),
            Job::Renew { .. } => Reply::Renewal(Err(error)),
            Job::Release { .. } => Reply::Release(Err(error)),
        };
        deliver(member, job, reply);
    }
}

/// What the store has said to a job.
enum Reply {
    Vote(Result<Option<Grant<ErasedLease>>, Error>),
    Renewal(Result<Renewal, Error>),
    Release(Result<Released, Error>),
}

impl Reply {
    fn of(operation: Operation<'_, ErasedLease>) -> Self {
        match operation {
            Operation::Acquire(it) => Reply::Vote(it.answer.unwrap_or_else(|| Err(no_answer()))),
            Operation::Renew(it) => Reply::Renewal(it.answer.unwrap_or_else(|| Err(no_answer()))),
            Operation::Release(it) => Reply::Release(it.answer.unwrap_or_else(|| Err(no_answer()))),
        }
    }
}

impl Reply {
    /// Returns whether the store could not be asked.
    fn is_failure(&self) -> bool {
        let error = match self {
            Reply::Vote(vote) => vote.as_ref().err(),
            Reply::Renewal(renewal) => renewal.as_ref().err(),
            Reply::Release(released) => released.as_ref().err(),
        };
        error.is_some_and(|error| error.last_epoch().is_none())
    }
}

fn no_answer() -> Error {
    let text = "the member gave no answer; what it may have granted ends with its ttl";
    Error::new(ErrorKind::Unknown, text)
}

fn carry_out(member: &Member, store: &dyn LockProvider, jobs: Vec<Job>) {
    let mut asked = Vec::with_capacity(jobs.len());
    for job in jobs {
        match job {
            // The caller sees that a question was dropped.
            Job::Ask(ask) => drop(caught(|| ask(Ok(store)))),
            job => asked.push(job),
        }
    }
    asked.sort_by_key(Job::rank);
    let replies = ask(member, store, &mut asked);
    if !replies.is_empty() && replies.iter().all(Reply::is_failure) {
        member.failed();
    }
    for (job, reply) in asked.into_iter().zip(replies) {
        deliver(member, job, reply);
    }
}

/// Asks the store in one batch, and gives back what it may have granted without a reply.
fn ask(member: &Member, store: &dyn LockProvider, jobs: &mut [Job]) -> Vec<Reply> {
    let clock: &dyn Clock = &*member.clock;
    let lost = CancelToken::new();
    let holds: Vec<_> = jobs.iter().filter_map(Job::proposed).collect();
    let requests = holds.iter().map(|(hold, epoch, ttl)| {
        let request = AcquireRequest::attempt(&hold.name, *ttl, clock);
        let request = request.cancelled_by(Some(&lost));
        match epoch {
            Some(epoch) => request.with_proposed_epoch(*epoch),
            None => request,
        }
    });
    let requests: Vec<_> = requests.collect();
    let mut next = requests.iter();
    let operations = jobs.iter_mut().filter_map(|job| match job {
        Job::Propose { deadline, .. } => Some(Operation::Acquire(AttemptRequest {
            request: next.next()?,
            deadline: *deadline,
            answer: None,
        })),
        Job::Renew { round, lease, .. } => Some(Operation::Renew(RenewRequest {
            lease,
            ttl: round.ttl,
            deadline: round.deadline,
            answer: None,
        })),
        Job::Release {
            lease, deadline, ..
        } => Some(Operation::Release(ReleaseRequest {
            lease,
            deadline: *deadline,
            answer: None,
        })),
        Job::Ask(_) => None,
    });
    let mut operations: Vec<_> = operations.collect();
    // What was carried out before a panic has an answer.
    let _ = member.in_call(|| caught(|| store.batch(&mut operations)));
    let replies: Vec<_> = operations.into_iter().map(Reply::of).collect();
    let votes = replies.iter().filter_map(|reply| match reply {
        Reply::Vote(vote) => Some(vote),
        Reply::Renewal(_) | Reply::Release(_) => None,
    });
    let until = clock.now() + GIVE_BACK;
    for (request, vote) in requests.iter().zip(votes) {
        let is_unknown = matches!(vote, Err(error) if error.kind() == ErrorKind::Unknown);
        if is_unknown && clock.now() < until {
            lost.cancel();
            let _ = member.in_call(|| caught(|| store.abandon(request)));
        }
    }
    replies
}

fn deliver(member: &Member, job: Job, reply: Reply) {
    let (index, now) = (member.index, member.clock.now());
    let go_on = |hold: Arc<Hold>, next| match next {
        None => {}
        Some(Next::Release(lease)) => member.release(&hold, lease, now + GIVE_BACK),
        Some(Next::Discard(lease)) => {
            let without_members = Hold::new(hold.name.clone(), hold.ttl, 0, Vec::new(), |_| false);
            member.release(&Arc::new(without_members), lease, now + GIVE_BACK);
        }
        Some(Next::Renew(round, lease)) => member.post(Job::Renew { hold, round, lease }),
    };
    match (job, reply) {
        (Job::Propose { hold, deadline, .. }, Reply::Vote(vote)) => {
            let next = hold.voted(index, now, deadline, vote);
            go_on(hold, next);
        }
        (Job::Renew { hold, round, lease }, Reply::Renewal(renewal)) => {
            let next = hold.renewed(index, now, round.number, lease, renewal);
            go_on(hold, next);
        }
        (
            Job::Release {
                hold, lease, ends, ..
            },
            Reply::Release(released),
        ) => {
            let failed = released.is_err();
            hold.released(index, released);
            if failed && now < ends {
                member.post_again(Job::Release {
                    hold,
                    lease,
                    deadline: now + GIVE_BACK,
                    ends,
                });
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, mpsc};

    use lockkeeper_core::HostInstant;
    use lockkeeper_local::MemoryProvider;

    use crate::hold::PATIENCE;
    use crate::open::QuorumMember;

    use super::*;

    #[derive(Debug, Default)]
    struct Stopped(AtomicU64);

    impl Clock for Stopped {
        fn now(&self) -> HostInstant {
            HostInstant::from_nanos(self.0.load(Ordering::SeqCst))
        }
    }

    /// Otherwise each caller begins at a member that hangs, and waits for it.
    #[test]
    fn member_stays_slow_until_a_quick_answer() {
        let clock = Arc::new(Stopped::default());
        let store: Arc<dyn LockProvider> = Arc::new(MemoryProvider::new());
        let source = QuorumMember::from(store);
        let servers = Arc::new(Mutex::new(vec![None]));
        let member = Arc::new(Member::new(0, source, clock.clone(), servers));
        member.open().unwrap();
        let is_slow = || {
            let (sender, told) = mpsc::channel();
            let asked = Arc::clone(&member);
            member.post(Job::Ask(Box::new(move |_| {
                sender.send(asked.is_slow()).unwrap();
            })));
            member.close();
            run(&member);
            told.recv().unwrap()
        };
        assert!(!is_slow());
        let slow = u64::try_from(PATIENCE.as_nanos()).unwrap() + 1;
        member.in_call(|| clock.0.fetch_add(slow, Ordering::SeqCst));
        assert!(is_slow());
        member.in_call(|| ());
        assert!(!is_slow());
    }
}
