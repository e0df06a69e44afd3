//! Shared locks, and the sessions that stand guard for them.

use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Backend, Error, Grant, HostInstant, LockKeeper, LockName, Mode, Released,
    Renewal, StoreInfo, SystemClock, WaitOutcome,
};
use lockkeeper_mysql::MySqlProvider;
use lockkeeper_testkit::{MySqlKind, MySqlServer, until};

use crate::store::{Case, WAIT_LIMIT, open, options, start, start_own};

pub(crate) const CASES: &[Case] = &[
    (
        "readers_take_slots_and_a_writer_takes_the_name",
        readers_take_slots_and_a_writer_takes_the_name,
    ),
    (
        "names_of_all_lengths_are_shared",
        names_of_all_lengths_are_shared,
    ),
    (
        "writer_that_never_saw_a_reader_makes_way",
        writer_that_never_saw_a_reader_makes_way,
    ),
    (
        "readers_are_lost_with_their_guardian",
        readers_are_lost_with_their_guardian,
    ),
    (
        "readers_stay_when_another_guardian_ends",
        readers_stay_when_another_guardian_ends,
    ),
    (
        "ended_guardian_lets_a_waiting_writer_in",
        ended_guardian_lets_a_waiting_writer_in,
    ),
    (
        "guardian_ends_with_its_provider",
        guardian_ends_with_its_provider,
    ),
    (
        "more_readers_than_slots_are_refused_or_wait",
        more_readers_than_slots_are_refused_or_wait,
    ),
    (
        "attempts_of_readers_and_writers_leave_no_name",
        attempts_of_readers_and_writers_leave_no_name,
    ),
    (
        "attempt_succeeds_beside_readers_that_waited",
        attempt_succeeds_beside_readers_that_waited,
    ),
    (
        "shared_leases_are_listed_and_freed",
        shared_leases_are_listed_and_freed,
    ),
];

const TTL: Duration = Duration::from_secs(30);
const FLAG: &str = "shop:+f";

type Lease = <MySqlProvider as Backend>::Lease;
type Attempt = Result<Option<Grant<Lease>>, Error>;

fn provider(server: &MySqlServer) -> MySqlProvider {
    MySqlProvider::open(&options(server), "shop").unwrap()
}

fn attempt(provider: &MySqlProvider, name: &str, mode: Mode) -> Attempt {
    let name = LockName::new(name).unwrap();
    let request = AcquireRequest::attempt(&name, TTL, &SystemClock);
    provider.acquire(&request.with_mode(mode))
}

fn shared(provider: &MySqlProvider) -> Option<Grant<Lease>> {
    attempt(provider, "seat:42", Mode::Shared).unwrap()
}

fn exclusive(provider: &MySqlProvider) -> Option<Grant<Lease>> {
    attempt(provider, "seat:42", Mode::Exclusive).unwrap()
}

fn release(provider: &MySqlProvider, mut grant: Grant<Lease>) {
    let released = provider.release(&mut grant.lease, HostInstant::NEVER);
    assert_eq!(released.unwrap(), Released::Done);
}

fn renew(provider: &MySqlProvider, grant: &mut Grant<Lease>) -> Renewal {
    let renewed = provider.renew(&mut grant.lease, TTL, HostInstant::NEVER);
    renewed.unwrap()
}

/// Returns the names that are held, without the flag.
fn names(server: &MySqlServer) -> Vec<String> {
    let held = server.held().unwrap().into_iter();
    let mut names: Vec<_> = held.map(|(name, _)| name).collect();
    names.retain(|name| name != FLAG);
    names.sort();
    names
}

/// Returns the session that holds the flag.
fn guardian(server: &MySqlServer) -> Option<u64> {
    let held = server.held().unwrap().into_iter();
    held.filter(|(name, _)| name == FLAG)
        .map(|(_, session)| session)
        .next()
}

/// Returns how many sessions wait in statements with this text.
fn waiting(server: &MySqlServer, text: &str) -> usize {
    let sessions = server.sessions().unwrap().into_iter();
    let waits = sessions.filter(|it| {
        let statement = it.statement.as_deref().unwrap_or_default();
        it.state == "User lock" && statement.contains(text)
    });
    waits.count()
}

fn kill(server: &MySqlServer, session: u64) {
    server.execute(&format!("KILL {session}")).unwrap();
}

fn readers_take_slots_and_a_writer_takes_the_name(kind: MySqlKind) {
    let server = start(kind);
    let stores = [(); 2].map(|()| provider(&server));
    let [one, two] = &stores;
    let first = shared(one).unwrap();
    let mut second = shared(two).unwrap();
    assert!(first.epoch < second.epoch);
    assert_eq!(names(&server), ["shop:seat:42+r00", "shop:seat:42+r01"]);
    assert_eq!(renew(two, &mut second), Renewal::Renewed);
    for store in &stores {
        assert!(exclusive(store).is_none());
    }
    release(one, first);
    // The smallest free slot.
    let third = shared(two).unwrap();
    assert_eq!(names(&server), ["shop:seat:42+r00", "shop:seat:42+r01"]);
    release(two, second);
    assert!(exclusive(one).is_none());
    let last = third.epoch;
    release(two, third);
    let written = exclusive(one).unwrap();
    assert!(written.epoch > last);
    assert_eq!(names(&server), ["shop:seat:42"]);
    for store in &stores {
        assert!(shared(store).is_none());
    }
    release(one, written);
    assert!(names(&server).is_empty());
}

/// The names of the slots have less room than that of the lock.
fn names_of_all_lengths_are_shared(kind: MySqlKind) {
    let server = start(kind);
    let (reader, writer) = (provider(&server), provider(&server));
    let long = "Long name ".repeat(8);
    let lengths = [52, 53, 58, 59, 60, 64, 65].map(|length| "x".repeat(length));
    for name in lengths.iter().chain([&long]) {
        let read = attempt(&reader, name, Mode::Shared).unwrap().unwrap();
        let written = attempt(&writer, name, Mode::Exclusive).unwrap();
        assert!(written.is_none(), "{name} has a reader");
        release(&reader, read);
        let written = attempt(&writer, name, Mode::Exclusive).unwrap().unwrap();
        let read = attempt(&reader, name, Mode::Shared).unwrap();
        assert!(read.is_none(), "{name} has a writer");
        release(&writer, written);
    }
    assert!(names(&server).is_empty());
}

/// Their first statements after the flag was raised do not look at the slots.
fn writer_that_never_saw_a_reader_makes_way(kind: MySqlKind) {
    let server = start(kind);
    let writers = [(); 2].map(|()| provider(&server));
    let keeper = open(&server, "namespace=shop");
    let reader = provider(&server);
    let read = shared(&reader).unwrap();
    for writer in &writers {
        assert!(exclusive(writer).is_none());
        assert_eq!(names(&server), ["shop:seat:42+r00"]);
    }
    // Several names in one statement.
    assert!(keeper.try_lock_all(["a", "seat:42"]).unwrap().is_none());
    until("the other name is given back", || {
        names(&server) == ["shop:seat:42+r00"]
    });
    release(&reader, read);
    drop(keeper.try_lock_all(["a", "seat:42"]).unwrap().unwrap());
}

fn readers_are_lost_with_their_guardian(kind: MySqlKind) {
    let server = start(kind);
    let [reader, writer] = [(); 2].map(|()| open(&server, "namespace=shop"));
    let kept = reader.lock("other").unwrap();
    let guards = ["a", "b"].map(|name| reader.lock_shared(name).unwrap());
    let before = guardian(&server).unwrap();
    kill(&server, before);
    for guard in guards {
        let outcome = guard.lost_signal().wait(WAIT_LIMIT);
        assert_eq!(outcome, WaitOutcome::Lost);
        assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
    }
    assert!(kept.is_held(), "it is no shared lease");
    kept.renew().unwrap();
    until("the slots are free", || names(&server) == ["shop:other"]);
    drop(writer.try_lock("a").unwrap().unwrap());
    // Another one stands guard.
    let again = reader.lock_shared("a").unwrap();
    assert_ne!(guardian(&server), Some(before));
    assert!(writer.try_lock("a").unwrap().is_none());
    drop((again, kept));
}

/// A provider whose guardian waits for the flag has it when the holder's session ends.
fn readers_stay_when_another_guardian_ends(kind: MySqlKind) {
    let server = start(kind);
    let stores = [(); 3].map(|()| provider(&server));
    let mut grants = stores.each_ref().map(|store| shared(store).unwrap());
    for at in 0..stores.len() {
        let holder = guardian(&server).unwrap();
        assert_eq!(waiting(&server, "GET_LOCK('shop:+f'"), 2 - at);
        kill(&server, holder);
        until("the killed session has ended", || {
            guardian(&server) != Some(holder)
        });
        until("its readers are lost", || {
            renew(&stores[at], &mut grants[at]) == Renewal::Lost
        });
        let (store, grant) = (&stores[(at + 1) % 3], &mut grants[(at + 1) % 3]);
        let is_last = at + 1 == stores.len();
        assert_eq!(guardian(&server).is_none(), is_last);
        if !is_last {
            assert_eq!(renew(store, grant), Renewal::Renewed);
            let writer = provider(&server);
            assert!(exclusive(&writer).is_none(), "another provider reads");
        }
    }
    until("nothing is left", || names(&server).is_empty());
}

fn ended_guardian_lets_a_waiting_writer_in(kind: MySqlKind) {
    let server = start(kind);
    let [reader, writer, late] = [(); 3].map(|()| open(&server, "namespace=shop"));
    let read = reader.lock_shared("seat:42").unwrap();
    thread::scope(|scope| {
        let writing = scope.spawn(|| writer.try_lock_for("seat:42", WAIT_LIMIT));
        until("it waits for the reader", || {
            waiting(&server, "GET_LOCK('shop:seat:42+r00'") == 1
        });
        let second = late.try_lock_shared("seat:42").unwrap();
        assert!(second.is_none(), "a writer waits");
        kill(&server, guardian(&server).unwrap());
        let outcome = read.lost_signal().wait(WAIT_LIMIT);
        assert_eq!(outcome, WaitOutcome::Lost);
        let written = writing.join().unwrap().unwrap();
        assert!(written.unwrap().token() > read.token());
    });
    until("nothing is left", || names(&server).is_empty());
}

fn guardian_ends_with_its_provider(kind: MySqlKind) {
    let server = start(kind);
    let stores = [(); 3].map(|()| provider(&server));
    let grants = stores.each_ref().map(|store| shared(store).unwrap());
    let connections = || stores.each_ref().map(|it| it.usage().unwrap().connections);
    assert_eq!(connections(), [2; 3], "one reads, and one stands guard");
    drop(grants);
    let [first, second, third] = stores;
    drop(second);
    until("the second waits for the flag no more", || {
        waiting(&server, "GET_LOCK('shop:+f'") == 1
    });
    drop((first, third));
    until("no session is left", || {
        server.sessions().unwrap().is_empty()
    });
    assert_eq!(guardian(&server), None);
}

fn more_readers_than_slots_are_refused_or_wait(kind: MySqlKind) {
    const SLOTS: usize = 32;
    let server = start(kind);
    let store = provider(&server);
    let mut grants: Vec<_> = (0..SLOTS).map(|_| shared(&store).unwrap()).collect();
    assert_eq!(names(&server).len(), SLOTS);
    assert!(shared(&store).is_none(), "all slots are in use");
    let keeper = open(&server, "namespace=shop");
    thread::scope(|scope| {
        let reading =
            scope.spawn(|| LockKeeper::try_lock_shared_for(&keeper, "seat:42", WAIT_LIMIT));
        until("it waits for a slot", || {
            waiting(&server, "GET_LOCK('shop:seat:42+r") == 1
        });
        release(&store, grants.remove(7));
        drop(reading.join().unwrap().unwrap().unwrap());
    });
    for grant in grants {
        release(&store, grant);
    }
    until("nothing is left", || names(&server).is_empty());
}

/// Attempts of several sessions meet at the gate, and the readers among them are no reason for each other to fail.
fn attempts_of_readers_and_writers_leave_no_name(kind: MySqlKind) {
    let server = start(kind);
    let readers = [(); 3].map(|()| provider(&server));
    let writer = provider(&server);
    let first = shared(&readers[0]).unwrap();
    // Its first attempt does not know of readers, and comes without the gate.
    assert!(exclusive(&writer).is_none());
    thread::scope(|scope| {
        let read = |reader| {
            for _ in 0..200 {
                release(reader, shared(reader).expect("no writer has it"));
            }
        };
        let reading = readers.each_ref().map(|it| scope.spawn(move || read(it)));
        while !reading.iter().all(ScopedJoinHandle::is_finished) {
            assert!(exclusive(&writer).is_none(), "a reader has it");
        }
    });
    release(&readers[0], first);
    assert!(names(&server).is_empty());
}

/// Each reader that waited holds the lock's name for the time of a statement.
fn attempt_succeeds_beside_readers_that_waited(kind: MySqlKind) {
    const WAITERS: usize = 6;
    let server = start(kind);
    let waiters = [(); WAITERS].map(|()| open(&server, "namespace=shop"));
    let other = provider(&server);
    for _ in 0..30 {
        let written = exclusive(&other).unwrap();
        thread::scope(|scope| {
            let wait = |keeper| LockKeeper::try_lock_shared_for(keeper, "seat:42", WAIT_LIMIT);
            let threads = waiters.each_ref().map(|it| scope.spawn(move || wait(it)));
            until("all wait in the server", || {
                waiting(&server, "'shop:seat:42'") == WAITERS
            });
            release(&other, written);
            for _ in 0..10 {
                release(&other, shared(&other).expect("no writer has it"));
            }
            for thread in threads {
                // Not dropped: a drop cuts a release short on a busy machine.
                let guard = thread.join().unwrap().unwrap().unwrap();
                assert_eq!(guard.release().unwrap(), Released::Done);
            }
        });
    }
    assert!(names(&server).is_empty());
}

fn shared_leases_are_listed_and_freed(kind: MySqlKind) {
    let server = start_own(kind);
    if kind == MySqlKind::MySql9 {
        server
            .execute("GRANT SELECT ON performance_schema.* TO 'keeper'@'%'")
            .unwrap();
    }
    let stores = [(); 2].map(|()| provider(&server));
    let [first, mut second] = stores.each_ref().map(|store| shared(store).unwrap());
    // Too long with what tells the slots apart, though not for the lock.
    let long = "x".repeat(59);
    let _long = attempt(&stores[0], &long, Mode::Shared).unwrap().unwrap();
    let admin = stores[0].admin().unwrap();
    let all = admin.held(None, HostInstant::NEVER).unwrap();
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(all.iter().all(|held| held.mode == Mode::Shared), "{all:?}");
    assert_eq!(all.iter().filter(|held| held.is_whole).count(), 2);
    let name = LockName::new("seat:42").unwrap();
    let rows = || admin.held(Some(&name), HostInstant::NEVER).unwrap();
    let writer = open(&server, "namespace=shop");
    thread::scope(|scope| {
        let writing = scope.spawn(|| writer.try_lock_for("seat:42", WAIT_LIMIT));
        until("the writer is counted, and is no holder", || {
            let waiting: Vec<_> = rows().iter().map(|held| held.waiting).collect();
            waiting == [Some(1); 2]
        });
        let shown = rows();
        assert!(admin.force_release(&shown[0], HostInstant::NEVER).unwrap());
        assert_eq!(renew(&stores[1], &mut second), Renewal::Renewed);
        release(&stores[1], second);
        let written = writing.join().unwrap().unwrap().unwrap();
        let shown = rows();
        assert_eq!(shown.len(), 1);
        assert_eq!(shown[0].mode, Mode::Exclusive);
        drop(written);
    });
    drop(first);
}
