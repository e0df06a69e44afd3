//! Several operations in one transaction.

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, Backend, Grant, LockName, Operation, ReleaseRequest,
    RenewRequest, StoreInfo,
};

use super::waiting::silent_waiter;
use super::*;

type Lease = <SqliteProvider as Backend>::Lease;

/// Calls `work` with a request for `name`.
fn with_request<T>(name: &str, work: impl FnOnce(&AcquireRequest<'_>) -> T) -> T {
    let (name, clock) = (LockName::new(name).unwrap(), SystemClock);
    let ttl = Duration::from_secs(30);
    work(&AcquireRequest::attempt(&name, ttl, &clock))
}

/// Acquires a name by the single verb.
fn lease(provider: &SqliteProvider, name: &str) -> Lease {
    let grant = with_request(name, |request| Backend::acquire(provider, request));
    grant.unwrap().unwrap().lease
}

fn deadline() -> HostInstant {
    SystemClock.now() + Duration::from_secs(60)
}

fn attempt<'a>(request: &'a AcquireRequest<'a>) -> Operation<'a, Lease> {
    Operation::Acquire(AttemptRequest {
        request,
        deadline: deadline(),
        answer: None,
    })
}

fn renewal(lease: &mut Lease) -> Operation<'_, Lease> {
    Operation::Renew(RenewRequest {
        lease,
        ttl: Duration::from_secs(30),
        deadline: deadline(),
        answer: None,
    })
}

fn release(lease: &mut Lease) -> Operation<'_, Lease> {
    Operation::Release(ReleaseRequest::new(lease, deadline()))
}

/// Carries out a batch, and returns each answer as a word.
fn words(provider: &SqliteProvider, mut batch: Vec<Operation<'_, Lease>>) -> Vec<String> {
    Backend::batch(provider, &mut batch);
    let words = batch.into_iter().map(|operation| {
        let answer = match operation {
            Operation::Acquire(it) => it.answer.unwrap().map(|grant| match grant {
                Some(_) => "Granted".to_owned(),
                None => "Busy".to_owned(),
            }),
            Operation::Renew(it) => it.answer.unwrap().map(|found| format!("{found:?}")),
            Operation::Release(it) => it.answer.unwrap().map(|found| format!("{found:?}")),
        };
        answer.unwrap_or_else(|error| format!("{:?}", error.kind()))
    });
    words.collect()
}

/// Attempts to acquire a name, by a batch.
fn try_in_batch(provider: &SqliteProvider, name: &str) -> Vec<String> {
    with_request(name, |request| words(provider, vec![attempt(request)]))
}

/// Makes an attempt by a batch of its own.
pub(super) fn attempt_in_batch(
    provider: &SqliteProvider,
    request: &AcquireRequest<'_>,
) -> Result<Option<Grant<Lease>>, Error> {
    let mut batch = [attempt(request)];
    Backend::batch(provider, &mut batch);
    let [Operation::Acquire(attempt)] = batch else {
        unreachable!("it is an attempt")
    };
    attempt.answer.unwrap()
}

fn names(store: &TempStore) -> Vec<String> {
    let raw = store.raw();
    let mut rows = raw
        .prepare("SELECT name FROM lock WHERE name <> '' ORDER BY name")
        .unwrap();
    let names = rows.query_map((), |row| row.get(0)).unwrap();
    names.map(Result::unwrap).collect()
}

#[test]
fn grant_of_a_batch_is_listened_for() {
    let store = TempStore::new();
    let provider = store.provider();
    let holds = || store.files().iter().any(|file| file.contains("-holder-"));
    assert!(!holds());
    assert_eq!(try_in_batch(&provider, "seat"), ["Granted"]);
    assert!(holds());
}

#[test]
fn attempt_of_a_batch_gets_a_name_whose_waiter_is_gone() {
    let store = TempStore::new();
    let provider = store.provider();
    let _held = lease(&provider, "seat");
    let attempts = || try_in_batch(&provider, "seat");
    assert_eq!(attempts(), ["Busy"]);
    store
        .raw()
        .execute(
            "UPDATE lock SET epoch = 0, reserved = 1 WHERE name = 'seat'",
            (),
        )
        .unwrap();
    assert_eq!(attempts(), ["Granted"]);
}

#[test]
fn attempt_after_its_deadline_is_not_granted() {
    let store = TempStore::new();
    let late = with_request("seat", |request| {
        let late = Operation::Acquire(AttemptRequest {
            request,
            deadline: request.now(),
            answer: None,
        });
        words(&store.provider(), vec![late])
    });
    assert_eq!(late, ["Unavailable"]);
    assert_eq!(locks(&store.raw()), 0);
}

#[test]
fn batch_waits_for_another_writer() {
    let store = TempStore::new();
    let provider = store.provider();
    let mut leases = ["kept", "lost", "done"].map(|name| lease(&provider, name));
    let raw = store.raw();
    raw.execute_batch("BEGIN IMMEDIATE; DELETE FROM lock WHERE name = 'lost'")
        .unwrap();
    let before = provider.usage().unwrap().commands;
    let acting = provider.clone();
    let thread = thread::spawn(move || {
        let [kept, lost, done] = &mut leases;
        words(&acting, vec![renewal(kept), renewal(lost), release(done)])
    });
    until("the batch has retried", || {
        provider.usage().unwrap().commands > before + 10
    });
    raw.execute_batch("COMMIT").unwrap();
    assert_eq!(thread.join().unwrap(), ["Renewed", "Lost", "Done"]);
    assert_eq!(names(&store), ["kept"]);
}

#[test]
fn batch_in_a_database_that_stays_locked_fails_as_the_single_verbs_do() {
    let store = TempStore::new();
    let provider = store.provider();
    let [mut kept, mut done] = ["kept", "done"].map(|name| lease(&provider, name));
    let raw = store.raw();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let found = with_request("seat", |request| {
        let others = [renewal(&mut kept), release(&mut done)];
        let all = [attempt(request)].into_iter().chain(others);
        words(&provider, all.collect())
    });
    assert_eq!(found, ["Unavailable", "Unknown", "Unknown"]);
    raw.execute_batch("ROLLBACK").unwrap();
    assert_eq!(names(&store), ["done", "kept"]);
}

/// Carries out an attempt for `seat`, a renewal and a release in a database with this trigger.
fn batch_with_trigger(store: &TempStore, trigger: &str) -> Vec<String> {
    let provider = store.provider();
    let [mut kept, mut done] = ["kept", "done"].map(|name| lease(&provider, name));
    store.raw().execute_batch(trigger).unwrap();
    let found = with_request("seat", |request| {
        let all = [renewal(&mut kept), attempt(request), release(&mut done)];
        words(&provider, all.into())
    });
    // The failed transaction excludes no other process, although the provider is not used.
    store.raw().execute_batch("DROP TRIGGER seat").unwrap();
    assert_eq!(try_in_batch(&provider, "seat"), ["Granted"]);
    found
}

#[test]
fn failure_of_one_operation_is_its_own_unless_it_ends_the_transaction() {
    let all_fail = (
        ["Unknown", "Incompatible", "Unknown"],
        vec!["done", "kept", "seat"],
    );
    for (trigger, (answers, left)) in [
        (
            "CREATE TRIGGER seat BEFORE INSERT ON lock WHEN NEW.name = 'seat'
             BEGIN SELECT RAISE(ABORT, 'the attempt fails'); END",
            (["Renewed", "Incompatible", "Done"], vec!["kept", "seat"]),
        ),
        (
            "CREATE TRIGGER seat BEFORE INSERT ON lock WHEN NEW.name = 'seat'
             BEGIN SELECT RAISE(ROLLBACK, 'the transaction fails'); END",
            all_fail.clone(),
        ),
        (
            "CREATE TABLE parent (id INTEGER PRIMARY KEY);
             CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
             CREATE TRIGGER seat AFTER INSERT ON lock WHEN NEW.name = 'seat'
             BEGIN INSERT INTO child VALUES (1); END",
            all_fail,
        ),
    ] {
        let store = TempStore::new();
        assert_eq!(batch_with_trigger(&store, trigger), answers, "{trigger}");
        assert_eq!(names(&store), left, "{trigger}");
    }
}

#[test]
fn release_in_a_batch_notifies_the_next_waiter() {
    use std::os::unix::net::UnixDatagram;
    let store = TempStore::new();
    let provider = store.provider();
    let mut held = lease(&provider, "seat");
    // A waiter that polls would get the name as well, later.
    let waiter = silent_waiter(&store);
    let wake = "locks.db-wake-waiter";
    let socket = UnixDatagram::bind(store.folder.path().join(wake)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let raw = store.raw();
    raw.execute("UPDATE waiter SET wake = ?1", [wake]).unwrap();
    raw.execute("UPDATE lock SET contended = 1 WHERE name = 'seat'", ())
        .unwrap();
    let thread = thread::spawn(move || words(&provider, vec![release(&mut held)]));
    assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 1);
    let reserved = raw.query_row("SELECT reserved FROM lock WHERE name = 'seat'", (), |row| {
        row.get(0)
    });
    assert_eq!(reserved, Ok(waiter));
    assert_eq!(thread.join().unwrap(), ["Done"]);
}
