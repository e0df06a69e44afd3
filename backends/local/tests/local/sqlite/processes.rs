//! Locks and waiters of other processes, including dead ones.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::waiting::silent_waiter;
use super::*;

/// Names the database for [`child`] when it runs as another process: it acquires a lock, and holds it
/// until standard input ends.
const CHILD: &str = "TESTKIT_LOCAL_CHILD_FILE";

#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else {
        return;
    };
    let guard = keeper(open(Path::new(&path)).unwrap())
        .lock("seat")
        .unwrap();
    println!("\nheld");
    // Standard input ends with the test.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(guard);
}

/// A process that runs [`child`], and is killed on drop.
pub(super) struct Running(pub(super) Child);

impl Running {
    pub(super) fn wait_until_held(&mut self) {
        let out = BufReader::new(self.0.stdout.as_mut().unwrap());
        let held = out.lines().map_while(Result::ok).any(|line| line == "held");
        assert!(held, "the child reports that it holds the lock");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn spawn(store: &TempStore) -> Running {
    spawn_test("sqlite::processes::child", CHILD, store)
}

/// Runs a test as another process, with the path of the database in a variable.
pub(super) fn spawn_test(test: &str, variable: &str, store: &TempStore) -> Running {
    Running(test_process(test, variable, store).spawn().unwrap())
}

fn test_process(test: &str, variable: &str, store: &TempStore) -> Command {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process
        .args(["--exact", test, "--nocapture"])
        .env(variable, store.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    process
}

#[cfg(target_os = "linux")]
#[test]
fn opening_removes_the_rows_of_dead_waiters_and_expired_leases() {
    let store = TempStore::new();
    let raw = store.raw();
    let mut holder = spawn(&store);
    holder.wait_until_held();
    let waiter = spawn(&store);
    until("the waiter is queued", || waiters(&raw) == 1);
    let keeper = store.keeper();
    let fixed = |ttl| {
        let ttl = Duration::from_secs(ttl);
        AcquireOptions::new().lease(LeasePolicy::Fixed { ttl })
    };
    let ran_out = keeper.acquire("ran out", &fixed(60)).unwrap();
    raw.execute(
        "UPDATE lock SET expires = asked + 1 WHERE name = 'ran out'",
        (),
    )
    .unwrap();
    let _held = keeper.acquire("held", &fixed(60)).unwrap();
    let others = || (locks(&raw), waiters(&raw));
    drop(store.provider());
    assert_eq!(
        others(),
        (2, 1),
        "the locks `seat` and `held`, and one waiter"
    );
    // In this order, so that the waiter is not granted the name.
    drop(waiter);
    drop(holder);
    assert_eq!(others(), (2, 1));
    drop(store.provider());
    assert_eq!(
        others(),
        (2, 0),
        "a ticket may pass the lock `seat` on until it expires"
    );
    raw.execute(
        "UPDATE lock SET expires = asked + 1 WHERE name = 'seat'",
        (),
    )
    .unwrap();
    drop(store.provider());
    assert_eq!(others(), (1, 0), "the lock of the living process");
    assert_eq!(ran_out.unwrap().release().unwrap(), Released::AlreadyLost);
}

#[cfg(target_os = "linux")]
#[test]
fn opening_keeps_the_row_of_a_name_with_a_waiter() {
    let store = TempStore::new();
    let raw = store.raw();
    let mut holder = spawn(&store);
    holder.wait_until_held();
    silent_waiter(&store);
    drop(holder);
    drop(store.provider());
    assert_eq!((locks(&raw), waiters(&raw)), (1, 1));
}

/// Names the ticket for [`resumes`], beside [`CHILD`].
const TICKET: &str = "TESTKIT_LOCAL_CHILD_TICKET";

#[test]
fn resumes() {
    let (Ok(path), Ok(ticket)) = (std::env::var(CHILD), std::env::var(TICKET)) else {
        return;
    };
    let keeper = keeper(open(Path::new(&path)).unwrap());
    let _guard = keeper.resume(&ticket.parse().unwrap()).unwrap();
    println!("\nheld");
    // The test kills this process.
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// The next worker opens the file after the end of the one that had resumed the lock.
#[test]
fn lock_is_resumed_after_a_crash_by_a_process_that_starts_then() {
    let store = TempStore::new();
    let ticket = store.keeper().lock("seat").unwrap().detach().unwrap();
    let mut crashes = Running(
        test_process("sqlite::processes::resumes", CHILD, &store)
            .env(TICKET, ticket.to_string())
            .spawn()
            .unwrap(),
    );
    crashes.wait_until_held();
    drop(crashes);
    let guard = store.keeper().resume(&ticket).unwrap();
    assert_eq!(guard.release().unwrap(), Released::Done);
}

#[test]
fn processes_create_one_file_at_once() {
    let store = TempStore::new();
    let mut children: Vec<_> = (0..8).map(|_| spawn(&store)).collect();
    // A child releases the lock when its standard input is closed.
    for child in &mut children {
        drop(child.0.stdin.take());
    }
    for mut child in children {
        child.wait_until_held();
        assert!(child.0.wait().unwrap().success());
    }
}
