//! What the cases look with.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, LockGuard, LockKeeper, LostSignal, LostWait};
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer, Reply};

/// Far longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Who has no answer so long after its deadline, hangs.
pub(crate) const HANG: Duration = Duration::from_secs(5);

pub(crate) fn start(kind: RedisKind) -> RedisServer {
    RedisServer::start(kind, &RedisOptions::new()).unwrap()
}

pub(crate) fn open(url: &str, keys: &str) -> LockKeeper {
    lockkeeper::open(&format!("{url}/?{keys}")).unwrap()
}

#[track_caller]
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happened() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Opening that fails as it should, and does not tell the password `s3cret`.
#[track_caller]
pub(crate) fn refused(url: &str, kind: ErrorKind, says: &[&str]) {
    let began = Instant::now();
    let error = lockkeeper::open(url).expect_err(url);
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    assert_eq!(error.kind(), kind, "{error:?}");
    for word in says {
        assert!(error.to_string().contains(word), "no {word:?} in {error:?}");
    }
    assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
}

/// How many stand in a name's line.
pub(crate) fn in_line(server: &RedisServer, name: &str) -> i64 {
    let line = format!("lockkeeper:{{default:{name}}}:line");
    server.command(&["LLEN", &line]).unwrap().int().unwrap()
}

/// All keys but those of epochs, which the server removes after a day.
pub(crate) fn left(server: &RedisServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).unwrap();
    let keys = keys.items().iter().filter_map(Reply::text);
    keys.filter(|key| !key.ends_with(":epoch")).collect()
}

#[track_caller]
pub(crate) fn nothing_left(server: &RedisServer) {
    until("no key is left", || left(server).is_empty());
}

/// All keepers are gone: no key and no connection of theirs is left.
#[track_caller]
pub(crate) fn settled(server: &RedisServer) {
    nothing_left(server);
    until("only the one who asks is connected", || {
        let clients = server.info("clients").unwrap();
        clients.get("connected_clients").map(String::as_str) == Some("1")
    });
}

/// Waits until no thread of a keeper or of the backend runs any more.
pub(crate) fn threads_end() {
    until("the threads of all keepers have ended", || {
        let Ok(tasks) = fs::read_dir("/proc/self/task") else {
            return true;
        };
        let mut names = tasks
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        !names.any(|name| name.starts_with("lockkeeper"))
    });
}

/// Sees every grant of one name, and that no other guard says that it is held.
#[derive(Clone)]
pub(crate) struct Witness(Arc<Mutex<Seen>>);

struct Seen {
    /// Whether guards may not overlap: a server that has forgotten grants a name again before its
    /// holder knows; the token tells them apart then.
    strict: bool,
    tokens: BTreeSet<u64>,
    /// The latest, which may still be held.
    grants: VecDeque<(u64, LostSignal)>,
}

impl Witness {
    pub(crate) fn new(strict: bool) -> Self {
        Self(Arc::new(Mutex::new(Seen {
            strict,
            tokens: BTreeSet::new(),
            grants: VecDeque::new(),
        })))
    }

    #[track_caller]
    pub(crate) fn enter(&self, guard: &LockGuard) {
        let mut seen = self.0.lock().unwrap();
        let token = guard.token().get();
        assert!(seen.tokens.insert(token), "two grants, one token: {token}");
        for (known, signal) in &seen.grants {
            let overlap = guard.is_held() && signal.wait(Duration::ZERO) == LostWait::TimedOut;
            assert!(!(seen.strict && overlap), "{known} and {token} both hold");
            // A later grant was seen first: this one must be over.
            assert!(
                !seen.strict || token > *known || !guard.is_held(),
                "{token} is held after {known}"
            );
        }
        seen.grants.push_back((token, guard.lost()));
        if seen.grants.len() > 64 {
            seen.grants.pop_front();
        }
    }

    pub(crate) fn grants(&self) -> usize {
        self.0.lock().unwrap().tokens.len()
    }
}

/// Somebody with a keeper of its own who waits for `a`.
pub(crate) struct Waiting {
    answer: Receiver<Result<u64, ErrorKind>>,
    until: Instant,
}

impl Waiting {
    pub(crate) fn start(url: &str, keys: &str, wait: Duration, witness: &Witness) -> Self {
        let (tell, answer) = channel();
        let keeper = open(url, keys);
        let witness = witness.clone();
        let until = Instant::now() + wait;
        thread::spawn(move || {
            let granted = match keeper.try_lock_for("a", wait) {
                Ok(Some(guard)) => {
                    witness.enter(&guard);
                    Ok(guard.token().get())
                }
                Ok(None) => Err(ErrorKind::TimedOut),
                Err(error) => Err(error.kind()),
            };
            let _ = tell.send(granted);
        });
        Self { answer, until }
    }

    /// The token, or why there is none.
    #[track_caller]
    pub(crate) fn answer(self) -> Result<u64, ErrorKind> {
        let left = self.until.saturating_duration_since(Instant::now()) + HANG;
        let answer = self.answer.recv_timeout(left);
        answer.expect("an answer by its deadline, and no panic")
    }
}
