//! `--timeout`, `--stop-after` and `--status-file`: how long the command may run, and by whom the exit status is.

use lockkeeper_testkit::cases;
use rustix::process::{Signal, kill_process};

use crate::loss::{FORKING, force};
use crate::rig::{Case, Rig, code, contains, exits, is_alive, stderr_of};

pub(crate) const CASES: &[Case] = cases![
    timeout_ends_the_command_with_124,
    timeout_kills_a_group_that_ignores_term,
    stop_after_kills_a_command_that_is_asked_to_end,
    stop_after_kills_a_command_of_a_lost_lock,
    what_is_left_of_a_command_is_watched,
    status_file_tells_our_status_from_the_commands,
];

/// A command that ignores TERM, as its child does, which writes its id.
const STUBBORN: &str = "trap '' TERM; (sh -c 'echo $PPID > child.new; mv child.new child'
while :; do sleep 0.2; done) & while :; do sleep 0.2; done";

fn timeout_ends_the_command_with_124(rig: &Rig) {
    let script = "trap 'touch term; exit 0' TERM; while :; do sleep 0.05; done";
    let output = rig.start(&["--timeout", "0.2", "a"], script).output();
    exits(&output, 124);
    contains(&stderr_of(&output), &["--timeout of 200ms"]);
    assert!(rig.exists("term"));
    assert!(rig.who("a").is_null());
    let output = rig.run(&["--timeout", "1h", "a"], "exit 3");
    exits(&output, 3);
}

fn timeout_kills_a_group_that_ignores_term(rig: &Rig) {
    let args = ["--timeout", "2s", "--stop-after", "100ms", "a"];
    let run = rig.start(&args, STUBBORN);
    rig.until_file("child");
    assert_eq!(run.code(), 124);
    assert!(!is_alive(rig.pid("child")));
}

fn stop_after_kills_a_command_that_is_asked_to_end(rig: &Rig) {
    let run = rig.start(&["--stop-after", "100ms", "a"], STUBBORN);
    rig.until_file("child");
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 137);
    assert!(!is_alive(rig.pid("child")));
    // A command that ends in time keeps its status.
    let script = "trap 'exit 4' TERM; touch ready; while :; do sleep 0.05; done";
    let run = rig.start(&["--stop-after", "1h", "a"], script);
    rig.until_file("ready");
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 4);
}

fn stop_after_kills_a_command_of_a_lost_lock(rig: &Rig) {
    let args = [
        "--ttl",
        "1h",
        "--kill-after",
        "20m",
        "--stop-after",
        "0.1",
        "a",
    ];
    let run = rig.start(&args, STUBBORN);
    rig.until_file("child");
    force(rig);
    assert_eq!(run.code(), 79);
    assert!(!is_alive(rig.pid("child")));
}

/// Its own process ends at the first signal, and its child does not.
fn what_is_left_of_a_command_is_watched(rig: &Rig) {
    for more in [&["--stop-after", "1h", "a"][..], &["a"]] {
        let args = [&["--ttl", "1h", "--kill-after", "100ms"], more].concat();
        let run = rig.start(&args, FORKING);
        rig.until_file("ready");
        run.signal(Signal::TERM);
        rig.until_reaped(rig.pid("first"));
        force(rig);
        assert_eq!(run.code(), 79);
        assert!(!is_alive(rig.pid("second")));

        rig.remove(&["first", "second", "ready"]);
        // A signal that only the command's own process gets counts, too.
        let script = FORKING.replace("trap '' TERM", "trap '' TERM; trap exit HUP");
        let run = rig.start(&args, &script);
        rig.until_file("ready");
        let first = rig.pid("first");
        kill_process(first, Signal::TERM).unwrap();
        rig.until_reaped(first);
        run.signal(Signal::HUP);
        assert_eq!(run.code(), 143);
        assert!(!is_alive(rig.pid("second")));
        rig.remove(&["first", "second", "ready"]);
    }
}

fn status_file_tells_our_status_from_the_commands(rig: &Rig) {
    let run = |args: &[&str], script: &str| {
        rig.write("status", "old");
        let args = [args, &["--status-file", "status", "a"]].concat();
        let status = code(&rig.run(&args, script));
        (status, rig.read("status"))
    };
    let of = |by: &str, status: i32| (status, format!("{by} {status}\n"));
    assert_eq!(run(&[], "[ -s status ] || exit 75"), of("command", 75));
    assert_eq!(run(&[], "kill -9 $$"), of("command", 137));
    assert_eq!(run(&[], "exit 127"), of("command", 127));
    let stuck = "while :; do sleep 0.05; done";
    assert_eq!(run(&["--timeout", "0.1"], stuck), of("lockkeeper", 124));
    assert_eq!(
        run(&["--slots", "3", "--url", "memory:"], ""),
        of("lockkeeper", 78)
    );
    let holder = rig.hold("a");
    assert_eq!(run(&["-n"], ""), of("lockkeeper", 75));
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    let missing = [
        "run",
        "--status-file",
        "status",
        "a",
        "--",
        "no-such-command",
    ];
    exits(&rig.lockkeeper(&missing).output().unwrap(), 127);
    assert_eq!(rig.read("status"), "lockkeeper 127\n");
    let output = rig.run(&["--status-file", "/nowhere/status", "a"], "touch started");
    exits(&output, 71);
    assert!(!rig.exists("started"));
}
