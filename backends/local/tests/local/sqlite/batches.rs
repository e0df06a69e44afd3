//! Several operations in one transaction.

use std::sync::Mutex;

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, Backend, Capabilities, Grant, Operation, ReleaseRequest,
    RenewRequest, Renewal, StoreInfo,
};

#[cfg(unix)]
use super::waiting::silent_waiter;
use super::*;

type Lease = <SqliteProvider as Backend>::Lease;
type Answer = Result<Option<Grant<Lease>>, Error>;

/// A provider that gives each request of its keeper to a test.
struct Requests<F>(F);

impl<F> std::fmt::Debug for Requests<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Requests")
    }
}

impl<F: Fn(&AcquireRequest<'_>) -> Answer + Send + Sync + 'static> StoreInfo for Requests<F> {
    fn backend(&self) -> &'static str {
        "requests"
    }

    fn location(&self) -> String {
        "requests:".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }
}

impl<F: Fn(&AcquireRequest<'_>) -> Answer + Send + Sync + 'static> Backend for Requests<F> {
    type Lease = Lease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Answer {
        (self.0)(request)
    }

    fn renew(&self, _: &mut Lease, _: Duration, _: HostInstant) -> Result<Renewal, Error> {
        Ok(Renewal::Renewed)
    }

    fn release(&self, _: &mut Lease, _: HostInstant) -> Result<Released, Error> {
        Ok(Released::Done)
    }
}

/// Calls `work` with a request for `name`, and returns its result. If that is an error, the keeper retries.
fn request<T: Send + 'static>(
    name: &str,
    work: impl Fn(&AcquireRequest<'_>) -> Result<T, Error> + Send + Sync + 'static,
) -> T {
    let (sender, result) = mpsc::channel();
    let requests = Requests(move |request: &AcquireRequest<'_>| {
        sender.send(work(request)?).unwrap();
        Ok(None)
    });
    let keeper = LockKeeper::builder(Arc::new(requests)).build().unwrap();
    assert!(keeper.try_lock(name).unwrap().is_none());
    result.recv().unwrap()
}

/// Acquires a name by the single verb.
fn lease(provider: &SqliteProvider, name: &str) -> Lease {
    let provider = provider.clone();
    let grant = request(name, move |request| Backend::acquire(&provider, request));
    grant.unwrap().lease
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
    Operation::Release(ReleaseRequest {
        lease,
        deadline: deadline(),
        answer: None,
    })
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

/// Carries out a batch of a request for `name` and of some leases.
fn batch<const N: usize>(
    provider: &SqliteProvider,
    name: &str,
    leases: [Lease; N],
    operations: for<'a> fn(&'a AcquireRequest<'a>, [&'a mut Lease; N]) -> Vec<Operation<'a, Lease>>,
) -> Vec<String> {
    let (provider, leases) = (provider.clone(), Mutex::new(leases));
    request(name, move |request| {
        let mut leases = leases.lock().unwrap();
        Ok(words(&provider, operations(request, leases.each_mut())))
    })
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
fn each_operation_has_its_answer() {
    let store = TempStore::new();
    let provider = store.provider();
    let leases = ["kept", "lost", "done", "gone"].map(|name| lease(&provider, name));
    store
        .raw()
        .execute_batch("DELETE FROM lock WHERE name IN ('lost', 'gone')")
        .unwrap();
    let found = batch(&provider, "seat", leases, |request, leases| {
        let [kept, lost, done, gone] = leases;
        // The second attempt finds the grant of the first.
        let attempts = [attempt(request), attempt(request)];
        let others = [renewal(kept), renewal(lost), release(done), release(gone)];
        attempts.into_iter().chain(others).collect()
    });
    let expected = ["Granted", "Busy", "Renewed", "Lost", "Done", "AlreadyLost"];
    assert_eq!(found, expected);
    assert_eq!(names(&store), ["kept", "seat"]);
}

#[test]
fn grant_of_a_batch_is_listened_for() {
    let store = TempStore::new();
    let provider = store.provider();
    let holds = || store.files().iter().any(|file| file.contains("-holder-"));
    assert!(!holds());
    let granted = batch(&provider, "seat", [], |request, []| vec![attempt(request)]);
    assert_eq!(granted, ["Granted"]);
    assert_eq!(holds(), cfg!(unix));
}

#[test]
fn attempt_of_a_batch_recovers_its_own_grant() {
    let store = TempStore::new();
    let provider = store.provider();
    let found = request("seat", move |request| {
        let found = words(&provider, vec![attempt(request)]);
        match request.is_retry() {
            true => Ok(found),
            false => Err(Error::new(ErrorKind::Unknown, "the reply is lost")),
        }
    });
    assert_eq!(found, ["Granted"]);
}

#[test]
fn attempt_of_a_batch_gets_a_name_whose_waiter_is_gone() {
    let store = TempStore::new();
    let provider = store.provider();
    let _held = lease(&provider, "seat");
    let attempts = || batch(&provider, "seat", [], |request, []| vec![attempt(request)]);
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
    let late = batch(&store.provider(), "seat", [], |request, []| {
        vec![Operation::Acquire(AttemptRequest {
            request,
            deadline: request.now(),
            answer: None,
        })]
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
    let leases = ["kept", "done"].map(|name| lease(&provider, name));
    let raw = store.raw();
    raw.execute_batch("BEGIN IMMEDIATE").unwrap();
    let found = batch(&provider, "seat", leases, |request, [kept, done]| {
        vec![attempt(request), renewal(kept), release(done)]
    });
    assert_eq!(found, ["Unavailable", "Unknown", "Unknown"]);
    raw.execute_batch("ROLLBACK").unwrap();
    assert_eq!(names(&store), ["done", "kept"]);
}

/// Carries out an attempt for `seat`, a renewal and a release in a database with this trigger.
fn batch_with_trigger(store: &TempStore, trigger: &str) -> Vec<String> {
    let provider = store.provider();
    let leases = ["kept", "done"].map(|name| lease(&provider, name));
    store.raw().execute_batch(trigger).unwrap();
    let found = batch(&provider, "seat", leases, |request, [kept, done]| {
        vec![renewal(kept), attempt(request), release(done)]
    });
    // The failed transaction excludes no other process, although the provider is not used.
    store.raw().execute_batch("DROP TRIGGER seat").unwrap();
    let kept = batch(&provider, "seat", [], |request, []| vec![attempt(request)]);
    assert_eq!(kept, ["Granted"]);
    found
}

#[test]
fn failure_of_one_operation_is_its_own() {
    let store = TempStore::new();
    let found = batch_with_trigger(
        &store,
        "CREATE TRIGGER seat BEFORE INSERT ON lock WHEN NEW.name = 'seat'
         BEGIN SELECT RAISE(ABORT, 'the attempt fails'); END",
    );
    assert_eq!(found, ["Renewed", "Incompatible", "Done"]);
    assert_eq!(names(&store), ["kept", "seat"]);
}

#[test]
fn failure_that_ends_the_transaction_is_the_failure_of_each() {
    let store = TempStore::new();
    let found = batch_with_trigger(
        &store,
        "CREATE TRIGGER seat BEFORE INSERT ON lock WHEN NEW.name = 'seat'
         BEGIN SELECT RAISE(ROLLBACK, 'the transaction fails'); END",
    );
    assert_eq!(found, ["Unknown", "Incompatible", "Unknown"]);
    assert_eq!(names(&store), ["done", "kept", "seat"]);
}

#[test]
fn failure_of_the_commit_is_the_failure_of_each() {
    let store = TempStore::new();
    let found = batch_with_trigger(
        &store,
        "CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
         CREATE TRIGGER seat AFTER INSERT ON lock WHEN NEW.name = 'seat'
         BEGIN INSERT INTO child VALUES (1); END",
    );
    assert_eq!(found, ["Unknown", "Incompatible", "Unknown"]);
    assert_eq!(names(&store), ["done", "kept", "seat"]);
}

#[cfg(unix)]
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
