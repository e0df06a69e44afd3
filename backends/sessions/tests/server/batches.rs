//! Several operations in one call of the provider.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{ErrorKind, Released, Renewal};
use lockkeeper_testkit::{StoreKind, TestServer, cases, until};

use crate::batch::{Batch, TTL, release, taken, tried, try_beside_lost};
use crate::checks::WAIT_LIMIT;
use crate::store::{
    Case, canceller, holders, keeper, leftovers, open, provider, start, until_waiting,
};

pub(crate) const CASES: &[Case] = cases![
    long_batch_is_one_statement,
    batch_on_killed_session_tries_elsewhere,
    name_is_granted_to_one_of_two_batches,
    batch_waits_for_no_connection,
    ttls_stay_apart,
    longer_ttl_of_a_renewal_is_set,
    refused_statement_leaves_nothing,
];

/// Returns whether the names are held, and nothing else is held or waited for.
fn are_all(server: &dyn TestServer, names: &[&str]) -> bool {
    let is_held = |name: &&str| holders(server, &[*name]).len() == 1;
    leftovers(server) == names.len() && names.iter().all(is_held)
}

/// Each grant of a name has a larger epoch.
fn long_batch_is_one_statement(kind: StoreKind) {
    let server = start(kind);
    let provider = provider(kind, &*server, 2);
    let names: Vec<_> = (0..256).map(|number| format!("seat:{number:03}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let (first, second) = names.split_at(128);
    let _kept = taken(&*provider, ["kept"]);
    let (mut leases, mut last) = (Vec::new(), 0);
    for names in [first, second, first] {
        let before = provider.usage().unwrap().commands;
        let batch = Batch {
            tries: names,
            releases: leases.iter_mut().collect(),
            renewals: Vec::new(),
        };
        let (tried, released, _) = batch.run(&*provider, TTL);
        assert_eq!(provider.usage().unwrap().commands - before, 1);
        assert!(released.iter().all(|it| matches!(it, Ok(Released::Done))));
        let grants = tried.into_iter().map(|answer| answer.unwrap().unwrap());
        let grants: Vec<_> = grants.collect();
        assert!(grants.iter().all(|grant| grant.epoch > last), "{grants:?}");
        last = grants.iter().map(|grant| grant.epoch).max().unwrap();
        leases = grants.into_iter().map(|grant| grant.lease).collect();
        assert_eq!(leftovers(&*server), 129);
        let some = ["kept", names[0], names[127]];
        assert!(
            some.iter()
                .all(|name| !holders(&*server, &[*name]).is_empty())
        );
        assert_eq!(holders(&*server, &some).len(), 1);
    }
}

fn batch_on_killed_session_tries_elsewhere(kind: StoreKind) {
    let server = start(kind);
    let provider = provider(kind, &*server, 2);
    for _ in 0..10 {
        let [mut freed, mut kept] = taken(&*provider, ["freed", "kept"]);
        for session in holders(&*server, &["kept"]) {
            server.kill_session(session).unwrap();
        }
        let new = try_beside_lost(&*provider, [&mut freed, &mut kept]);
        let mut lease = new.unwrap().unwrap().lease;
        until("only the new name is held", || are_all(&*server, &["new"]));
        release(&*provider, [&mut lease]);
    }
}

/// The server would grant it to both on a session that they share.
fn name_is_granted_to_one_of_two_batches(kind: StoreKind) {
    let server = start(kind);
    // A name that is there twice needs another connection.
    let provider = provider(kind, &*server, 16);
    let _kept = taken(&*provider, ["kept"]);
    let barrier = Barrier::new(2);
    for _ in 0..15 {
        let try_both = |own| {
            let (provider, barrier) = (&provider, &barrier);
            move || {
                barrier.wait();
                tried(&**provider, &[own, "same", "same"], TTL)
            }
        };
        let answers: Vec<_> = thread::scope(|scope| {
            let batches = ["a", "b"].map(|own| scope.spawn(try_both(own)));
            let answers = batches.map(|batch| batch.join().unwrap());
            answers.into_iter().flatten().collect()
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
        release(&*provider, &mut leases);
        assert!(are_all(&*server, &["kept"]));
    }
}

/// Of two connections one holds a name, and on the other one a thread waits in the server.
fn batch_waits_for_no_connection(kind: StoreKind) {
    let server = start(kind);
    let theirs = open(&*server, "").lock("theirs").unwrap();
    let provider = provider(kind, &*server, 2);
    let [mut kept] = taken(&*provider, ["kept"]);
    let keeper = keeper(&provider);
    thread::scope(|scope| {
        // A batch that waits for the connection gets it at the end of this wait.
        let waiting = scope.spawn(|| keeper.try_lock_for("theirs", WAIT_LIMIT / 3));
        until_waiting(&*server, &["theirs"], 1);
        let batch = Batch {
            tries: &["needs a connection"],
            renewals: vec![&mut kept],
            ..Batch::default()
        };
        let (tried, _, renewed) = batch.run(&*provider, TTL / 2);
        let error = tried[0].as_ref().expect_err("no connection is free");
        assert_eq!(error.kind(), ErrorKind::PoolExhausted, "{error:?}");
        assert_eq!(*renewed[0].as_ref().unwrap(), Renewal::Renewed);
        drop(theirs);
        assert!(waiting.join().unwrap().unwrap().is_some());
    });
    // A name of the same ttl needs none.
    let tried = tried(&*provider, &["shares"], TTL);
    assert!(matches!(tried[..], [Ok(Some(_))]), "{tried:?}");
}

fn ttls_stay_apart(kind: StoreKind) {
    let server = start(kind);
    let provider = provider(kind, &*server, 4);
    // A lease that ended before its release would show nothing.
    let other = TTL * 2;
    let mut leases = Vec::new();
    for (name, ttl) in [("a", TTL), ("b", other), ("c", TTL), ("d", other)] {
        let grant = tried(&*provider, &[name], ttl).remove(0).unwrap();
        leases.extend(grant.map(|grant| grant.lease));
    }
    for (names, sessions) in [(["a", "c"], 1), (["b", "d"], 1), (["a", "b"], 2)] {
        assert_eq!(holders(&*server, &names).len(), sessions, "{names:?}");
    }
    // One batch is about both sessions.
    release(&*provider, &mut leases);
    assert_eq!(leftovers(&*server), 0);
}

/// The server ends the session of a silent holder after the ttl of its renewal.
fn longer_ttl_of_a_renewal_is_set(kind: StoreKind) {
    let server = start(kind);
    // A session may still have its connection just after the server has ended it.
    let provider = provider(kind, &*server, 3);
    let second = Duration::from_secs(1);
    let grant = tried(&*provider, &["a"], second).remove(0).unwrap();
    let mut lease = grant.unwrap().lease;
    let batch = Batch {
        renewals: vec![&mut lease],
        ..Batch::default()
    };
    let (_, _, renewed) = batch.run(&*provider, TTL);
    assert_eq!(*renewed[0].as_ref().unwrap(), Renewal::Renewed);
    // Names with the former ttl get sessions of their own. Two in a row last longer than that ttl.
    for name in ["b", "c"] {
        let other = tried(&*provider, &[name], second).remove(0).unwrap();
        assert!(other.is_some());
        until("the session of the short lease ends", || {
            are_all(&*server, &["a"])
        });
    }
    release(&*provider, [&mut lease]);
}

/// An operator who cancels a statement refuses it for each name, also if the server has granted some of them.
fn refused_statement_leaves_nothing(kind: StoreKind) {
    let server = start(kind);
    // On a busy machine, most cancels come between two statements and refuse nothing. So there are many statements.
    let names: Vec<_> = (0..4_096).map(|number| format!("seat:{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    until("a statement was refused", || {
        let mut refused = 0;
        let provider = provider(kind, &*server, 2);
        let [mut kept] = taken(&*provider, ["kept"]);
        let session = holders(&*server, &["kept"]).pop_first().unwrap();
        let mut cancel = canceller(&*server, session);
        let answers = thread::scope(|scope| {
            let tries = scope.spawn(|| {
                let mut answers = Vec::new();
                for names in names.chunks(256) {
                    if answers.iter().all(Result::is_ok) {
                        answers.extend(tried(&*provider, names, TTL));
                    }
                }
                answers
            });
            while !tries.is_finished() {
                cancel();
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
        release(&*provider, &mut leases);
        until("only one name is held", || are_all(&*server, &["kept"]));
        release(&*provider, [&mut kept]);
        refused > 0
    });
}
