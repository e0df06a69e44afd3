//! The claim that a watchdog has on a name, and the time that the next one waits for it.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::process::Pid;

use crate::loss::{force, watchdog_of};
use crate::rig::{Case, Outcome, Rig, code, said};

pub(crate) const CASES: &[Case] = &[
    ("a_command_whose_time_is_over_is_never_started", too_late),
    (
        "a_lock_that_is_renewed_outlives_the_wait_for_a_claim",
        renewed,
    ),
    ("a_lost_lock_that_ends_nothing_is_claimed_no_more", given_up),
];

/// What the claim on the lock of a run is called.
fn claim_of(run: Pid) -> String {
    let watchdog = watchdog_of(run).unwrap();
    let line = std::fs::read_to_string(format!("/proc/{watchdog}/cmdline")).unwrap();
    line.split('\0').nth(3).unwrap().to_owned()
}

/// `None`: somebody has it.
fn take(claim: &str) -> Option<UnixListener> {
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
    let args = ["--ttl", "2s", "--kill-after", "100ms", "a"];
    let output = rig.run(&args, "exit 3");
    assert_eq!(code(&output), 3, "{}", said(&output));
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
