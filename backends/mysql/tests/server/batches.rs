//! Several operations in one call of the provider.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, Backend, Clock as _, Error, ErrorKind, Grant, HostInstant,
    LockKeeper, LockName, Operation, ReleaseRequest, Released, RenewRequest, Renewal,
    StoreInfo as _, SystemClock,
};
use lockkeeper_mysql::MySqlProvider;
use lockkeeper_testkit::{MySqlKind, MySqlServer, cases, until};

use crate::checks::WAIT_LIMIT;
use crate::store::{Case, open, options, start, waiters};

pub(crate) const CASES: &[Case] = cases![
    columns_are_evaluated_in_order,
    long_batch_is_one_statement,
    batch_on_killed_session_tries_elsewhere,
    name_is_granted_to_one_of_two_batches,
    batch_waits_for_no_connection,
    ttls_stay_apart,
    longer_ttl_of_a_renewal_is_set,
    refused_statement_leaves_nothing,
];

type Lease = <MySqlProvider as Backend>::Lease;
type Answer = Result<Option<Grant<Lease>>, Error>;

const TTL: Duration = Duration::from_secs(30);

/// Opens a provider on which names share a session from the second one on.
fn provider(server: &MySqlServer) -> MySqlProvider {
    let options = options(server).pool_size(2).response_timeout(WAIT_LIMIT);
    MySqlProvider::open(&options, "default").unwrap()
}

fn deadline() -> HostInstant {
    SystemClock.now() + WAIT_LIMIT
}

/// Attempts, releases and renewals of one call, in this order.
#[derive(Default)]
struct Batch<'a> {
    tries: &'a [&'a str],
    releases: Vec<&'a mut Lease>,
    renewals: Vec<&'a mut Lease>,
}

type Answers = (
    Vec<Answer>,
    Vec<Result<Released, Error>>,
    Vec<Result<Renewal, Error>>,
);

impl Batch<'_> {
    fn run(self, provider: &MySqlProvider, ttl: Duration) -> Answers {
        let names: Vec<_> = self
            .tries
            .iter()
            .map(|n| LockName::new(*n).unwrap())
            .collect();
        let request = |name| AcquireRequest::attempt(name, ttl, &SystemClock);
        let requests: Vec<_> = names.iter().map(request).collect();
        let (deadline, answer) = (deadline(), || None);
        let tries = requests.iter().map(|request| {
            Operation::Acquire(AttemptRequest {
                request,
                deadline,
                answer: None,
            })
        });
        let releases = self.releases.into_iter().map(|lease| {
            Operation::Release(ReleaseRequest {
                lease,
                deadline,
                answer: answer(),
            })
        });
        let renewals = self.renewals.into_iter().map(|lease| {
            Operation::Renew(RenewRequest {
                lease,
                ttl,
                deadline,
                answer: None,
            })
        });
        let mut batch: Vec<_> = tries.chain(releases).chain(renewals).collect();
        Backend::batch(provider, &mut batch);
        let mut answers = Answers::default();
        for operation in batch {
            match operation {
                Operation::Acquire(it) => answers.0.push(it.answer.unwrap()),
                Operation::Release(it) => answers.1.push(it.answer.unwrap()),
                Operation::Renew(it) => answers.2.push(it.answer.unwrap()),
            }
        }
        answers
    }
}

/// Tries names in one batch.
fn tried(provider: &MySqlProvider, tries: &[&str], ttl: Duration) -> Vec<Answer> {
    let batch = Batch {
        tries,
        ..Batch::default()
    };
    batch.run(provider, ttl).0
}

/// Takes names that are free in one batch.
fn taken<const N: usize>(provider: &MySqlProvider, names: [&str; N]) -> [Lease; N] {
    let taken = tried(provider, &names, TTL).into_iter();
    let taken: Vec<_> = taken.map(|answer| answer.unwrap().unwrap().lease).collect();
    taken.try_into().unwrap()
}

/// Returns the names that are held, without the namespace, and the sessions that hold them.
fn held(server: &MySqlServer) -> (Vec<String>, Vec<u64>) {
    let held = server.held().unwrap().into_iter();
    let (mut names, mut sessions): (Vec<_>, Vec<_>) = held
        .map(|(name, session)| (name.strip_prefix("default:").unwrap().to_owned(), session))
        .unzip();
    names.sort();
    sessions.sort_unstable();
    sessions.dedup();
    (names, sessions)
}

fn commands(provider: &MySqlProvider) -> u64 {
    provider.usage().unwrap().commands
}

/// A batch relies on it: the names that it releases are released before it takes others.
fn columns_are_evaluated_in_order(kind: MySqlKind) {
    let server = start(kind);
    let mut client = server.client().unwrap();
    let sql = "SELECT GET_LOCK('a', 0), RELEASE_LOCK('a'), IS_USED_LOCK('a'), GET_LOCK('a', 0), IS_USED_LOCK('a') = CONNECTION_ID(), RELEASE_LOCK('a'), RELEASE_LOCK('a')";
    let rows = client.rows(sql).unwrap();
    let columns: Vec<_> = rows[0].iter().map(Option::as_deref).collect();
    let one = Some("1");
    assert_eq!(columns, [one, one, None, one, one, one, None]);
}

/// Each grant of a name has a larger epoch.
fn long_batch_is_one_statement(kind: MySqlKind) {
    let server = start(kind);
    let provider = provider(&server);
    let names: Vec<_> = (0..256).map(|number| format!("seat:{number:03}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let (first, second) = names.split_at(128);
    let _kept = taken(&provider, ["kept"]);
    let (mut leases, mut last) = (Vec::new(), 0);
    for names in [first, second, first] {
        let before = commands(&provider);
        let batch = Batch {
            tries: names,
            releases: leases.iter_mut().collect(),
            renewals: Vec::new(),
        };
        let (tried, released, _) = batch.run(&provider, TTL);
        assert_eq!(commands(&provider) - before, 1);
        assert!(released.iter().all(|it| matches!(it, Ok(Released::Done))));
        leases = Vec::new();
        for answer in tried {
            let grant = answer.unwrap().unwrap();
            assert!(grant.epoch > last, "{grant:?}");
            last = grant.epoch;
            leases.push(grant.lease);
        }
        let (held, sessions) = held(&server);
        assert_eq!((held.len(), sessions.len()), (129, 1));
        assert!(names.iter().all(|name| held.iter().any(|it| it == name)));
    }
}

fn batch_on_killed_session_tries_elsewhere(kind: MySqlKind) {
    let server = start(kind);
    let provider = provider(&server);
    for _ in 0..10 {
        let [mut freed, mut kept] = taken(&provider, ["freed", "kept"]);
        let id = held(&server).1[0];
        server.execute(&format!("KILL {id}")).unwrap();
        let batch = Batch {
            tries: &["new"],
            releases: vec![&mut freed],
            renewals: vec![&mut kept],
        };
        let (mut tried, released, renewed) = batch.run(&provider, TTL);
        assert_eq!(*released[0].as_ref().unwrap(), Released::AlreadyLost);
        assert_eq!(*renewed[0].as_ref().unwrap(), Renewal::Lost);
        let mut lease = tried.remove(0).unwrap().unwrap().lease;
        until("only the new name is held", || held(&server).0 == ["new"]);
        let released = Backend::release(&provider, &mut lease, deadline());
        assert_eq!(released.unwrap(), Released::Done);
    }
}

/// The server would grant it to both on a session that they share.
fn name_is_granted_to_one_of_two_batches(kind: MySqlKind) {
    let server = start(kind);
    // A name that is there twice needs another connection.
    let options = options(&server).pool_size(16).response_timeout(WAIT_LIMIT);
    let provider = MySqlProvider::open(&options, "default").unwrap();
    let _kept = taken(&provider, ["kept"]);
    let barrier = Barrier::new(2);
    for _ in 0..50 {
        let try_both = |own| {
            let (provider, barrier) = (&provider, &barrier);
            move || {
                barrier.wait();
                tried(provider, &[own, "same", "same"], TTL)
            }
        };
        let answers: Vec<_> = thread::scope(|scope| {
            let batches = ["a", "b"].map(|own| scope.spawn(try_both(own)));
            batches
                .map(|batch| batch.join().unwrap())
                .into_iter()
                .flatten()
                .collect()
        });
        let mut leases = Vec::new();
        for answer in answers {
            match answer {
                Ok(grant) => leases.extend(grant.map(|grant| grant.lease)),
                // The holder may be the other batch, whose reply is still under way.
                Err(error) => assert!(error.is_of_name(), "{error:?}"),
            }
        }
        assert!(leases.len() <= 3, "{leases:?}");
        let batch = Batch {
            releases: leases.iter_mut().collect(),
            ..Batch::default()
        };
        let (_, released, _) = batch.run(&provider, TTL);
        assert!(released.iter().all(|it| matches!(it, Ok(Released::Done))));
        assert_eq!(held(&server).0, ["kept"]);
    }
}

/// Of two connections one holds a name, and on the other one a thread waits in the server.
fn batch_waits_for_no_connection(kind: MySqlKind) {
    let server = start(kind);
    let rival = open(&server, "");
    let theirs = rival.lock("theirs").unwrap();
    let provider = Arc::new(provider(&server));
    let [mut kept] = taken(&provider, ["kept"]);
    let keeper = LockKeeper::builder(provider.clone()).build().unwrap();
    thread::scope(|scope| {
        // A batch that waits for the connection gets it at the end of this wait.
        let waiting = scope.spawn(|| keeper.try_lock_for("theirs", WAIT_LIMIT / 3));
        until("the keeper waits in the server", || waiters(&server) == 1);
        let batch = Batch {
            tries: &["needs a connection"],
            renewals: vec![&mut kept],
            ..Batch::default()
        };
        let (tried, _, renewed) = batch.run(&provider, TTL / 2);
        let error = tried[0].as_ref().expect_err("no connection is free");
        assert_eq!(error.kind(), ErrorKind::PoolExhausted, "{error:?}");
        assert_eq!(*renewed[0].as_ref().unwrap(), Renewal::Renewed);
        drop(theirs);
        assert!(waiting.join().unwrap().unwrap().is_some());
    });
    // A name of the same ttl needs none.
    let tried = tried(&provider, &["shares"], TTL);
    assert!(matches!(tried[..], [Ok(Some(_))]), "{tried:?}");
}

fn ttls_stay_apart(kind: MySqlKind) {
    let server = start(kind);
    let options = options(&server).pool_size(4).response_timeout(WAIT_LIMIT);
    let provider = MySqlProvider::open(&options, "default").unwrap();
    // A lease that ended before its release would show nothing.
    let other = TTL * 2;
    let mut leases = Vec::new();
    for (name, ttl) in [("a", TTL), ("b", other), ("c", TTL), ("d", other)] {
        leases.extend(tried(&provider, &[name], ttl).remove(0).unwrap());
    }
    let sessions = server.held().unwrap();
    let session = |name: &str| sessions.iter().find(|it| it.0.ends_with(name)).unwrap().1;
    assert_eq!(session(":a"), session(":c"));
    assert_eq!(session(":b"), session(":d"));
    assert_ne!(session(":a"), session(":b"));
    // One batch is about both sessions.
    let batch = Batch {
        releases: leases.iter_mut().map(|grant| &mut grant.lease).collect(),
        ..Batch::default()
    };
    let (_, released, _) = batch.run(&provider, TTL);
    assert!(released.iter().all(|it| matches!(it, Ok(Released::Done))));
    assert_eq!(held(&server).0.len(), 0);
}

/// The server ends the session of a silent holder after the ttl of its renewal.
fn longer_ttl_of_a_renewal_is_set(kind: MySqlKind) {
    let server = start(kind);
    // A session may still have its connection just after the server has ended it.
    let options = options(&server).pool_size(3);
    let provider = MySqlProvider::open(&options, "default").unwrap();
    let second = Duration::from_secs(1);
    let mut lease = tried(&provider, &["a"], second)
        .remove(0)
        .unwrap()
        .unwrap()
        .lease;
    let batch = Batch {
        renewals: vec![&mut lease],
        ..Batch::default()
    };
    let (_, _, renewed) = batch.run(&provider, TTL);
    assert_eq!(*renewed[0].as_ref().unwrap(), Renewal::Renewed);
    // Names with the former ttl get sessions of their own. Two in a row last longer than that ttl.
    for name in ["b", "c"] {
        let other = tried(&provider, &[name], second).remove(0).unwrap();
        assert!(other.is_some());
        until("the session of the short lease ends", || {
            held(&server).0 == ["a"]
        });
    }
    let released = Backend::release(&provider, &mut lease, deadline());
    assert_eq!(released.unwrap(), Released::Done);
}

/// A `KILL QUERY` before the statement refuses it for each name.
fn refused_statement_leaves_nothing(kind: MySqlKind) {
    let server = start(kind);
    let names: Vec<_> = (0..256).map(|number| format!("seat:{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut client = server.client().unwrap();
    let mut refused = 0;
    // On a busy machine, a KILL comes between two statements now and then, and refuses nothing.
    for _ in 0..100 {
        let provider = provider(&server);
        let [mut kept] = taken(&provider, ["kept"]);
        let id = held(&server).1[0];
        let answers = thread::scope(|scope| {
            let tries = scope.spawn(|| tried(&provider, &names, TTL));
            while !tries.is_finished() {
                client.execute(&format!("KILL QUERY {id}")).unwrap();
            }
            tries.join().unwrap()
        });
        let mut leases = Vec::new();
        for answer in answers {
            match answer {
                Ok(grant) => leases.extend(grant.map(|grant| grant.lease)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                    refused += 1;
                }
            }
        }
        let batch = Batch {
            releases: leases.iter_mut().collect(),
            ..Batch::default()
        };
        let (_, released, _) = batch.run(&provider, TTL);
        assert!(released.iter().all(|it| matches!(it, Ok(Released::Done))));
        until("only one name is held", || held(&server).0 == ["kept"]);
        let released = Backend::release(&provider, &mut kept, deadline());
        assert_eq!(released.unwrap(), Released::Done);
        if refused > 0 {
            return;
        }
    }
    panic!("no statement was refused");
}
