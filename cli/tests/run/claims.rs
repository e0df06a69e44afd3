//! The claim that a watchdog has on a name, and the time that the next one waits for it.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::process::{Pid, Signal, kill_process};

use crate::loss::{force, watchdog_of};
use crate::rig::{Case, Outcome, Rig, Running, code, said};

pub(crate) const CASES: &[Case] = &[
    ("a_command_whose_time_is_over_is_never_started", too_late),
    (
        "a_lock_that_is_renewed_outlives_the_wait_for_a_claim",
        renewed,
    ),
    (
        "a_lock_lost_before_its_command_is_not_only_warned_of",
        lost_before,
    ),
    ("a_signal_ends_the_wait_for_a_claim", asked_to_end),
    (
        "a_signal_ends_the_wait_for_a_claim_on_a_lost_lock",
        asked_to_end_when_lost,
    ),
    (
        "a_watchdog_killed_before_the_command_lets_none_start",
        without_watchdog,
    ),
    (
        "a_claim_is_respected_as_long_as_its_lock_could_last",
        not_gone_yet,
    ),
    ("a_lost_lock_that_ends_nothing_is_claimed_no_more", given_up),
    ("a_lock_that_ran_out_is_claimed_no_more", ran_out),
];

/// What the claim on the lock of a run is called.
pub(crate) fn claim_of(run: Pid) -> String {
    let watchdog = watchdog_of(run).unwrap();
    let line = std::fs::read_to_string(format!("/proc/{watchdog}/cmdline")).unwrap();
    line.split('\0').nth(2).unwrap().to_owned()
}

/// `None`: somebody has it.
pub(crate) fn take(claim: &str) -> Option<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(claim).unwrap()).ok()
}

/// Has the claim on the lock `a`, as if somebody's command would not die.
fn taken(rig: &Rig) -> UnixListener {
    let holder = rig.hold("a");
    let claim = claim_of(holder.pid());
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    take(&claim).unwrap()
}

fn too_late(rig: &mut Rig) -> Outcome {
    let _claim = taken(rig);
    let output = rig.run(
        &["--lease", "1s", "--kill-after", "100ms", "a"],
        "touch started",
    );
    assert_eq!(code(&output), 79, "{}", said(&output));
    assert!(!rig.exists("started"));
    Ok(())
}

fn renewed(rig: &mut Rig) -> Outcome {
    let _claim = taken(rig);
    let args = ["--ttl", "3s", "--kill-after", "100ms", "a"];
    // It is told of a deadline that is still to come.
    let script = "test $LOCKKEEPER_DEADLINE_UNIX_MS -gt $(date +%s%3N) && exit 3";
    let output = rig.run(&args, script);
    assert_eq!(code(&output), 3, "{}", said(&output));
    Ok(())
}

fn lost_before(rig: &mut Rig) -> Outcome {
    let _claim = taken(rig);
    let args = ["--lease", "1s", "--on-lost", "warn", "a"];
    let output = rig.run(&args, "touch started");
    assert_eq!(code(&output), 79, "{}", said(&output));
    assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
    assert!(!rig.exists("started"));
    Ok(())
}

/// One that has the lock `a`, but not its claim.
fn waits_for_claim(rig: &Rig, args: &[&str]) -> Running {
    let run = rig.start(args, "touch started");
    rig.until("it holds the lock", || !rig.who("a").is_null());
    run
}

fn asked_to_end(rig: &mut Rig) -> Outcome {
    let _claim = taken(rig);
    let run = waits_for_claim(rig, &["--ttl", "5m", "a"]);
    run.signal(Signal::TERM);
    let output = run.output();
    assert_eq!(code(&output), 143, "{}", said(&output));
    assert!(!rig.exists("started"));
    assert!(rig.who("a").is_null(), "it was not released");
    Ok(())
}

fn asked_to_end_when_lost(rig: &mut Rig) -> Outcome {
    let _claim = taken(rig);
    // Nobody renews it, so that nobody is told.
    let run = waits_for_claim(rig, &["--lease", "5m", "a"]);
    force(rig);
    run.signal(Signal::TERM);
    let output = run.output();
    assert_eq!(code(&output), 143, "{}", said(&output));
    assert_eq!(said(&output), "");
    assert!(!rig.exists("started"));
    Ok(())
}

fn without_watchdog(rig: &mut Rig) -> Outcome {
    let _claim = taken(rig);
    let run = waits_for_claim(rig, &["--ttl", "5m", "a"]);
    let mut watchdog = None;
    rig.until("it has a watchdog", || {
        watchdog = watchdog_of(run.pid());
        watchdog.is_some()
    });
    kill_process(watchdog.unwrap(), Signal::KILL).unwrap();
    let output = run.output();
    assert_eq!(code(&output), 126, "{}", said(&output));
    assert!(said(&output).contains("watchdog"), "{}", said(&output));
    assert!(!rig.exists("started"));
    assert!(rig.who("a").is_null(), "it was not released");
    Ok(())
}

fn not_gone_yet(rig: &mut Rig) -> Outcome {
    let claim = taken(rig);
    let run = waits_for_claim(rig, &["--ttl", "5m", "a"]);
    // Longer than a claim is respected by a lock that is short.
    let args = ["--lease", "3s", "--kill-after", "100ms", "b"];
    assert_eq!(code(&rig.run(&args, "exec sleep 30")), 79);
    assert!(!rig.exists("started"), "the claim was not respected");
    drop(claim);
    assert_eq!(run.code(), 0);
    assert!(rig.exists("started"));
    Ok(())
}

fn given_up(rig: &mut Rig) -> Outcome {
    let script = "touch held; until [ -e done ]; do sleep 0.01; done; exit 8";
    let args = ["--ttl", "3s", "--on-lost", "warn", "a"];
    let mut run = rig.start(&args, script);
    rig.until_file("held");
    let claim = claim_of(run.pid());
    assert!(take(&claim).is_none());
    force(rig);
    rig.until("the claim is given up", || take(&claim).is_some());
    assert!(run.is_running());
    rig.write("done", "");
    assert_eq!(run.code(), 8);
    Ok(())
}

fn ran_out(rig: &mut Rig) -> Outcome {
    let args = ["--ttl", "2s", "--on-lost", "warn", "a"];
    let script = "touch held; until [ -e done ]; do sleep 0.01; done; exit 8";
    let run = rig.start(&args, script);
    rig.until_file("held");
    let claim = claim_of(run.pid());
    // It cannot say that its lock is over.
    run.signal(Signal::STOP);
    rig.until("the claim is given up", || take(&claim).is_some());
    run.signal(Signal::CONT);
    rig.write("done", "");
    assert_eq!(run.code(), 8);
    Ok(())
}
