//! Names, epochs, leases and late commits.

use std::fmt;
use std::slice;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use lockkeeper_core::{
    AcquireRequest, Backend, Capabilities, Grant, Mode, Operation, StoreInfo, epoch_at,
};

use super::*;
use crate::batched::{attempt, run};

#[test]
fn epochs_grow_over_clock_steps_and_new_files() {
    let store = TempStore::new();
    let keeper = store.keeper();
    let epoch = |guard: &LockGuard| guard.token().get() >> 7;
    let first = keeper.lock("a").unwrap();
    // As if the clock had been an hour ahead when the last grant was made.
    let ahead = epoch(&first) + 3_600_000_000;
    let raw = store.raw();
    raw.execute(
        "UPDATE lock SET epoch = ?1 WHERE name = ''",
        [ahead.cast_signed()],
    )
    .unwrap();
    let second = keeper.lock("b").unwrap();
    assert_eq!(epoch(&second), ahead + 1);
    assert_eq!(first.release().unwrap(), Released::Done);
    assert_eq!(epoch(&keeper.lock("a").unwrap()), ahead + 2);

    let gone = TempStore::new();
    let before = gone.keeper().lock("a").unwrap().token();
    for file in gone.files() {
        fs::remove_file(gone.folder.path().join(file)).unwrap();
    }
    assert!(gone.keeper().lock("a").unwrap().token() > before);
}

/// Until version 0.1 epochs were microseconds since 1970.
#[test]
fn epochs_of_a_file_keep_growing_over_the_change_of_unit() {
    let store = TempStore::new();
    let keeper = store.keeper();
    let raw = store.raw();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let micros = i64::try_from(since.as_micros()).unwrap();
    // As if a program of the old version had made the last grants, with a clock that is ahead by years.
    let held = keeper.lock("a").unwrap();
    let ahead = micros + 10 * 365 * 86_400 * 1_000_000;
    let older = format!("UPDATE lock SET epoch = {ahead}");
    raw.execute_batch(&older).unwrap();
    let token = keeper.lock("b").unwrap().token();
    assert!(token.get() >> 7 > ahead.cast_unsigned());
    assert!(token.get() >> 7 >= epoch_at(UNIX_EPOCH + since));
    // The next grant of the old program.
    let next = format!("SELECT max({micros}, epoch + 1) FROM lock WHERE name = ''");
    let next: i64 = raw.query_row(&next, (), |row| row.get(0)).unwrap();
    assert_eq!(next.cast_unsigned(), (token.get() >> 7) + 1);
    drop(held);
}

type Lease = <SqliteProvider as Backend>::Lease;
type Reply = Result<Option<Grant<Lease>>, Error>;
type OnReply = dyn Fn(&AcquireRequest<'_>, Reply) -> Reply + Send + Sync;

/// Passes each reply to an attempt through a function of the test.
struct Intercepted {
    provider: SqliteProvider,
    in_batch: bool,
    reply: Box<OnReply>,
}

impl fmt::Debug for Intercepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.provider.fmt(f)
    }
}

impl StoreInfo for Intercepted {
    fn backend(&self) -> &'static str {
        self.provider.backend()
    }

    fn location(&self) -> String {
        self.provider.location()
    }

    fn capabilities(&self) -> Capabilities {
        self.provider.capabilities()
    }
}

impl Backend for Intercepted {
    type Lease = Lease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Reply {
        let reply = match self.in_batch {
            true => Ok(run(&self.provider, vec![attempt(request)]).1.pop()),
            false => Backend::acquire(&self.provider, request),
        };
        (self.reply)(request, reply)
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        Backend::abandon(&self.provider, request);
    }

    fn batch(&self, batch: &mut [Operation<'_, Self::Lease>]) {
        for operation in batch {
            match operation {
                Operation::Acquire(it) => it.answer = Some(Backend::acquire(self, it.request)),
                other => Backend::batch(&self.provider, slice::from_mut(other)),
            }
        }
    }
}

#[test]
fn grant_with_a_lost_reply_is_recovered_or_abandoned() {
    let modes = [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 2 }];
    for (mode, in_batch) in modes
        .into_iter()
        .flat_map(|mode| [(mode, false), (mode, true)])
    {
        let store = TempStore::new();
        let raw = store.raw();
        let token = Arc::new(Mutex::new(None::<CancelToken>));
        let cancelled = Arc::clone(&token);
        // The reply to the first attempt of each request is lost, and cancels the request.
        let lose = move |request: &AcquireRequest<'_>, reply| {
            if request.is_retry() {
                return reply;
            }
            if let Some(cancel) = cancelled.lock().unwrap().take() {
                cancel.cancel();
            }
            Err(Error::new(ErrorKind::Unknown, "the reply is lost"))
        };
        let keeper = LockKeeper::builder(Arc::new(Intercepted {
            provider: store.provider(),
            in_batch,
            reply: Box::new(lose),
        }));
        let keeper = keeper.build().unwrap();
        let options = AcquireOptions::new().mode(mode);
        let beside = match mode {
            Mode::Exclusive => None,
            _ => store.keeper().acquire("seat", &options).unwrap(),
        };
        let others = locks(&raw);
        let recovered = keeper.acquire("seat", &options).unwrap().unwrap();
        assert_eq!(locks(&raw), others + 1, "{mode:?}");
        assert_eq!(recovered.release().unwrap(), Released::Done);

        let cancel = CancelToken::new();
        let cancelled = options.cancel(&cancel);
        *token.lock().unwrap() = Some(cancel);
        let error = keeper.acquire("seat", &cancelled).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        until("the grant is abandoned", || locks(&raw) == others);
        if let Some(beside) = beside {
            beside.renew().unwrap();
        }
    }
}

/// An open transaction sees the locks as they were when it first read: no SQL in it can prove a hold.
#[test]
fn late_commit_is_refused_by_a_renewal_and_not_by_sql() {
    let store = TempStore::new();
    let keeper = store.keeper();
    assert!(!keeper.capabilities().has(Capability::CommitProof));
    let late = keeper.lock("seat").unwrap();
    let error = late.commit_proof().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("call `renew`"), "{error}");

    let mut app = store.raw();
    let transaction = app.transaction().unwrap();
    let row = format!(
        "SELECT count(*) FROM lock WHERE name = 'seat' AND epoch = {}",
        late.token().get() >> 7
    );
    let is_visible = || transaction.query_row(&row, (), |row| row.get::<_, bool>(0));
    assert_eq!(is_visible(), Ok(true));
    store
        .raw()
        .execute("DELETE FROM lock WHERE name = 'seat'", ())
        .unwrap();
    let next = store.keeper().try_lock("seat").unwrap().unwrap();
    assert_eq!(
        is_visible(),
        Ok(true),
        "the snapshot is older than the next grant"
    );
    assert_eq!(late.renew().unwrap_err().kind(), ErrorKind::Lost);
    next.renew().unwrap();
}

/// A clock that renews a lock whenever it is read.
#[derive(Debug)]
struct RenewingClock(LockGuard);

impl Clock for RenewingClock {
    fn now(&self) -> HostInstant {
        let now = SystemClock.now();
        self.0.renew().unwrap();
        now
    }
}

#[test]
fn renewal_while_holders_are_listed_hides_no_holder() {
    let store = TempStore::new();
    let clock = RenewingClock(store.keeper().lock("seat").unwrap());
    let reader = store.provider_with_clock(Arc::new(clock));
    let held = reader.admin().unwrap().held(None, HostInstant::NEVER);
    assert_eq!(held.unwrap().len(), 1);
}

#[test]
fn last_resumption_has_the_lock_also_if_its_answer_comes_first() {
    let store = TempStore::new();
    let ticket = store.keeper().lock("seat").unwrap().detach().unwrap();
    let ((resumed, is_resumed), (go, go_on)) = (mpsc::channel(), mpsc::channel());
    let first = Mutex::new(Some((resumed, go_on)));
    let keeper = LockKeeper::builder(Arc::new(Intercepted {
        provider: store.provider(),
        in_batch: true,
        reply: Box::new(move |_, reply| {
            // The answer to the first resumption is held back.
            let first = first.lock().unwrap().take();
            if let Some((resumed, go_on)) = first {
                resumed.send(()).unwrap();
                go_on.recv().unwrap();
            }
            reply
        }),
    }));
    let keeper = keeper.build().unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| keeper.resume(&ticket).unwrap());
        is_resumed.recv().unwrap();
        let last = keeper.resume(&ticket).unwrap();
        go.send(()).unwrap();
        let first = first.join().unwrap();
        assert!(first.token() < last.token());
        assert!(!first.is_held() && last.is_held());
        drop(first);
        assert_eq!(last.release().unwrap(), Released::Done);
    });
}
