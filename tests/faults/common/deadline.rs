//! Rule 2 of the contract: an acquisition returns by its deadline, whatever the server does meanwhile. The error
//! does not say that the name is busy, and nothing is left behind.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{AcquireOptions, CancelToken, Error, ErrorKind, LockKeeper};
use lockkeeper_testkit::{Fault, Proxy, StoreKind, TestServer, until};

use super::contended::SetOnDrop;
use super::{Case, Keepers as _, WAIT_LIMIT, assert_closed, opened, start};

pub(super) fn cases() -> Vec<Case> {
    vec![
        ("deadline_while_replies_drip", |kind| {
            deadlines(kind, Interruption::Drip);
        }),
        ("deadline_while_replies_stop_midway", |kind| {
            deadlines(kind, Interruption::SilentMidReply);
        }),
        ("deadline_while_replies_are_cut_midway", |kind| {
            deadlines(kind, Interruption::CutMidReply);
        }),
        ("deadline_while_network_is_dark", |kind| {
            deadlines(kind, Interruption::Dark);
        }),
        (
            "cancelled_wait_ends_while_it_connects",
            cancelled_wait_ends_while_it_connects,
        ),
    ]
}

/// How much later than its deadline an acquisition may return.
const BOUND: Duration = Duration::from_millis(100);

/// How many threads may have to run one after the other before an acquisition returns. Two threads of the proxy
/// accept a connection and carry its bytes; then come the server, a thread of the keeper, and the caller's thread.
/// On a busy machine, each may be as late as [`Lateness`] says.
const THREADS: u32 = 5;

/// The time in which a store frees what was not released: the ttl of the leases, and what a busy server needs, which is more
/// than the one second of rule 3. A lease that a keeper still renews is there after this time.
const FREED: Duration = Duration::from_secs(30);

/// What the server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interruption {
    Drip,
    SilentMidReply,
    CutMidReply,
    Dark,
}

/// How far an acquisition is when the interruption begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Before its first request, with the shortest wait.
    ShortAttempt,
    /// Before its first request.
    Attempt,
    /// Before the first request for several names.
    Set,
    /// The keeper's former lock of the name has been dropped during the interruption.
    Release,
    /// Before its first request, and a caller cancels it then.
    CancelledAttempt,
    /// It waits in the server.
    Wait,
    /// It waits in the server, and a caller cancels it then.
    CancelledWait,
    /// After a wait in the server, its next request is under way.
    Grant,
    /// After a wait in the server, its request after the next one is under way: a confirmation of what was granted.
    Confirmation,
    /// After a wait for the last one of several names, its next request is under way.
    GrantOfSet,
}

impl Interruption {
    fn begin(self, server: &dyn TestServer, proxy: &Proxy) {
        proxy.set(match self {
            // A reply takes longer than each wait here, and each byte comes before the time-out of a reply.
            Self::Drip => Fault::DripReplies(Duration::from_millis(300)),
            Self::SilentMidReply => Fault::SilentReplyAfter(server.facts().part_of_reply),
            Self::CutMidReply => Fault::CutReplyAfter(server.facts().part_of_reply),
            Self::Dark => Fault::Dark,
        });
    }
}

impl Moment {
    const ALL: [Self; 10] = [
        Self::ShortAttempt,
        Self::Attempt,
        Self::Set,
        Self::Release,
        Self::CancelledAttempt,
        Self::Wait,
        Self::CancelledWait,
        Self::Grant,
        Self::Confirmation,
        Self::GrantOfSet,
    ];

    fn wait(self) -> Duration {
        match self {
            Self::ShortAttempt => Duration::from_millis(50),
            Self::Attempt | Self::Set | Self::Release => Duration::from_millis(500),
            Self::CancelledAttempt | Self::CancelledWait => WAIT_LIMIT,
            // It has to be queued in the server before.
            Self::Wait | Self::Grant | Self::Confirmation | Self::GrantOfSet => {
                Duration::from_secs(4)
            }
        }
    }

    fn names(self, interruption: Interruption) -> Vec<String> {
        let name = format!("a{self:?}{interruption:?}").to_lowercase();
        match self {
            Self::Set | Self::GrantOfSet => (0..4).map(|it| format!("{name}{it}")).collect(),
            _ => vec![name],
        }
    }

    /// Returns how many requests about the name pass before the one that meets the interruption, if a wait comes before.
    fn passing(self) -> Option<usize> {
        match self {
            Self::Grant | Self::GrantOfSet => Some(0),
            Self::Confirmation => Some(1),
            _ => None,
        }
    }

    fn is_queued(self) -> bool {
        self.passing().is_some() || matches!(self, Self::Wait | Self::CancelledWait)
    }

    fn is_cancelled(self) -> bool {
        matches!(self, Self::CancelledAttempt | Self::CancelledWait)
    }
}

/// Interrupts an acquisition at each moment.
fn deadlines(kind: StoreKind, interruption: Interruption) {
    let server = start(kind);
    let rival = server.open("ttl=60s");
    let lateness = Lateness::default();
    let over = AtomicBool::new(false);
    let wrong: Vec<_> = thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        scope.spawn(|| lateness.measure(&over));
        let row = |moment| {
            let row = Row {
                server: &*server,
                rival: &rival,
                lateness: &lateness,
                interruption,
                moment,
            };
            row.run()
        };
        let rows = Moment::ALL.map(|moment| scope.spawn(move || row(moment)));
        rows.into_iter()
            .flat_map(|row| row.join().unwrap())
            .collect()
    });
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    drop(rival);
    server.assert_clean();
}

/// One acquisition.
struct Row<'a> {
    server: &'a dyn TestServer,
    rival: &'a LockKeeper,
    lateness: &'a Lateness,
    interruption: Interruption,
    moment: Moment,
}

impl Row<'_> {
    /// Interrupts the acquisition, and returns what was wrong.
    fn run(&self) -> Vec<String> {
        let wrong = (0..5).find_map(|attempt| self.interrupt(attempt));
        wrong.expect("the acquisition goes on until it is interrupted, in one of five attempts")
    }

    /// Interrupts the acquisition, and returns what was wrong; `None` if its wait was over before it was queued, it was
    /// cancelled before it sent anything, or it was late in one of the first two attempts.
    fn interrupt(&self, attempt: u32) -> Option<Vec<String>> {
        let (moment, server) = (self.moment, self.server);
        let proxy = server.start_proxy();
        // A name is truly busy if the server said so within the response timeout, so that is shorter than the waits in it.
        let keys = "ttl=2s&response_timeout=1500ms&connect_timeout=1500ms";
        let keeper = server.open_via(&proxy, keys);
        let names = moment.names(self.interruption);
        let last = names.last().unwrap();
        // What a keeper does for its first request alone is done then.
        for name in &names {
            drop(keeper.try_lock_for(name.as_str(), WAIT_LIMIT).unwrap());
        }
        until("all is released", || keeper.pending_releases() == 0);
        let former = (moment == Moment::Release).then(|| keeper.lock(last.as_str()).unwrap());
        let mut blocker = moment
            .is_queued()
            .then(|| self.rival.lock(last.as_str()).unwrap());
        let cancel = CancelToken::new();
        let options = AcquireOptions::new().wait(moment.wait()).cancel(&cancel);
        let outcome = thread::scope(|scope| {
            if !moment.is_queued() {
                self.interruption.begin(server, &proxy);
                drop(former);
            }
            let requests = proxy.counts().requests;
            let acquiring = scope.spawn(|| {
                let began = Begin::now();
                let due = Instant::now() + moment.wait();
                let answer = acquire(&keeper, &names, &options);
                (due, Instant::now(), answer, self.lateness.since(&began))
            });
            if moment.is_queued() {
                until("it is queued", || {
                    server.queue_length(last) == 1 || acquiring.is_finished()
                });
                if acquiring.is_finished() {
                    return None;
                }
            }
            if let Some(passing) = moment.passing() {
                for _ in 0..passing {
                    proxy.once(server.facts().lock_request, Fault::Pass);
                }
                let held = proxy.counts().held;
                let delay = Fault::DelayRequests(Duration::from_millis(500));
                proxy.once(server.facts().lock_request, delay);
                blocker.take().unwrap().release().unwrap();
                // Some stores do not ask again.
                until("its request is under way", || {
                    proxy.counts().held > held || acquiring.is_finished()
                });
            }
            if moment.is_queued() {
                self.interruption.begin(server, &proxy);
            }
            let interrupted = Instant::now();
            let mut cancelled = None;
            if moment.is_cancelled() {
                let under_way = moment.is_queued()
                    || proxy.wait_for(WAIT_LIMIT, |counts| counts.requests > requests);
                cancelled = Some(Instant::now());
                cancel.cancel();
                // On a busy machine, its connection may have been given up before.
                if !under_way {
                    return None;
                }
            }
            let (due, returned, answer, lateness) = acquiring.join().unwrap();
            let due = cancelled.unwrap_or(due);
            Some((due, interrupted, returned, answer, lateness))
        });
        let (due, interrupted, returned, answer, lateness) = outcome?;
        let mut wrong = Vec::new();
        let what = format!("{moment:?} {:?}", self.interruption);
        let late = returned.saturating_duration_since(due);
        let allowed = BOUND + lateness;
        let is_late = late > allowed;
        if is_late {
            wrong.push(format!("{what}: {late:?} late, of {allowed:?}: {answer:?}"));
        }
        let is_true = match &answer {
            // The request that was to meet the interruption may have come before it, or the reply may be short.
            Ok(true) => moment.passing().is_some(),
            // On a busy machine, the holder may have been seen shortly before the end of the wait.
            Ok(false) => moment.is_queued() && due < interrupted + Duration::from_secs(2),
            Err(error) if moment.is_cancelled() => error.kind() == ErrorKind::Cancelled,
            // On a busy machine, the names that were granted first end before the time-out of the request.
            Err(error) if moment == Moment::GrantOfSet && error.kind() == ErrorKind::Lost => true,
            Err(error) => [ErrorKind::Unavailable, ErrorKind::Unknown].contains(&error.kind()),
        };
        if !is_true {
            wrong.push(format!("{what}: {answer:?}"));
        }
        proxy.set(Fault::Pass);
        if let Some(guard) = blocker {
            guard.release().unwrap();
        }
        for name in &names {
            let freed = self.rival.try_lock_for(name.as_str(), FREED).unwrap();
            if freed.is_none() {
                wrong.push(format!("{what}: {name} is not free after {FREED:?}"));
            }
        }
        drop(keeper);
        assert_closed(&proxy);
        // Beside others, a call may be late by what no count of this machine tells. A mistake is late each time.
        let may_be_chance = is_late && wrong.len() == 1 && attempt < 2;
        (!may_be_chance).then_some(wrong)
    }
}

/// Cancels at the end of a case, also of one that panics.
struct Cancelled<'a>(&'a CancelToken);

impl Drop for Cancelled<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// To open a connection may take longer than the limits of this test.
fn cancelled_wait_ends_while_it_connects(kind: StoreKind) {
    let server = start(kind);
    let holder = server.open("ttl=60s");
    let held = holder.lock("a").unwrap();
    let proxies = [(); 2].map(|()| server.start_proxy());
    let mut url = server.url_with(proxies[0].addr(), "connect_timeout=5m&response_timeout=5m");
    // On a new connection to one of several members, these ask for its cluster.
    if matches!(kind, StoreKind::Consul(_) | StoreKind::Etcd(_)) {
        let [one, other] = proxies.each_ref().map(|proxy| proxy.addr().to_string());
        url = url.replace(&one, &format!("{one},{other}"));
    }
    let keeper = opened(&url);
    let accepted = || -> u64 { proxies.iter().map(|it| it.counts().accepted).sum() };
    let cancel = CancelToken::new();
    let forever = AcquireOptions::new().wait_forever().cancel(&cancel);
    thread::scope(|scope| {
        let acquiring = scope.spawn(|| keeper.acquire("a", &forever));
        // A wait that goes on would hide why the case has failed.
        let _end = Cancelled(&cancel);
        // On etcd it waits once its listener is connected beside it, which connects anew, too.
        let connections = 1 + u64::from(matches!(kind, StoreKind::Etcd(_)));
        until("it waits", || {
            let open: u64 = proxies.iter().map(|it| it.counts().open).sum();
            server.queue_length("a") == 1 && open >= connections
        });
        let before = accepted();
        for proxy in &proxies {
            proxy.set(Fault::Dark);
            proxy.cut();
        }
        until("it connects", || accepted() >= before + connections);
        let began = Instant::now();
        cancel.cancel();
        let error = acquiring.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
        assert!(began.elapsed() < WAIT_LIMIT);
    });
    proxies.iter().for_each(|proxy| proxy.set(Fault::Pass));
    drop((held, holder, keeper));
    server.assert_clean();
}

/// Acquires a name, or several together, and releases them. Returns whether they were granted.
fn acquire(keeper: &LockKeeper, names: &[String], options: &AcquireOptions) -> Result<bool, Error> {
    match names {
        [name] => keeper
            .acquire(name.as_str(), options)
            .map(|guard| guard.is_some()),
        _ => keeper
            .acquire_all(names.iter().map(String::as_str), options)
            .map(|guards| guards.is_some()),
    }
}

/// How late the machine runs a thread: its timers are late, or a thread that could run waits for a processor.
#[derive(Default)]
struct Lateness(Mutex<Vec<(Instant, Duration)>>);

impl Lateness {
    fn measure(&self, over: &AtomicBool) {
        let tick = Duration::from_millis(5);
        while !over.load(Ordering::Relaxed) {
            let due = Instant::now() + tick;
            thread::sleep(tick);
            let late = due.elapsed();
            let mut measured = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            measured.push((Instant::now(), late));
        }
    }

    /// Returns by how much a call of this thread may have been late since then because of the machine.
    fn since(&self, begin: &Begin) -> Duration {
        let waited = waits_for_processor().into_iter();
        let waited = waited.map(|(thread, waited)| {
            waited.saturating_sub(begin.waited.get(&thread).copied().unwrap_or_default())
        });
        let measured = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = measured.iter().rev().take_while(|(at, _)| *at >= begin.at);
        let late = since.map(|(_, late)| *late).chain(waited);
        THREADS * late.max().unwrap_or_default()
    }
}

/// When something began.
struct Begin {
    at: Instant,
    waited: HashMap<PathBuf, Duration>,
}

impl Begin {
    fn now() -> Self {
        Self {
            at: Instant::now(),
            waited: waits_for_processor(),
        }
    }
}

/// Returns how long this thread, and each thread of a keeper or a proxy, has waited for a processor so far. The
/// result is empty where the system does not say that. A thread that has slept for long waits less than one that
/// computes: no thread's wait tells that of another.
fn waits_for_processor() -> HashMap<PathBuf, Duration> {
    let own = fs::read_link("/proc/thread-self").ok();
    let own = own.map(|own| Path::new("/proc").join(own));
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let of_name = tasks.flatten().map(|task| task.path()).filter(|task| {
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        name.starts_with("lockkeeper") || name.starts_with("proxy")
    });
    let waited = |task: PathBuf| {
        let stat = fs::read_to_string(task.join("schedstat")).ok()?;
        // The time on a processor, the time of waits for one, and how often it was given one.
        let nanos = stat.split(' ').nth(1)?.parse().ok()?;
        Some((task, Duration::from_nanos(nanos)))
    };
    of_name.chain(own).filter_map(waited).collect()
}
