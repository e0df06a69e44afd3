//! The tests and their roles.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use lockkeeper_core::{ErrorKind, LockKeeper, Wait};
use lockkeeper_local::SqliteProvider;
use nix::unistd::{ForkResult, fork};

const ROLE: &str = "LOCKKEEPER_FORK_ROLE";
const FILE: &str = "LOCKKEEPER_FORK_FILE";

/// A test, and the role of its program, by one name.
type Case = (&'static str, fn(), fn(&str));

const CASES: &[Case] = &[
    (
        "a_forked_child_is_a_holder_of_its_own",
        a_forked_child_is_a_holder_of_its_own,
        lock_drop_fork_and_lock,
    ),
    (
        "an_open_provider_is_not_used_on_both_sides_of_a_fork",
        an_open_provider_is_not_used_on_both_sides_of_a_fork,
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

/// Forks this program, which must have one thread: a fork copies no other, but the locks that they
/// hold.
fn fork_alone() -> ForkResult {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    while threads() > 1 {
        // The threads of a keeper that was dropped are about to end.
        std::thread::yield_now();
    }
    #[allow(unsafe_code, reason = "it has one thread: see above")]
    let forked = unsafe { fork() };
    forked.unwrap()
}

fn say(what: &str) {
    println!("{what}");
    std::io::stdout().flush().unwrap();
}

/// Until the test ends, whatever happens there.
fn wait_for_the_test() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// A program in the role of a test. Its standard input ends with this.
struct Program {
    child: Child,
    says: std::io::Lines<BufReader<std::process::ChildStdout>>,
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
        let says = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, says }
    }

    fn line(&mut self) -> String {
        self.says.next().unwrap().unwrap()
    }
}

fn a_forked_child_is_a_holder_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let mut program = Program::start("a_forked_child_is_a_holder_of_its_own", &file);
    assert_eq!(program.line(), "held");
    // Keeps the standard input of the forked child open.
    let input = program.child.stdin.take();
    assert!(program.child.wait().unwrap().success(), "the parent ends");
    let other = keeper(provider(file.to_str().unwrap()).unwrap());
    assert!(other.try_lock("seat").unwrap().is_none(), "its child holds");
    drop(input);
    // When it ends, it is dead like any other.
    other.lock("seat").unwrap().release().unwrap();
}

fn lock_drop_fork_and_lock(file: &str) {
    let before = keeper(provider(file).unwrap());
    before.lock("before").unwrap().release().unwrap();
    drop(before);
    if let ForkResult::Child = fork_alone() {
        let held = keeper(provider(file).unwrap()).lock("seat").unwrap();
        say("held");
        wait_for_the_test();
        // As it is when it is killed.
        std::mem::forget(held);
    }
}

fn an_open_provider_is_not_used_on_both_sides_of_a_fork() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let role = "an_open_provider_is_not_used_on_both_sides_of_a_fork";
    let mut program = Program::start(role, &file);
    for _ in 0..2 {
        let said = program.line();
        assert!(said.contains("before this process was forked"), "{said}");
    }
    assert_eq!(program.line(), "held");
    let input = program.child.stdin.take();
    assert!(program.child.wait().unwrap().success(), "the parent ends");
    let other = keeper(provider(file.to_str().unwrap()).unwrap());
    assert!(other.try_lock("seat").unwrap().is_none(), "its child holds");
    drop(input);
}

fn open_fork_and_open(file: &str) {
    let inherited = provider(file).unwrap();
    let (mut here, mut there) = UnixStream::pair().unwrap();
    match fork_alone() {
        ForkResult::Parent { .. } => {
            drop(there);
            // Until the child holds the lock.
            let _ = here.read(&mut [0]);
        }
        ForkResult::Child => {
            drop(here);
            let refused = keeper(inherited.clone()).try_lock("seat").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Incompatible);
            say(&refused.to_string());
            let refused = provider(file).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Incompatible);
            say(&refused.to_string());
            drop(inherited);
            let held = keeper(provider(file).unwrap()).lock("seat").unwrap();
            say("held");
            there.write_all(&[0]).unwrap();
            wait_for_the_test();
            std::mem::forget(held);
        }
    }
}
