//! What `run` is started in: a container, or whatever its caller left it.

use nix::sys::signal::SigSet;
use rustix::process::Signal;

use crate::rig::{Case, Outcome, Rig, Skip, code, said};

pub(crate) const CASES: &[Case] = &[
    ("a_pid_namespace_changes_nothing", pids),
    ("a_boot_id_of_a_containers_own_frees_nothing", boot_id),
    ("a_clock_of_a_containers_own_frees_nothing", clock),
    ("a_file_that_is_mounted_alone_is_refused", mounted_alone),
    ("a_full_disk_is_waited_out", full_disk),
    ("without_proc_no_command_is_started", no_proc),
    ("signals_blocked_by_the_caller_are_heard", blocked),
];

fn pids(rig: &mut Rig) -> Outcome {
    let script = r#"
until_there() { until [ -e $1 ]; do sleep 0.01; done; }
"$0" run a -- sh -c 'trap "touch heard" TSTP; touch set; until [ -e done ]; do sleep 0.01; done; exit 3' &
until_there set
kill -TSTP $!
until_there heard
touch done
wait $!
echo $?
"$0" run b -- sh -c 'echo $$ > pid; kill -STOP $$; exit 4' &
until_there pid
until grep -q ') T ' /proc/$(cat pid)/stat; do sleep 0.01; done
kill -CONT $(cat pid)
wait $!
echo $?"#;
    let output = rig.contain(&[], script)?;
    assert_eq!(said(&output), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3\n4\n");
    Ok(())
}

fn boot_id(rig: &mut Rig) -> Outcome {
    // As systemd-nspawn and LXC do it.
    rig.write("boot_id", "7b5c1a52-8f2f-4f6a-9f0c-6d4a4f1d2f11\n");
    let script = r#"mount --bind boot_id /proc/sys/kernel/random/boot_id && exec "$0" run -n a -- touch started"#;
    let holder = rig.hold("a");
    let output = rig.contain(&[], script)?;
    assert_eq!(code(&output), 75, "{}", said(&output));
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    let output = rig.contain(&[], script)?;
    assert_eq!(code(&output), 0, "{}", said(&output));
    Ok(())
}

fn clock(rig: &mut Rig) -> Outcome {
    let holder = rig.hold("a");
    let apart = ["--time", "--boottime", "864000"];
    let output = rig.contain(&apart, r#"exec "$0" run -n a -- touch started"#)?;
    // A store with a clock of its own does not mind.
    let expected = if rig.server.is_some() { 75 } else { 78 };
    assert_eq!(code(&output), expected, "{}", said(&output));
    assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
    assert!(!rig.exists("started"));
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    Ok(())
}

fn mounted_alone(rig: &mut Rig) -> Outcome {
    if rig.server.is_some() {
        return Err(Skip("the store is no file"));
    }
    let holder = rig.hold("a");
    rig.write("alone.db", "");
    let script = r#"mount --bind store/locks.db alone.db && exec "$0" run -n --url sqlite:alone.db a -- touch started"#;
    let output = rig.contain(&[], script)?;
    assert_eq!(code(&output), 78, "{}", said(&output));
    assert!(
        said(&output).contains("mount its folder"),
        "{}",
        said(&output)
    );
    // With its folder it is the same store.
    std::fs::create_dir(rig.path("whole")).unwrap();
    let script = r#"mount --bind store whole && exec "$0" run -n --url sqlite:whole/locks.db a -- touch started"#;
    let output = rig.contain(&[], script)?;
    assert_eq!(code(&output), 75, "{}", said(&output));
    assert!(!rig.exists("started"));
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    Ok(())
}

fn full_disk(rig: &mut Rig) -> Outcome {
    if rig.server.is_some() {
        return Err(Skip("the store is no file"));
    }
    std::fs::create_dir(rig.path("small")).unwrap();
    let script = r#"
until_there() { until [ -e $1 ]; do sleep 0.01; done; }
mount -t tmpfs -o size=400k none small
export LOCKKEEPER_URL=sqlite:small/locks.db
"$0" run a -- sh -c 'touch held; while :; do sleep 0.01; done' &
holder=$!
until_there held
"$0" run a -- touch started &
waiter=$!
is_there() { grep -q 'State:.[SRD]' /proc/$waiter/status || exit 9; }
until "$0" who --json a | grep -q '"waiting": *1'; do is_there; done
cat /dev/zero > small/fill
kill -9 $holder
# Until the waiter has tried again and again.
tries() { sed -n 's/syscw: //p' /proc/$waiter/io; }
first=$(tries)
until [ "$(tries)" -gt $((first + 5)) ]; do
  is_there
  sleep 0.01
done
rm small/fill
wait $waiter && until_there started"#;
    let output = rig.contain(&[], script)?;
    assert_eq!(code(&output), 0, "{}", said(&output));
    Ok(())
}

fn no_proc(rig: &mut Rig) -> Outcome {
    let script = r#"mount -t tmpfs none /proc && exec "$0" run a -- touch started"#;
    let output = rig.contain(&[], script)?;
    assert_eq!(code(&output), 71, "{}", said(&output));
    assert!(said(&output).contains("are /proc and"), "{}", said(&output));
    assert!(!rig.exists("started"));
    Ok(())
}

fn blocked(rig: &mut Rig) -> Outcome {
    let start = |args: &[&str], script: &str| {
        // Whoever this thread starts has it from here.
        let before = SigSet::thread_get_mask().unwrap();
        SigSet::all().thread_block().unwrap();
        let run = rig.start(args, script);
        before.thread_set_mask().unwrap();
        run
    };
    // Without the news of its end, it would have ended when its lease is over.
    let run = start(&["--lease", "2m", "a"], "exit 3");
    assert_eq!(run.code(), 3);
    let holder = start(
        &["--lease", "2m", "a"],
        "touch held; while :; do sleep 0.01; done",
    );
    rig.until_file("held");
    let waiter = start(&["a"], "touch started");
    rig.until_waited_for("a", 1);
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.code(), 128 + Signal::TERM.as_raw());
    assert!(!rig.exists("started"));
    drop(holder);
    Ok(())
}
