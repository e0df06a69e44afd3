//! The claim of a watchdog on a name, and how long the next `run` waits for it.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use lockkeeper_testkit::cases;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::loss::{FORKING, NEXT, force, watchdog_of, with};
use crate::rig::{Case, Rig, Running, code, contains, exits, fails, skip, stderr_of};
use crate::signals::end_by_second_signal;

pub(crate) const CASES: &[Case] = cases![
    command_whose_lease_is_over_is_never_started,
    renewed_lock_outlives_the_wait_for_a_claim,
    lock_lost_before_its_command_starts_fails_with_on_lost_warn,
    signal_ends_the_wait_for_a_claim,
    second_signal_ends_the_release_after_the_wait_for_a_claim,
    signal_ends_the_wait_for_the_claim_on_a_lost_lock,
    command_is_not_started_if_the_watchdog_was_killed,
    claim_is_respected_for_the_ttl,
    claim_ends_when_a_lock_with_on_lost_warn_is_lost,
    claim_ends_when_the_lease_is_over,
    claim_of_another_user_delays_no_command,
    claim_beside_one_of_another_user_is_respected,
    claim_with_a_full_queue_is_respected,
    claim_of_root_is_respected_by_every_user,
];

/// A user that is not the one of these tests.
const OTHER_USER: u32 = 65534;
/// Set in a process of these tests that runs as [`OTHER_USER`]: what it does with the claim.
const ROLE: &str = "TESTKIT_ROLE";

/// What this process does in place of the tests, if it was started by [`as_other_user`].
pub(crate) fn role() -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    let (verb, claim) = role.split_once(' ').unwrap();
    let _bound = match verb {
        "bind" => take(claim),
        _ => {
            // More than the queue of a socket takes (net.core.somaxconn).
            for _ in 0..10_000 {
                is_queue_open(claim);
            }
            None
        }
    };
    std::io::stdout().write_all(b"done\n").unwrap();
    // Until the test closes the other end.
    let _ = std::io::stdin().read(&mut [0]);
    Some(ExitCode::SUCCESS)
}

/// Starts a process of another user that does `verb` with a claim.
fn as_other_user(verb: &str, claim: &str) -> Running {
    if !geteuid().is_root() {
        skip("only root can act as another user");
    }
    let mut process = Command::new("/proc/self/exe");
    process.env(ROLE, format!("{verb} {claim}")).uid(OTHER_USER);
    process.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = process.spawn().unwrap();
    let mut done = [0; 5];
    let stdout = process.stdout.as_mut().unwrap();
    stdout.read_exact(&mut done).unwrap();
    Running(Some(process))
}

/// Returns the name of the claim on the lock of `run`.
pub(crate) fn claim_of(run: Pid) -> String {
    let watchdog = watchdog_of(run).unwrap();
    let line = std::fs::read_to_string(format!("/proc/{watchdog}/cmdline")).unwrap();
    line.split('\0').nth(3).unwrap().to_owned()
}

/// Takes the claim, unless another process holds it.
pub(crate) fn take(claim: &str) -> Option<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(claim).unwrap()).ok()
}

/// Connects to the socket of a claim, unless its queue is full.
fn is_queue_open(claim: &str) -> bool {
    let socket = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_NONBLOCK,
        None,
    );
    let address = UnixAddr::new_abstract(claim.as_bytes()).unwrap();
    connect(socket.unwrap().as_raw_fd(), &address).is_ok()
}

/// The claim on the lock `a`, which is free.
fn free_claim(rig: &Rig) -> String {
    let holder = rig.hold("a");
    let claim = claim_of(holder.pid());
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    rig.remove(&["release", "held"]);
    claim
}

/// Takes the claim on the lock `a`, as if an earlier command under it would not end.
fn take_free_claim(rig: &Rig) -> UnixListener {
    take(&free_claim(rig)).unwrap()
}

fn command_whose_lease_is_over_is_never_started(rig: &Rig) {
    let _claim = take_free_claim(rig);
    let output = rig.run(
        &["--lease", "2s", "--kill-after", "100ms", "a"],
        "touch started",
    );
    exits(&output, 79);
    assert!(!rig.exists("started"));
}

fn renewed_lock_outlives_the_wait_for_a_claim(rig: &Rig) {
    let _claim = take_free_claim(rig);
    let args = ["--ttl", "6s", "--kill-after", "100ms", "a"];
    // The command gets a deadline that has not passed.
    let script = "test $LOCKKEEPER_DEADLINE_UNIX_MS -gt $(date +%s%3N) && exit 3";
    let output = rig.run(&args, script);
    exits(&output, 3);
}

fn lock_lost_before_its_command_starts_fails_with_on_lost_warn(rig: &Rig) {
    let _claim = take_free_claim(rig);
    let args = ["--lease", "2s", "--on-lost", "warn", "a"];
    let output = rig.run(&args, "touch started");
    fails(&output, 79);
    assert!(!rig.exists("started"));
}

/// Starts a `run` that holds the lock `a` and waits for its claim.
fn waits_for_claim(rig: &Rig, args: &[&str]) -> Running {
    let run = rig.start(args, "touch started");
    rig.until_who("it holds the lock", "a", |held| !held.is_null());
    run
}

fn signal_ends_the_wait_for_a_claim(rig: &Rig) {
    let _claim = take_free_claim(rig);
    let run = waits_for_claim(rig, &["--ttl", "5m", "a"]);
    run.signal(Signal::TERM);
    let output = run.output();
    exits(&output, 143);
    assert!(!rig.exists("started"));
    assert!(rig.who("a").is_null(), "it was not released");
}

fn second_signal_ends_the_release_after_the_wait_for_a_claim(rig: &Rig) {
    let _claim = take_free_claim(rig);
    let run = waits_for_claim(rig, &["--ttl", "5m", "a"]);
    let other = rusqlite::Connection::open(rig.path("store/locks.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    end_by_second_signal(rig, run);
}

fn signal_ends_the_wait_for_the_claim_on_a_lost_lock(rig: &Rig) {
    let _claim = take_free_claim(rig);
    let run = waits_for_claim(rig, &["--lease", "5m", "a"]);
    force(rig);
    run.signal(Signal::TERM);
    let output = run.output();
    // A store that tells the holder at once may do so before the signal arrives.
    let (status, lines) = (code(&output), stderr_of(&output).lines().count());
    assert!(
        [(143, 0), (79, 1)].contains(&(status, lines)),
        "{status} {}",
        stderr_of(&output)
    );
    assert!(!rig.exists("started"));
}

fn command_is_not_started_if_the_watchdog_was_killed(rig: &Rig) {
    let _claim = take_free_claim(rig);
    let run = waits_for_claim(rig, &["--ttl", "5m", "a"]);
    let mut watchdog = None;
    rig.until("it has a watchdog", || {
        watchdog = watchdog_of(run.pid());
        watchdog.is_some()
    });
    kill_process(watchdog.unwrap(), Signal::KILL).unwrap();
    let output = run.output();
    exits(&output, 126);
    contains(&stderr_of(&output), &["watchdog"]);
    assert!(!rig.exists("started"));
    assert!(rig.who("a").is_null(), "it was not released");
}

fn claim_is_respected_for_the_ttl(rig: &Rig) {
    let claim = take_free_claim(rig);
    let run = waits_for_claim(rig, &["--ttl", "5m", "a"]);
    // This takes longer than the shortest time for which a claim is respected.
    let args = ["--lease", "3s", "--kill-after", "100ms", "b"];
    assert_eq!(code(&rig.run(&args, "exec sleep 30")), 79);
    assert!(!rig.exists("started"), "the claim was not respected");
    drop(claim);
    assert_eq!(run.code(), 0);
    assert!(rig.exists("started"));
}

fn claim_ends_when_a_lock_with_on_lost_warn_is_lost(rig: &Rig) {
    let script = "touch held; until [ -e done ]; do sleep 0.05; done; exit 8";
    let args = ["--ttl", "6s", "--on-lost", "warn", "a"];
    let mut run = rig.start(&args, script);
    rig.until_file("held");
    let claim = claim_of(run.pid());
    assert!(take(&claim).is_none());
    force(rig);
    rig.until("the claim is given up", || take(&claim).is_some());
    assert!(run.is_running());
    rig.write("done", "");
    assert_eq!(run.code(), 8);
}

fn claim_ends_when_the_lease_is_over(rig: &Rig) {
    let args = ["--ttl", "6s", "--on-lost", "warn", "a"];
    let script = "touch held; until [ -e done ]; do sleep 0.05; done; exit 8";
    let run = rig.start(&args, script);
    rig.until_file("held");
    let claim = claim_of(run.pid());
    // A stopped `run` cannot tell the watchdog that the lock is over.
    run.signal(Signal::STOP);
    rig.until("the claim is given up", || take(&claim).is_some());
    run.signal(Signal::CONT);
    rig.write("done", "");
    assert_eq!(run.code(), 8);
}

fn claim_of_another_user_delays_no_command(rig: &Rig) {
    let _foreign = as_other_user("bind", &free_claim(rig));
    let output = rig.start(&["--ttl", "5m", "-v", "a"], "exit 3").output();
    exits(&output, 3);
    let lines = stderr_of(&output);
    assert!(!lines.contains("an earlier command"), "{lines}");
}

/// Takes the lock away from a command that does not end by TERM, and runs the next one.
pub(crate) fn followed(rig: &Rig, run: Running, next: &[&str]) {
    force(rig);
    let args = [&["-n"], next].concat();
    assert_eq!(code(&rig.run(&with(&args), NEXT)), 0);
    assert!(!rig.exists("overlap"), "{}", rig.read("overlap"));
    assert_eq!(run.code(), 79);
}

fn claim_beside_one_of_another_user_is_respected(rig: &Rig) {
    let claim = free_claim(rig);
    let foreign = as_other_user("bind", &claim);
    let run = rig.start(&with(&["a"]), FORKING);
    rig.until_file("ready");
    // The name is free again while the claim has another one.
    drop(foreign);
    rig.until("the name is free", || take(&claim).is_some());
    followed(rig, run, &["a"]);
}

fn claim_with_a_full_queue_is_respected(rig: &Rig) {
    let run = rig.start(&with(&["a"]), FORKING);
    rig.until_file("ready");
    let claim = claim_of(run.pid());
    drop(as_other_user("connect", &claim));
    rig.until("the queue is empty", || is_queue_open(&claim));
    followed(rig, run, &["a"]);
}

fn claim_of_root_is_respected_by_every_user(rig: &Rig) {
    if !geteuid().is_root() {
        skip("only root can act as another user");
    }
    for folder in [rig.folder.path(), &rig.path("store")] {
        std::os::unix::fs::chown(folder, Some(OTHER_USER), None).unwrap();
    }
    let start = |args: &[&str], script: &str| {
        let mut run = rig.run_command(args, script);
        run.uid(OTHER_USER);
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        let Ok(run) = run.spawn() else {
            skip("the folder of the program is closed to other users");
        };
        Running(Some(run))
    };
    let first = start(
        &["a"],
        "touch held; until [ -e release ]; do sleep 0.05; done",
    );
    rig.until_file("held");
    let claim = claim_of(first.pid());
    rig.write("release", "");
    assert_eq!(first.code(), 0);
    let claim = take(&claim).unwrap();
    let run = start(&["--ttl", "5m", "a"], "touch started");
    // This takes longer than the shortest time for which a claim is respected.
    let args = ["--lease", "3s", "--kill-after", "100ms", "b"];
    assert_eq!(start(&args, "exec sleep 30").code(), 79);
    assert!(!rig.exists("started"), "the claim was not respected");
    drop(claim);
    let output = run.output();
    exits(&output, 0);
    assert!(rig.exists("started"));
}
