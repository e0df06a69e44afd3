//! Other processes, and what they leave behind.

use super::*;

/// What [`child`] does when it is not a test: takes a lock, says so, and holds it until killed.
const CHILD: &str = "LOCKKEEPER_LOCAL_TEST_CHILD";

#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else {
        return;
    };
    let keeper = keeper(SqliteProvider::open(&path, "default").unwrap());
    let guard = keeper.lock("seat").unwrap();
    println!("\nheld");
    // Ends when the test that started it does, whatever happens there.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(guard);
}

pub(super) struct Running(Child, Option<BufReader<ChildStdout>>);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn spawn(place: &Place) -> Running {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sqlite::tests::processes::child", "--nocapture"])
        .env(CHILD, place.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let out = child.stdout.take().map(BufReader::new);
    Running(child, out)
}

pub(super) fn wait_until_held(child: &mut Running) {
    let out = child.1.as_mut().unwrap();
    let held = out.lines().map_while(Result::ok).any(|line| line == "held");
    assert!(held, "the child says that it holds");
}

#[cfg(target_os = "linux")]
#[test]
fn a_dead_holders_lock_is_taken_over_at_once() {
    let place = Place::new();
    let raw = place.raw();
    let mut child = spawn(&place);
    wait_until_held(&mut child);
    let waiting = place.keeper();
    assert!(waiting.capabilities().has(Capability::DeadOwnerTakeOver));
    assert!(waiting.try_lock("seat").unwrap().is_none());
    let thread = {
        let waiting = waiting.clone();
        // Far less than the ttl, which is 30 s.
        thread::spawn(move || {
            waiting
                .try_lock_for("seat", Duration::from_secs(15))
                .unwrap()
                .is_some()
        })
    };
    until("it stands in line", || waiters(&raw) == 1);
    child.0.kill().unwrap();
    assert!(thread.join().unwrap(), "taken over while it waited");
    drop(child);

    let mut child = spawn(&place);
    wait_until_held(&mut child);
    drop(child);
    assert!(
        waiting.try_lock("seat").unwrap().is_some(),
        "taken over by one attempt"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_dead_waiters_place_and_socket_are_removed() {
    let place = Place::new();
    let raw = place.raw();
    let holder = place.keeper().lock("seat").unwrap();
    let child = spawn(&place);
    until("it stands in line", || waiters(&raw) == 1);
    let waiting = place.keeper();
    let thread = thread::spawn(move || waiting.lock("seat").unwrap().release().unwrap());
    until("the second does, too", || waiters(&raw) == 2);
    drop(child);
    drop(holder);
    assert_eq!(thread.join().unwrap(), Released::Done);
    assert_eq!((waiters(&raw), locks(&raw)), (0, 0));
}

#[cfg(target_os = "linux")]
#[test]
fn opening_removes_the_rows_of_dead_processes_and_expired_leases() {
    let place = Place::new();
    let raw = place.raw();
    let mut holder = spawn(&place);
    wait_until_held(&mut holder);
    let waiter = spawn(&place);
    until("it stands in line", || waiters(&raw) == 1);
    let keeper = place.keeper();
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
    drop(place.provider());
    assert_eq!(others(), (2, 1), "seat and held, and one that waits");
    // Else it would not wait any more.
    drop(waiter);
    drop(holder);
    assert_eq!(others(), (2, 1));
    drop(place.provider());
    assert_eq!(others(), (1, 0), "the living one's");
    assert_eq!(ran_out.unwrap().release().unwrap(), Released::AlreadyLost);
}

#[cfg(target_os = "linux")]
#[test]
fn opening_keeps_the_row_of_a_name_with_a_waiter() {
    let place = Place::new();
    let raw = place.raw();
    let mut holder = spawn(&place);
    wait_until_held(&mut holder);
    // It lives, and does not look: as a stopped process does.
    super::waiting::silent_waiter(&raw);
    drop(holder);
    drop(place.provider());
    assert_eq!((locks(&raw), waiters(&raw)), (1, 1));
}

#[test]
fn many_create_one_file_at_once() {
    let place = Place::new();
    let mut children: Vec<_> = (0..8).map(|_| spawn(&place)).collect();
    // Each frees the lock when nobody can write to it any more.
    for child in &mut children {
        drop(child.0.stdin.take());
    }
    for mut child in children {
        wait_until_held(&mut child);
        assert!(child.0.wait().unwrap().success());
    }
}

#[test]
fn long_folders_have_bells_too() {
    let place = Place::new();
    let folder = place.folder.path().join("long".repeat(40));
    fs::create_dir(&folder).unwrap();
    let path = folder.join("locks.db");
    let provider = SqliteProvider::open(path.to_str().unwrap(), "default").unwrap();
    let bell = provider.store.bells.take();
    assert_eq!(bell.address().is_empty(), !cfg!(target_os = "linux"));
    assert_eq!(
        provider.store.bells.ring(bell.address()),
        wake::Rung::Perhaps
    );
    bell.wait(None, Duration::from_secs(60));
    let gone = bell.address().to_owned();
    drop(bell);
    if cfg!(target_os = "linux") {
        assert_eq!(provider.store.bells.ring(&gone), wake::Rung::Gone);
    }
    assert!(
        fs::read_dir(&folder)
            .unwrap()
            .flatten()
            .all(|file| { !file.file_name().to_string_lossy().contains("-wake-") })
    );
}
