//! What this program does when it was started as the other process of a case: it obeys lines on
//! its standard input, and ends with it.

use std::io::{BufRead, Write};
use std::process::{Command, ExitCode};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    Error, FencingToken, LeasePolicy, LockGuard, LockKeeper, LockName, LockProvider, Observer, Wait,
};

use crate::fixture::Fixture;
use crate::rig::NAMESPACE;
use crate::run::Suite;

const SUITE: &str = "CONFORMANCE_SUITE";
const ADDRESS: &str = "CONFORMANCE_ADDRESS";
const TTL_MS: &str = "CONFORMANCE_TTL_MS";
const RENEWED: &str = "CONFORMANCE_RENEWED";
/// The wait of every acquisition here: longer than anybody's patience over there.
const WAIT: Duration = Duration::from_secs(600);

/// What another process is to be.
pub(crate) struct Remoted {
    pub(crate) suite: String,
    /// `None`: it makes a fresh store of its own.
    pub(crate) address: Option<String>,
    pub(crate) lease: LeasePolicy,
}

impl Remoted {
    pub(crate) fn tell(&self, command: &mut Command) {
        command.env(SUITE, &self.suite);
        command.env(TTL_MS, self.lease.ttl().as_millis().to_string());
        command.env(RENEWED, self.lease.is_renewed().to_string());
        if let Some(address) = &self.address {
            command.env(ADDRESS, address);
        }
    }

    fn of_environment() -> Option<Self> {
        let get = |name| std::env::var(name).ok();
        let ttl = Duration::from_millis(get(TTL_MS)?.parse().ok()?);
        Some(Self {
            suite: get(SUITE)?,
            address: get(ADDRESS),
            lease: if get(RENEWED)? == "true" {
                LeasePolicy::Renewed { ttl }
            } else {
                LeasePolicy::Fixed { ttl }
            },
        })
    }
}

/// A child's child is not what the child is.
pub(crate) fn clear(command: &mut Command) {
    for name in [SUITE, ADDRESS, TTL_MS, RENEWED] {
        command.env_remove(name);
    }
}

/// Says a line to the process that started this one.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody listens any more: then standard input ends too, and this process with it.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Tells when a wait begins.
struct Tells;

impl Observer for Tells {
    fn contended(&self, _: &LockName) {
        say("contended");
    }
}

/// Obeys until standard input ends, if the environment says that this is such a process.
pub(crate) fn main(suites: &[Suite]) -> Option<ExitCode> {
    let what = Remoted::of_environment()?;
    let suite = suites.iter().find(|suite| suite.name == what.suite)?;
    let (tell, commands) = channel::<String>();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
        // Whatever hangs in a lock here must not outlive the case.
        std::process::exit(0);
    });
    let mut place = Place::open(suite, &what);
    say("ready");
    for command in commands.into_iter().take_while(|command| command != "end") {
        place.obey(&command);
    }
    Some(ExitCode::SUCCESS)
}

/// This process's keeper, and what it holds.
struct Place {
    fixture: Option<Box<dyn Fixture>>,
    provider: Arc<dyn LockProvider>,
    lease: LeasePolicy,
    keeper: LockKeeper,
    guard: Option<LockGuard>,
}

impl Place {
    fn open(suite: &Suite, what: &Remoted) -> Self {
        let (fixture, provider) = match (&what.address, &suite.open) {
            (Some(address), Some(open)) => (None, open(address, NAMESPACE)),
            _ => {
                let fixture = (suite.make)();
                let provider = fixture.open(NAMESPACE);
                (Some(fixture), provider)
            }
        };
        let provider = provider.expect("the store can be opened from another process");
        let keeper = keeper(&provider, what.lease, Some(Arc::new(Tells)));
        Self {
            fixture,
            provider,
            lease: what.lease,
            keeper,
            guard: None,
        }
    }

    fn obey(&mut self, command: &str) {
        let mut words = command.splitn(4, ' ');
        let mut word = || words.next().unwrap_or_default();
        match word() {
            "lock" => match self.keeper.lock(word()) {
                Ok(guard) => {
                    say(&format!("held {}", guard.token()));
                    self.guard = Some(guard);
                }
                Err(error) => say(&format!("{error:?}")),
            },
            "is_held" => {
                let held = self.guard.as_ref().is_some_and(LockGuard::is_held);
                say(&held.to_string());
            }
            "release" => match self.guard.take().map(LockGuard::release) {
                Some(Ok(released)) => say(&format!("{released:?}")),
                other => say(&format!("{other:?}")),
            },
            "load" => self.load(word(), number(word())),
            "gather" => {
                let (name, threads) = (word(), number(word()));
                say(&self.gather(name, threads, word()));
            }
            "spend" => {
                let report = self.spend(number(word()));
                say(&report);
            }
            _ => say("what?"),
        }
    }

    /// Threads that lock and release without a pause until this process ends.
    fn load(&self, name: &str, threads: usize) {
        let under_way = Arc::new(Barrier::new(threads + 1));
        for _ in 0..threads {
            let keeper = keeper(&self.provider, self.lease, None);
            let (name, under_way) = (name.to_owned(), Arc::clone(&under_way));
            thread::spawn(move || {
                under_way.wait();
                loop {
                    let _ = keeper.lock(name.as_str());
                }
            });
        }
        under_way.wait();
        say("loading");
    }

    /// Threads that each add one to the number in a file, guarded by nothing but the lock. Beside
    /// it stands the token of who wrote it, which must be smaller than the next one's.
    fn gather(&self, name: &str, threads: usize, path: &str) -> String {
        let keeper = keeper(&self.provider, self.lease, None);
        let wrong = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    if let Err(text) = add_one(&keeper, name, path) {
                        wrong
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(text);
                    }
                });
            }
        });
        let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
        format!("gathered {}", wrong.join("; "))
    }

    /// Locks and releases many times, and says what of this process that has cost.
    fn spend(&mut self, times: usize) -> String {
        let take = |keeper: &LockKeeper, name: &str| keeper.lock(name).map(drop);
        let trial = |keeper: &LockKeeper, times: usize| -> Result<(), Error> {
            let other = self::keeper(&self.provider, self.lease, None);
            for round in 0..times / 2 {
                // Half of them one name, the other half a new name each.
                take(keeper, "spend")?;
                take(
                    if round % 2 == 0 { keeper } else { &other },
                    &format!("spend {round}"),
                )?;
            }
            Ok(())
        };
        let keeper = keeper(&self.provider, self.lease, None);
        let before_locks = Cost::now();
        let result = trial(&keeper, 100).and_then(|()| {
            let before = Cost::now();
            trial(&keeper, times)?;
            Ok((before, Cost::now()))
        });
        drop(keeper);
        let (before, after) = match result {
            Ok(costs) => costs,
            Err(error) => return format!("{error:?}"),
        };
        let mut end = Cost::now();
        // Threads end on their own time.
        for _ in 0..2_000 {
            if end.threads <= before_locks.threads {
                break;
            }
            thread::park_timeout(Duration::from_millis(5));
            end = Cost::now();
        }
        let leftovers = self
            .fixture
            .as_ref()
            .and_then(|fixture| fixture.leftovers());
        format!(
            "spent threads {} {} {} {} files {} {} rows {}",
            before_locks.threads,
            before.threads,
            after.threads,
            end.threads,
            before.files,
            after.files,
            leftovers.unwrap_or_default().len()
        )
    }
}

/// What this process has of what the system counts; nothing where there is no /proc.
struct Cost {
    threads: usize,
    files: usize,
}

impl Cost {
    fn now() -> Self {
        let count = |path| std::fs::read_dir(path).map_or(0, Iterator::count);
        Self {
            threads: count("/proc/self/task"),
            files: count("/proc/self/fd"),
        }
    }
}

fn number(text: &str) -> usize {
    text.parse().expect("the suite says a number here")
}

fn keeper(
    provider: &Arc<dyn LockProvider>,
    lease: LeasePolicy,
    observer: Option<Arc<dyn Observer>>,
) -> LockKeeper {
    let mut builder = LockKeeper::builder(Arc::clone(provider))
        .lease(lease)
        .wait(Wait::AtMost(WAIT));
    if let Some(observer) = observer {
        builder = builder.observer(observer);
    }
    builder.build().expect("usual settings")
}

fn add_one(keeper: &LockKeeper, name: &str, path: &str) -> Result<(), String> {
    let guard = keeper.lock(name).map_err(|error| format!("{error:?}"))?;
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let (count, last) = parse(&text).ok_or_else(|| format!("half-written: {text:?}"))?;
    let token: FencingToken = guard.token();
    if token.get() <= last {
        return Err(format!("the token {token} comes after {last}"));
    }
    // Room for another process to read the same number, if it can.
    thread::yield_now();
    std::fs::write(path, format!("{} {token}", count + 1)).map_err(|error| error.to_string())
}

/// The number in the file of [`Place::gather`], and the last token.
pub(crate) fn parse(text: &str) -> Option<(usize, u64)> {
    let (count, token) = text.split_once(' ')?;
    Some((count.parse().ok()?, token.parse().ok()?))
}
