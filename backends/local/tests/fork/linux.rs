//! The tests, and the roles of the programs that they start.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use lockkeeper_core::{ErrorKind, LockKeeper, Wait};
use lockkeeper_local::SqliteProvider;
use nix::unistd::{ForkResult, fork};

const ROLE: &str = "TESTKIT_FORK_ROLE";
const FILE: &str = "TESTKIT_FORK_FILE";

/// A test, with the role of its program under the same name.
type Case = (&'static str, fn(), fn(&str));

const CASES: &[Case] = &[
    (
        "forked_child_is_a_separate_holder",
        forked_child_is_a_separate_holder,
        lock_drop_fork_and_lock,
    ),
    (
        "inherited_provider_is_refused_after_a_fork",
        inherited_provider_is_refused_after_a_fork,
        open_fork_and_open,
    ),
];

pub(crate) fn main() -> ExitCode {
    if let (Ok(role), Ok(file)) = (std::env::var(ROLE), std::env::var(FILE)) {
        let (_, _, run) = CASES.iter().find(|(name, ..)| *name == role).unwrap();
        run(&file);
        return ExitCode::SUCCESS;
    }
    let trials = CASES.iter().map(|(name, test, _)| {
        Trial::test(*name, || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn provider(file: &str) -> Result<SqliteProvider, lockkeeper_core::Error> {
    SqliteProvider::open(file, "default")
}

fn keeper(provider: SqliteProvider) -> LockKeeper {
    LockKeeper::builder(Arc::new(provider))
        .wait(Wait::Forever)
        .build()
        .unwrap()
}

/// Forks this program as soon as it has one thread. A fork copies the locked mutexes of other threads,
/// but not the threads that would unlock them.
fn fork_alone() -> ForkResult {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    while threads() > 1 {
        // The threads of a dropped keeper are about to end.
        std::thread::yield_now();
    }
    #[allow(unsafe_code, reason = "this process has one thread")]
    let forked = unsafe { fork() };
    forked.unwrap()
}

/// Returns the path of a waiter's socket beside the file, if there is one.
fn socket(file: &str) -> Option<PathBuf> {
    let beside = std::fs::read_dir(Path::new(file).parent().unwrap()).unwrap();
    let mut beside = beside.map(|entry| entry.unwrap().path());
    let is_waiters = |it: &PathBuf| {
        let path = it.to_string_lossy();
        path.contains("-wake-") && !path.contains("-holder-")
    };
    beside.find(is_waiters)
}

fn report(what: &str) {
    println!("{what}");
    std::io::stdout().flush().unwrap();
}

/// Waits until the test closes standard input or ends.
fn wait_for_the_test() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// A program in the role of a test. Dropping it closes the standard input of the program.
struct Program {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Program {
    fn start(role: &str, file: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, role)
            .env(FILE, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next_line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }
}

/// Asserts that the child of a program that forked holds the program's lock. The child ends without a
/// release, and then the lock can be acquired.
fn assert_child_holds(mut program: Program, file: &Path) {
    assert_eq!(program.next_line(), "held");
    // Keeps the standard input of the forked child open.
    let input = program.child.stdin.take();
    assert!(program.child.wait().unwrap().success(), "the parent ends");
    let other = keeper(provider(file.to_str().unwrap()).unwrap());
    assert!(other.try_lock("seat").unwrap().is_none());
    drop(input);
    other.lock("seat").unwrap().release().unwrap();
}

fn forked_child_is_a_separate_holder() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let program = Program::start("forked_child_is_a_separate_holder", &file);
    assert_child_holds(program, &file);
}

fn lock_drop_fork_and_lock(file: &str) {
    let before = keeper(provider(file).unwrap());
    before.lock("before").unwrap().release().unwrap();
    drop(before);
    if let ForkResult::Child = fork_alone() {
        let held = keeper(provider(file).unwrap()).lock("seat").unwrap();
        report("held");
        wait_for_the_test();
        // The process ends without a release.
        std::mem::forget(held);
    }
}

fn inherited_provider_is_refused_after_a_fork() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let role = "inherited_provider_is_refused_after_a_fork";
    let mut program = Program::start(role, &file);
    for _ in 0..2 {
        let message = program.next_line();
        assert!(
            message.contains("before this process was forked"),
            "{message}"
        );
    }
    assert_child_holds(program, &file);
}

fn open_fork_and_open(file: &str) {
    let inherited = provider(file).unwrap();
    let holder = keeper(provider(file).unwrap()).lock("seat").unwrap();
    let waiter = keeper(inherited.clone());
    // On a busy machine, a short wait may end before it has a socket.
    let mut wait = Duration::from_millis(1);
    let of_parent = loop {
        assert!(waiter.try_lock_for("seat", wait).unwrap().is_none());
        match socket(file) {
            Some(socket) => break socket,
            None => wait *= 2,
        }
    };
    drop((holder, waiter));
    let (mut here, mut there) = UnixStream::pair().unwrap();
    match fork_alone() {
        ForkResult::Parent { .. } => {
            drop(there);
            // Waits until the child holds the lock.
            let _ = here.read(&mut [0]);
        }
        ForkResult::Child => {
            drop(here);
            let refused = keeper(inherited.clone()).try_lock("seat").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Incompatible);
            report(&refused.to_string());
            let refused = provider(file).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Incompatible);
            report(&refused.to_string());
            drop(inherited);
            assert!(of_parent.exists(), "the parent keeps its socket");
            let held = keeper(provider(file).unwrap()).lock("seat").unwrap();
            report("held");
            there.write_all(&[0]).unwrap();
            wait_for_the_test();
            std::mem::forget(held);
        }
    }
}
