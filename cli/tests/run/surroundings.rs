//! The environment that `run` is started in: a container, a full disk, the signal mask of its caller.

use lockkeeper_testkit::{RedisServer, cases};
use nix::sys::signal::SigSet;
use rustix::process::Signal;

use crate::rig::{Case, RedisCase, Rig, contains, exits, fails, stderr_of};

pub(crate) const CASES: &[Case] = cases![
    run_works_in_a_pid_namespace,
    boot_id_of_a_container_frees_no_lock,
    clock_of_a_container_frees_no_lock,
    database_file_mounted_without_its_folder_is_refused,
    waiter_survives_a_full_disk,
    command_is_not_started_without_proc,
    signals_blocked_by_the_caller_are_handled,
];
/// A server has a clock of its own.
pub(crate) const ON_REDIS: &[RedisCase] = cases![clock_of_a_container_frees_no_lock_on_a_server];

fn run_works_in_a_pid_namespace(rig: &Rig) {
    let script = r#"
until_there() { until [ -e $1 ]; do sleep 0.05; done; }
"$0" run a -- sh -c 'trap "touch heard" TSTP; touch set; until [ -e done ]; do sleep 0.05; done; exit 3' &
until_there set
kill -TSTP $!
until_there heard
touch done
wait $!
echo $?
"$0" run b -- sh -c 'echo $$ > pid; kill -STOP $$; exit 4' &
until_there pid
until grep -q ') T ' /proc/$(cat pid)/stat; do sleep 0.05; done
kill -CONT $(cat pid)
wait $!
echo $?"#;
    let output = rig.contain(&[], script);
    assert_eq!(stderr_of(&output), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3\n4\n");
}

fn boot_id_of_a_container_frees_no_lock(rig: &Rig) {
    // systemd-nspawn and LXC mount a boot id like this.
    rig.write("boot_id", "7b5c1a52-8f2f-4f6a-9f0c-6d4a4f1d2f11\n");
    let script = r#"mount --bind boot_id /proc/sys/kernel/random/boot_id && exec "$0" run -n a -- touch started"#;
    let holder = rig.hold("a");
    let output = rig.contain(&[], script);
    exits(&output, 75);
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    let output = rig.contain(&[], script);
    exits(&output, 0);
}

fn clock_of_a_container_frees_no_lock(rig: &Rig) {
    with_clock_apart(rig, 78);
}

fn clock_of_a_container_frees_no_lock_on_a_server(rig: &Rig, _: &RedisServer) {
    with_clock_apart(rig, 75);
}

fn with_clock_apart(rig: &Rig, expected: i32) {
    let holder = rig.hold("a");
    let apart = ["--time", "--boottime", "864000"];
    let output = rig.contain(&apart, r#"exec "$0" run -n a -- touch started"#);
    fails(&output, expected);
    assert!(!rig.exists("started"));
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
}

fn database_file_mounted_without_its_folder_is_refused(rig: &Rig) {
    let holder = rig.hold("a");
    rig.write("alone.db", "");
    let script = r#"mount --bind store/locks.db alone.db && exec "$0" run -n --url sqlite:alone.db a -- touch started"#;
    let output = rig.contain(&[], script);
    exits(&output, 78);
    contains(&stderr_of(&output), &["mount its folder"]);
    // With its folder it is the same store.
    std::fs::create_dir(rig.path("whole")).unwrap();
    let script = r#"mount --bind store whole && exec "$0" run -n --url sqlite:whole/locks.db a -- touch started"#;
    let output = rig.contain(&[], script);
    exits(&output, 75);
    assert!(!rig.exists("started"));
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
}

fn waiter_survives_a_full_disk(rig: &Rig) {
    std::fs::create_dir(rig.path("small")).unwrap();
    let script = r#"
until_there() { until [ -e $1 ]; do sleep 0.05; done; }
mount -t tmpfs -o size=400k,mode=700 none small
export LOCKKEEPER_URL=sqlite:small/locks.db
"$0" run a -- sh -c 'touch held; while :; do sleep 0.2; done' &
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
  sleep 0.05
done
rm small/fill
wait $waiter && until_there started"#;
    let output = rig.contain(&[], script);
    exits(&output, 0);
}

fn command_is_not_started_without_proc(rig: &Rig) {
    let script = r#"mount -t tmpfs none /proc && exec "$0" run a -- touch started"#;
    let output = rig.contain(&[], script);
    exits(&output, 71);
    contains(&stderr_of(&output), &["are /proc and"]);
    assert!(!rig.exists("started"));
}

fn signals_blocked_by_the_caller_are_handled(rig: &Rig) {
    let start = |args: &[&str], script: &str| {
        // A process inherits the mask of the thread that starts it.
        let before = SigSet::thread_get_mask().unwrap();
        SigSet::all().thread_block().unwrap();
        let run = rig.start(args, script);
        before.thread_set_mask().unwrap();
        run
    };
    // If CHLD stayed blocked, `run` would find the end of the command only when the lease is over.
    let run = start(&["--lease", "2m", "a"], "exit 3");
    assert_eq!(run.code(), 3);
    let holder = start(
        &["--lease", "2m", "a"],
        "touch held; while :; do sleep 0.2; done",
    );
    rig.until_file("held");
    let waiter = start(&["a"], "touch started");
    rig.until_waited_for("a", 1);
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.code(), 128 + Signal::TERM.as_raw());
    assert!(!rig.exists("started"));
    drop(holder);
}
