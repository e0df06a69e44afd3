//! Several operations in one call of the provider, on a network that loses messages.

use std::time::Duration;

use lockkeeper::backend::{
    AcquireRequest, AttemptRequest, Backend, Operation, ReleaseRequest, RenewRequest, Renewal,
};
use lockkeeper::backends::mysql::{MySqlOptions, MySqlProvider};
use lockkeeper::clock::{Clock as _, HostInstant, SystemClock};
use lockkeeper::{ErrorKind, LockName, Released};
use lockkeeper_testkit::{Fault, MySqlKind, MySqlServer, Proxy, cases, until};

use super::Case;
use super::store::{Server, holder_of, start};
use crate::common::WAIT_LIMIT;

pub(super) const CASES: &[Case] = cases![
    batch_whose_connection_is_cut,
    batch_without_a_reply_is_unknown,
    late_grant_of_a_batch_is_given_back,
    slow_session_delays_no_other,
];

type Lease = <MySqlProvider as Backend>::Lease;

const TTL: Duration = Duration::from_secs(30);
/// The longest time for a reply.
const SOON: Duration = Duration::from_secs(2);

/// Opens a provider by way of a proxy, on which names of one ttl share a session from the second one on.
fn provider(proxy: &Proxy, response_timeout: Duration) -> MySqlProvider {
    let addr = proxy.addr();
    let options = MySqlOptions::tcp(addr.ip().to_string(), addr.port())
        .user(MySqlServer::USER)
        .password(MySqlServer::PASSWORD)
        .pool_size(4)
        .connect_timeout(WAIT_LIMIT)
        .response_timeout(response_timeout);
    MySqlProvider::open(&options, "default").unwrap()
}

fn via_proxy(kind: MySqlKind, response_timeout: Duration) -> (Server, Proxy, MySqlProvider) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let provider = provider(&proxy, response_timeout);
    (server, proxy, provider)
}

fn deadline() -> HostInstant {
    SystemClock.now() + WAIT_LIMIT
}

/// What became of an operation.
#[derive(Debug)]
enum Answer {
    Granted(Lease),
    Busy,
    Released(Released),
    Renewed(Renewal),
    Failed(ErrorKind),
}

/// Carries out a batch: names to try, leases to release, and leases to renew.
fn run(
    provider: &MySqlProvider,
    tries: &[(&str, Duration)],
    releases: Vec<&mut Lease>,
    renewals: Vec<&mut Lease>,
) -> Vec<Answer> {
    let names = tries
        .iter()
        .map(|(name, ttl)| (LockName::new(*name).unwrap(), ttl));
    let names: Vec<_> = names.collect();
    let requests = names.iter();
    let requests = requests.map(|(name, ttl)| AcquireRequest::attempt(name, **ttl, &SystemClock));
    let requests: Vec<_> = requests.collect();
    let (deadline, ttl) = (deadline(), TTL);
    let mut batch: Vec<Operation<'_, Lease>> = Vec::new();
    for request in &requests {
        let answer = None;
        batch.push(Operation::Acquire(AttemptRequest {
            request,
            deadline,
            answer,
        }));
    }
    for lease in releases {
        let answer = None;
        batch.push(Operation::Release(ReleaseRequest {
            lease,
            deadline,
            answer,
        }));
    }
    for lease in renewals {
        let answer = None;
        batch.push(Operation::Renew(RenewRequest {
            lease,
            ttl,
            deadline,
            answer,
        }));
    }
    Backend::batch(provider, &mut batch);
    let answers = batch.into_iter().map(|operation| match operation {
        Operation::Acquire(it) => it
            .answer
            .unwrap()
            .map(|granted| granted.map_or(Answer::Busy, |grant| Answer::Granted(grant.lease))),
        Operation::Release(it) => it.answer.unwrap().map(Answer::Released),
        Operation::Renew(it) => it.answer.unwrap().map(Answer::Renewed),
    });
    let answers = answers.map(|it| it.unwrap_or_else(|error| Answer::Failed(error.kind())));
    answers.collect()
}

/// Makes one attempt.
fn tried(provider: &MySqlProvider, name: &str, ttl: Duration) -> Answer {
    run(provider, &[(name, ttl)], vec![], vec![]).remove(0)
}

#[track_caller]
fn granted(answer: Answer) -> Lease {
    match answer {
        Answer::Granted(lease) => lease,
        other => panic!("{other:?}"),
    }
}

/// Repeats an attempt, which is never busy, until it is granted.
fn granted_in_the_end(provider: &MySqlProvider, name: &str, mut last: Answer) -> Lease {
    until("the name is granted", || {
        if let Answer::Failed(kind) = last {
            // Unavailable while the session of the first request is being ended.
            assert!(
                matches!(kind, ErrorKind::Unknown | ErrorKind::Unavailable),
                "{kind:?}"
            );
            last = tried(provider, name, TTL);
        }
        !matches!(last, Answer::Failed(_))
    });
    granted(last)
}

fn released(provider: &MySqlProvider, mut lease: Lease) {
    let released = Backend::release(provider, &mut lease, deadline());
    assert_eq!(released.unwrap(), Released::Done);
}

fn batch_whose_connection_is_cut(kind: MySqlKind) {
    let (server, proxy, provider) = via_proxy(kind, WAIT_LIMIT);
    let in_reply = |bytes| Some(Fault::CutReplyAfter(bytes));
    for fault in [None, in_reply(0), in_reply(10)] {
        let [mut freed, mut kept] =
            ["freed", "kept"].map(|name| granted(tried(&provider, name, TTL)));
        match fault {
            None => proxy.cut(),
            Some(fault) => proxy.once("default:new", fault),
        }
        let mut answers = run(
            &provider,
            &[("new", TTL)],
            vec![&mut freed],
            vec![&mut kept],
        );
        let [
            _,
            Answer::Released(Released::AlreadyLost),
            Answer::Renewed(Renewal::Lost),
        ] = &answers[..]
        else {
            panic!("{fault:?}: {answers:?}");
        };
        let new = granted_in_the_end(&provider, "new", answers.remove(0));
        released(&provider, new);
        for name in ["new", "freed", "kept"] {
            until("nothing is held", || holder_of(&server, name).is_none());
        }
    }
}

fn batch_without_a_reply_is_unknown(kind: MySqlKind) {
    let (server, proxy, provider) = via_proxy(kind, SOON);
    let mut other = None;
    for fault in [Fault::DropRequests, Fault::DropReplies, Fault::DropReplies] {
        let ttl = Duration::from_secs(6);
        let [mut freed, mut kept] =
            ["freed", "kept"].map(|name| granted(tried(&provider, name, ttl)));
        assert_eq!(holder_of(&server, "freed"), holder_of(&server, "kept"));
        proxy.once("default:new", fault);
        let mut answers = run(
            &provider,
            &[("new", ttl)],
            vec![&mut freed],
            vec![&mut kept],
        );
        for answer in &answers {
            assert!(
                matches!(answer, Answer::Failed(ErrorKind::Unknown)),
                "{answers:?}"
            );
        }
        let new = granted_in_the_end(&provider, "new", answers.remove(0));
        released(&provider, new);
        for name in ["new", "freed", "kept"] {
            until("nothing is held", || holder_of(&server, name).is_none());
        }
        // The last attempts are made on a session with another name.
        if fault == Fault::DropReplies {
            other.get_or_insert_with(|| granted(tried(&provider, "other", TTL)));
        }
    }
}

fn late_grant_of_a_batch_is_given_back(kind: MySqlKind) {
    let (server, proxy, provider) = via_proxy(kind, SOON);
    let [mut freed, mut kept] = ["freed", "kept"].map(|name| granted(tried(&provider, name, TTL)));
    assert_eq!(holder_of(&server, "freed"), holder_of(&server, "kept"));
    proxy.once("default:late", Fault::DelayReplies(4 * SOON));
    let answers = run(&provider, &[("late", TTL)], vec![&mut freed], vec![]);
    for answer in &answers {
        assert!(
            matches!(answer, Answer::Failed(ErrorKind::Unknown)),
            "{answers:?}"
        );
    }
    assert_eq!(holder_of(&server, "late"), holder_of(&server, "kept"));
    until("the late grant is released", || {
        holder_of(&server, "late").is_none()
    });
    assert!(holder_of(&server, "freed").is_none());
    let renewed = run(&provider, &[], vec![], vec![&mut kept]);
    assert!(
        matches!(renewed[..], [Answer::Renewed(Renewal::Renewed)]),
        "{renewed:?}"
    );
    released(&provider, granted(tried(&provider, "late", TTL)));
    released(&provider, kept);
}

fn slow_session_delays_no_other(kind: MySqlKind) {
    let (server, proxy, provider) = via_proxy(kind, 2 * SOON);
    let other = TTL / 2;
    let mut slow = granted(tried(&provider, "slow", TTL));
    let near = granted(tried(&provider, "near", other));
    assert_ne!(holder_of(&server, "slow"), holder_of(&server, "near"));
    proxy.once("default:slow", Fault::DelayReplies(6 * SOON));
    let mut answers = run(&provider, &[("new", other)], vec![], vec![&mut slow]);
    let Some(Answer::Failed(ErrorKind::Unknown)) = answers.pop() else {
        panic!("the renewal has no reply yet");
    };
    let new = granted(answers.remove(0));
    assert_eq!(holder_of(&server, "new"), holder_of(&server, "near"));
    for lease in [new, near] {
        released(&provider, lease);
    }
    until("the slow session replies", || {
        let renewed = run(&provider, &[], vec![], vec![&mut slow]);
        matches!(renewed[..], [Answer::Renewed(Renewal::Renewed)])
    });
    released(&provider, slow);
}
