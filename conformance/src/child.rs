//! What this program does when a case has started it as another process. It runs the commands on
//! its standard input, and ends when standard input ends.

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{
    AcquireOptions, Error, ErrorKind, LeasePolicy, LockGuard, LockKeeper, LockProvider, Mode,
    ObservedLock, Observer, Wait,
};

use crate::fixture::Fixture;
use crate::history;
use crate::mode_text;
use crate::rig::NAMESPACE;
use crate::run::Suite;

const SUITE: &str = "CONFORMANCE_SUITE";
const ADDRESS: &str = "CONFORMANCE_ADDRESS";
const TTL_MS: &str = "CONFORMANCE_TTL_MS";
const RENEWED: &str = "CONFORMANCE_RENEWED";
const FORKS: &str = "CONFORMANCE_FORKS";
/// The wait of every acquisition in a child process: longer than any case takes.
const WAIT: Duration = Duration::from_secs(600);

/// The role of a child process, passed to it in environment variables.
pub(crate) struct ChildSpec {
    pub(crate) suite: String,
    /// The store to open. With `None`, the child process creates a store of its own.
    pub(crate) address: Option<String>,
    pub(crate) lease: LeasePolicy,
    /// Whether the child process forks siblings instead of running commands.
    pub(crate) forks: bool,
}

impl ChildSpec {
    pub(crate) fn set_environment(&self, command: &mut Command) {
        command.env(SUITE, &self.suite);
        command.env(TTL_MS, self.lease.ttl().as_millis().to_string());
        command.env(RENEWED, self.lease.is_renewed().to_string());
        command.env(FORKS, self.forks.to_string());
        if let Some(address) = &self.address {
            command.env(ADDRESS, address);
        }
    }

    fn from_environment() -> Option<Self> {
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
            forks: get(FORKS)? == "true",
        })
    }
}

/// Removes the role from the environment of `command`, so that no grandchild inherits it.
pub(crate) fn clear_environment(command: &mut Command) {
    for name in [SUITE, ADDRESS, TTL_MS, RENEWED, FORKS] {
        command.env_remove(name);
    }
}

/// Writes a line to the suite's process.
fn reply(line: &str) {
    let mut out = std::io::stdout().lock();
    // An error means that the suite's process is gone: then standard input ends as well, and with
    // it this process.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Reports the beginning of every wait.
struct ContentionReporter;

impl Observer for ContentionReporter {
    fn contended(&self, _: &ObservedLock<'_>) {
        reply("contended");
    }
}

/// Plays the role that the environment names, until standard input ends. Returns `None` at once if
/// the environment names no role.
pub(crate) fn main(suites: &[Suite]) -> Option<ExitCode> {
    let spec = ChildSpec::from_environment()?;
    let suite = suites.iter().find(|suite| suite.name == spec.suite)?;
    #[cfg(target_os = "linux")]
    if spec.forks {
        return Some(fork::run(suite, &spec));
    }
    // The signal of `ChildProcess::interrupt`.
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::default())
        .expect("the signal can be handled");
    let (sender, commands) = channel::<String>();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        // A command that blocks must not keep this process alive after its case.
        std::process::exit(0);
    });
    let mut peer = Peer::open(suite, &spec);
    reply("ready");
    for command in commands.into_iter().take_while(|command| command != "end") {
        peer.execute(&command);
    }
    Some(ExitCode::SUCCESS)
}

/// The keeper of this process, and the guard that it holds.
struct Peer {
    fixture: Option<Box<dyn Fixture>>,
    provider: Arc<dyn LockProvider>,
    lease: LeasePolicy,
    keeper: LockKeeper,
    guard: Option<LockGuard>,
}

impl Peer {
    fn open(suite: &Suite, spec: &ChildSpec) -> Self {
        let (fixture, provider) = match (&spec.address, &suite.open) {
            (Some(address), Some(open)) => (None, open(address, NAMESPACE)),
            _ => {
                let fixture = (suite.make)();
                let provider = fixture.open(NAMESPACE);
                (Some(fixture), provider)
            }
        };
        let provider = provider.expect("the store can be opened from another process");
        let keeper = keeper(&provider, spec.lease, Some(Arc::new(ContentionReporter)));
        Self {
            fixture,
            provider,
            lease: spec.lease,
            keeper,
            guard: None,
        }
    }

    fn execute(&mut self, command: &str) {
        let mut words = command.splitn(3, ' ');
        let mut word = || words.next().unwrap_or_default();
        match word() {
            "acquire" => {
                let options = AcquireOptions::new().mode(mode(word()));
                match self.keeper.acquire(word(), &options) {
                    Ok(Some(guard)) => {
                        reply(&format!("held {}", guard.token()));
                        self.guard = Some(guard);
                    }
                    other => reply(&format!("{other:?}")),
                }
            }
            "is_held" => {
                let held = self.guard.as_ref().is_some_and(LockGuard::is_held);
                reply(&held.to_string());
            }
            "release" => match self.guard.take().map(LockGuard::release) {
                Some(Ok(released)) => reply(&format!("{released:?}")),
                other => reply(&format!("{other:?}")),
            },
            "detach" => match self.guard.take().map(LockGuard::detach) {
                Some(Ok(ticket)) => reply(&format!("ticket {ticket}")),
                other => reply(&format!("{other:?}")),
            },
            "resume" => {
                let resumed = word()
                    .parse()
                    .and_then(|ticket| self.keeper.resume(&ticket));
                match resumed {
                    Ok(guard) => {
                        reply(&format!("held {}", guard.token()));
                        self.guard = Some(guard);
                    }
                    Err(error) => reply(&format!("{error:?}")),
                }
            }
            "load" => self.load(word(), number(word())),
            "hold" => reply(&self.hold(word(), word())),
            "measure" => {
                let report = self.measure(number(word()));
                reply(&report);
            }
            other => reply(&format!("unknown command {other:?}")),
        }
    }

    /// Starts threads that acquire and release without a pause until this process ends.
    fn load(&self, name: &str, threads: usize) {
        let started = Arc::new(Barrier::new(threads + 1));
        for _ in 0..threads {
            let keeper = keeper(&self.provider, self.lease, None);
            let (name, started) = (name.to_owned(), Arc::clone(&started));
            thread::spawn(move || {
                started.wait();
                loop {
                    let _ = keeper.lock(name.as_str());
                }
            });
        }
        started.wait();
        reply("loading");
    }

    /// Holds a name by the threads of one keeper; see [`history`]. `rest` is the number of threads, that of
    /// their rounds, the path of the history, and the modes.
    fn hold(&self, name: &str, rest: &str) -> String {
        let words: Vec<_> = rest.split(' ').collect();
        let [threads, rounds, path, modes @ ..] = &words[..] else {
            return "incomplete".to_owned();
        };
        let keeper = keeper(&self.provider, self.lease, None);
        let modes: Vec<_> = modes.iter().map(|text| mode(text)).collect();
        let count = (number(threads), number(rounds));
        match history::hold_by_threads(&[keeper], name, &modes, count, Path::new(path)) {
            Ok(()) => "ended".to_owned(),
            Err(text) => text,
        }
    }

    /// Acquires and renews names of all parts of the store at the same time, on threads of the keeper.
    fn use_all_parts(&self, keeper: &LockKeeper) -> Result<(), Error> {
        let ttl = Duration::from_secs(3).max(self.provider.capabilities().min_ttl());
        let options = AcquireOptions::new().lease(LeasePolicy::Renewed { ttl });
        thread::scope(|scope| {
            let lock = |thread| {
                let options = &options;
                move || -> Result<(), Error> {
                    let mut guards = Vec::new();
                    for number in 0..8 {
                        let name = format!("part {thread} {number}");
                        guards.extend(keeper.acquire(name, options)?);
                    }
                    let end = |guard: &LockGuard| Instant::now() + guard.remaining();
                    let guards = guards.iter().map(|guard| (guard, end(guard)));
                    for (guard, before) in guards.collect::<Vec<_>>() {
                        while guard.is_held() && end(guard) < before + ttl / 10 {
                            thread::park_timeout(Duration::from_millis(5));
                        }
                    }
                    Ok(())
                }
            };
            let threads: Vec<_> = (0..8).map(|thread| scope.spawn(lock(thread))).collect();
            let results = threads
                .into_iter()
                .map(|it| it.join().expect("it does not panic"));
            results.collect()
        })
    }

    /// Acquires and releases `times` times, and reports the threads and files that remain, and the rows of a store that this
    /// process has made.
    fn measure(&mut self, times: usize) -> String {
        let acquire = |keeper: &LockKeeper, name: &str| keeper.lock(name).map(drop);
        let rounds = |keeper: &LockKeeper, times: usize| -> Result<(), Error> {
            let other = self::keeper(&self.provider, self.lease, None);
            for round in 0..times / 2 {
                // A slow store is no failure.
                if round % 50 == 0 {
                    reply("measuring");
                }
                // Half of the acquisitions use one name, the others a new name each.
                acquire(keeper, "same")?;
                acquire(
                    if round % 2 == 0 { keeper } else { &other },
                    &format!("name {round}"),
                )?;
            }
            Ok(())
        };
        // A thread that the provider starts with its first grant is not one of the keeper's. A store of several servers
        // has such a grant on each. A dropped guard would make this keeper start a thread a moment later.
        for number in 0..30 {
            let guard = self.keeper.lock(format!("first {number}"));
            if let Err(error) = guard.and_then(LockGuard::release) {
                return format!("{error:?}");
            }
        }
        // Nor is the thread that reads the reply to the release of its last guard.
        while self.keeper.pending_releases() > 0 {
            thread::park_timeout(Duration::from_millis(5));
        }
        let keeper = keeper(&self.provider, self.lease, None);
        let idle = ProcessUsage::now();
        let result = rounds(&keeper, 100).and_then(|()| {
            let before = ProcessUsage::now();
            rounds(&keeper, times)?;
            self.use_all_parts(&keeper)?;
            Ok((before, ProcessUsage::settled()))
        });
        drop(keeper);
        let (before, after) = match result {
            Ok(usages) => usages,
            Err(error) => return format!("{error:?}"),
        };
        let fixture = self.fixture.as_ref();
        let leftovers = || fixture.and_then(|fixture| fixture.leftovers());
        let (mut end, mut left) = (ProcessUsage::now(), leftovers());
        // The threads of a dropped keeper end a little later, and so do the releases of its last guards.
        for _ in 0..2_000 {
            if end.threads <= idle.threads && left.as_ref().is_none_or(Vec::is_empty) {
                break;
            }
            thread::park_timeout(Duration::from_millis(5));
            (end, left) = (ProcessUsage::now(), leftovers());
        }
        format!(
            "measured threads {} {} {} files {} {} rows {}",
            idle.threads,
            after.threads,
            end.threads,
            before.files,
            after.files,
            left.unwrap_or_default().len()
        )
    }
}

/// The threads and open files of this process; zero on a system without /proc.
struct ProcessUsage {
    threads: usize,
    files: usize,
}

impl ProcessUsage {
    /// Returns the least of several looks: a thread that some stores start for a request ends soon after it.
    fn settled() -> Self {
        let looks = (0..20).map(|_| {
            thread::park_timeout(Duration::from_millis(5));
            Self::now()
        });
        let least = looks.reduce(|one, other| Self {
            threads: one.threads.min(other.threads),
            files: one.files.min(other.files),
        });
        least.unwrap_or_else(Self::now)
    }

    fn now() -> Self {
        let count = |path| std::fs::read_dir(path).map_or(0, Iterator::count);
        Self {
            threads: count("/proc/self/task"),
            files: count("/proc/self/fd"),
        }
    }
}

/// The role of a process that forks; see `rule_01_exclusion::forked_siblings`.
#[cfg(target_os = "linux")]
mod fork {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use nix::sys::wait::wait;
    use nix::unistd::{ForkResult, fork};

    use super::*;
    use crate::rig::SIBLING_ROUNDS;

    /// How often a store that is not available is asked again.
    const ATTEMPTS: u32 = 50;

    /// Acquires a name, drops everything, and forks two siblings that compete for names.
    pub(super) fn run(suite: &Suite, spec: &ChildSpec) -> ExitCode {
        // What a process keeps in memory about its identity exists after its first acquisition.
        let first = open(suite, spec).lock("before the fork");
        drop(first.expect("the name is free"));
        reply("ready");
        let (first, second) = UnixStream::pair().expect("this process can open sockets");
        let mut sockets = vec![first, second];
        for index in 0..2 {
            if let ForkResult::Child = fork_single_threaded() {
                let socket = sockets.swap_remove(index);
                drop(sockets);
                compete(&open(suite, spec), socket);
                return ExitCode::SUCCESS;
            }
        }
        drop(sockets);
        while wait().is_ok() {}
        ExitCode::SUCCESS
    }

    /// Makes one attempt at a new name in every round, at the same time as the other sibling, and
    /// reports the rounds that were granted. Holds these names until standard input ends.
    fn compete(keeper: &LockKeeper, mut socket: UnixStream) {
        let mut granted = Vec::new();
        for round in 0..SIBLING_ROUNDS {
            let together = socket
                .write_all(&[0])
                .and_then(|()| socket.read_exact(&mut [0]));
            together.expect("the other sibling lives");
            let name = format!("name {round}");
            // A file that the other sibling writes to at the moment is not available, on a busy machine for longer than one
            // attempt waits.
            let mut attempts = 1..=ATTEMPTS;
            let answer = loop {
                let answer = keeper.try_lock(&*name);
                let unavailable =
                    matches!(&answer, Err(error) if error.kind() == ErrorKind::Unavailable);
                if !unavailable || attempts.next().is_none() {
                    break answer;
                }
            };
            match answer {
                Ok(guard) => granted.extend(guard.map(|guard| (round.to_string(), guard))),
                Err(error) => return reply(&format!("{error:?}")),
            }
        }
        let rounds: Vec<_> = granted.iter().map(|(round, _)| round.as_str()).collect();
        reply(&format!("granted {}", rounds.join(" ")));
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    }

    fn open(suite: &Suite, spec: &ChildSpec) -> LockKeeper {
        let peer = Peer::open(suite, spec);
        keeper(&peer.provider, peer.lease, None)
    }

    /// Forks as soon as this process has one thread. A fork copies the locked mutexes of other
    /// threads, but not the threads that would unlock them.
    fn fork_single_threaded() -> ForkResult {
        while ProcessUsage::now().threads > 1 {
            // The threads of a dropped keeper are about to end.
            thread::yield_now();
        }
        #[allow(
            unsafe_code,
            reason = "the loop above has seen that this process has one thread"
        )]
        let forked = unsafe { fork() };
        forked.expect("this process can fork")
    }
}

fn mode(text: &str) -> Mode {
    mode_text::parse(text).expect("the suite sends a mode here")
}

fn number(text: &str) -> usize {
    text.parse().expect("the suite sends a number here")
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
    builder.build().expect("the settings are valid")
}
