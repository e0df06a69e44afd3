//! The lock is lost, or `run` itself is killed or stopped.

use lockkeeper_testkit::cases;
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Case, Rig, code, contains, exits, fails, is_alive, stderr_of};

pub(crate) const CASES: &[Case] = cases![
    end_of_max_hold_ends_the_command_and_is_named,
    killed_run_ends_its_command,
    next_command_starts_when_that_of_a_killed_run_is_gone,
    stopped_run_ends_its_command_in_time,
    run_continued_in_time_keeps_its_lock,
    run_continued_while_its_command_is_ended_reports_the_loss,
    command_that_ended_while_run_was_stopped_keeps_its_status,
    killed_watchdog_is_replaced,
    stopped_watchdog_is_continued,
    #[cfg(target_os = "linux")]
    watchdog_wakes_by_a_clock_that_counts_suspends,
    run_kills_the_group_if_the_watchdog_is_stopped,
    forced_release_ends_the_command,
    forced_release_kills_a_command_that_ignores_term,
    forced_release_with_on_lost_warn_only_warns,
    forced_release_during_hold_at_least_is_reported,
    fixed_lease_ends_the_command,
    run_ends_after_all_processes_of_the_group,
];

/// Short times, with some room for a busy machine.
const SHORT: [&str; 4] = ["--ttl", "9s", "--kill-after", "1s"];
/// Two processes that write their ids; the second is a grandchild that ignores TERM.
pub(crate) const FORKING: &str =
    "echo $$ > first.new; (trap '' TERM; sh -c 'echo $PPID > second.new; mv second.new second'
while :; do sleep 0.2; done) & mv first.new first; until [ -e second ]; do sleep 0.05; done
touch ready; while :; do sleep 0.2; done";
/// The next holder: writes `overlap` if a process of [`FORKING`] still runs. It reads the state of each
/// process once, since one that has ended can be reaped between two reads.
pub(crate) const NEXT: &str = "for file in first second; do
  stat=$(cat /proc/$(cat $file)/stat 2>/dev/null) || continue
  case $stat in *') Z '*|*') X '*) ;; *) echo \"$file: $stat\" >> overlap;; esac
done; touch next";

pub(crate) fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let mut all = SHORT.to_vec();
    all.extend_from_slice(args);
    all
}

pub(crate) fn both(rig: &Rig) -> [Pid; 2] {
    [rig.pid("first"), rig.pid("second")]
}

fn killed_run_ends_its_command(rig: &Rig) {
    let mut run = rig.start(&with(&["a"]), FORKING);
    rig.until_file("ready");
    run.signal(Signal::KILL);
    assert_eq!(run.ended().code(), None);
    for pid in both(rig) {
        rig.until_gone(pid);
    }
}

fn next_command_starts_when_that_of_a_killed_run_is_gone(rig: &Rig) {
    let mut run = rig.start(&with(&["a"]), FORKING);
    rig.until_file("ready");
    let next = rig.start(&with(&["a"]), NEXT);
    rig.until_waited_for("a", 1);
    run.signal(Signal::KILL);
    run.ended();
    assert_eq!(next.code(), 0);
    assert!(!rig.exists("overlap"), "{}", rig.read("overlap"));
}

fn stopped_run_ends_its_command_in_time(rig: &Rig) {
    let run = rig.start(&with(&["a"]), FORKING);
    rig.until_file("ready");
    let next = rig.start(&with(&["a"]), NEXT);
    rig.until_waited_for("a", 1);
    run.signal(Signal::STOP);
    assert_eq!(next.code(), 0);
    assert!(!rig.exists("overlap"), "{}", rig.read("overlap"));
    for pid in both(rig) {
        assert!(!is_alive(pid));
    }
    run.signal(Signal::CONT);
    let output = run.output();
    exits(&output, 79);
    contains(&stderr_of(&output), &["\"a\""]);
}

fn run_continued_in_time_keeps_its_lock(rig: &Rig) {
    let run = rig.start(
        &["a"],
        "touch ready; until [ -e done ]; do sleep 0.05; done",
    );
    rig.until_file("ready");
    run.signal(Signal::STOP);
    rig.write("done", "");
    run.signal(Signal::CONT);
    assert_eq!(run.code(), 0);
}

fn run_continued_while_its_command_is_ended_reports_the_loss(rig: &Rig) {
    let script = "trap 'touch $LOCKKEEPER_NAME.term; exit 0' TERM; touch $LOCKKEEPER_NAME.ready
while :; do sleep 0.2; done";
    // Several, since the renewal of each comes before or after its check of the lock.
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let runs = names.map(|name| {
        let run = rig.start(&["--ttl", "13s", "--kill-after", "5s", name], script);
        rig.until_file(&format!("{name}.ready"));
        run.signal(Signal::STOP);
        run
    });
    for (at, (name, run)) in names.into_iter().zip(runs).enumerate() {
        rig.until_file(&format!("{name}.term"));
        // Its replacement has not begun to end the command. A watchdog that is done ends by itself.
        if at % 2 == 0
            && let Some(watchdog) = watchdog_of(run.pid())
        {
            let _ = kill_process(watchdog, Signal::KILL);
        }
        // Before the lease is over.
        run.signal(Signal::CONT);
        let output = run.output();
        assert_eq!(code(&output), 79, "{name}: {}", stderr_of(&output));
        contains(&stderr_of(&output), &[name]);
    }
}

fn command_that_ended_while_run_was_stopped_keeps_its_status(rig: &Rig) {
    let run = rig.start(
        &["--ttl", "20s", "--kill-after", "8s", "a"],
        "touch ready; until [ -e done ]; do sleep 0.05; done; touch over",
    );
    rig.until_file("ready");
    run.signal(Signal::STOP);
    rig.write("done", "");
    rig.until_file("over");
    // Past the time at which a running command would get TERM.
    rig.until_who("the lease grows old", "a", |held| {
        held["remaining_ms"].as_u64() < Some(8_900)
    });
    run.signal(Signal::CONT);
    let output = run.output();
    exits(&output, 0);
}

pub(crate) fn watchdog_of(run: Pid) -> Option<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found = pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1));
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_watchdog = String::from_utf8_lossy(&line).contains("__watchdog");
        parent == Some(run.to_string().as_str()) && is_watchdog
    });
    found.next().and_then(Pid::from_raw)
}

fn killed_watchdog_is_replaced(rig: &Rig) {
    let mut run = rig.start(&with(&["a"]), FORKING);
    rig.until_file("ready");
    let first = watchdog_of(run.pid()).unwrap();
    kill_process(first, Signal::KILL).unwrap();
    rig.until("there is another", || {
        watchdog_of(run.pid()).is_some_and(|now| now != first)
    });
    assert!(run.is_running());
    run.signal(Signal::KILL);
    run.ended();
    for pid in both(rig) {
        rig.until_gone(pid);
    }
}

fn stopped_watchdog_is_continued(rig: &Rig) {
    let lease = ["--lease", "15s", "--kill-after", "1s", "a"];
    let run = rig.start(&lease, "touch ready; while :; do sleep 0.2; done");
    rig.until_file("ready");
    kill_process(watchdog_of(run.pid()).unwrap(), Signal::STOP).unwrap();
    let output = run.output();
    exits(&output, 79);
}

#[cfg(target_os = "linux")]
fn watchdog_wakes_by_a_clock_that_counts_suspends(rig: &Rig) {
    let run = rig.start(
        &["--lease", "1h", "a"],
        "touch ready; while :; do sleep 0.2; done",
    );
    rig.until_file("ready");
    let watchdog = watchdog_of(run.pid()).unwrap();
    // A timer of CLOCK_BOOTTIME that fires at the time of TERM: the hour less 5 s and the margin of
    // 1 s. See proc_pid_fdinfo(5).
    let is_armed = || {
        let files = std::fs::read_dir(format!("/proc/{watchdog}/fdinfo")).unwrap();
        files.flatten().any(|file| {
            let timer = std::fs::read_to_string(file.path()).unwrap_or_default();
            let field = |name| timer.lines().find_map(|line| line.strip_prefix(name));
            let left = field("it_value: (").and_then(|left| left.split(',').next());
            let left = left.and_then(|left| left.parse::<u64>().ok());
            field("clockid: ") == Some("7")
                && left.is_some_and(|left| (3_000..3_594).contains(&left))
        })
    };
    rig.until("the timer is armed", is_armed);
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 143);
}

fn run_kills_the_group_if_the_watchdog_is_stopped(rig: &Rig) {
    let script = "(trap '' TERM; sh -c 'echo $PPID > second.new; mv second.new second'
while [ -e second ]; do sleep 0.05; done) & until [ -e second ]; do sleep 0.05; done
trap 'touch term; exit 0' TERM; touch ready; while :; do sleep 0.2; done";
    let run = rig.start(&["--lease", "20s", "--kill-after", "8s", "a"], script);
    rig.until_file("ready");
    rig.until_file("term");
    kill_process(watchdog_of(run.pid()).unwrap(), Signal::STOP).unwrap();
    assert_eq!(run.code(), 79);
    assert!(!is_alive(rig.pid("second")));
}

pub(crate) fn force(rig: &Rig) {
    let output = rig
        .lockkeeper(&["unlock", "--force", "--yes", "a"])
        .output()
        .unwrap();
    exits(&output, 0);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    contains(&shown, &["Freed", "is held by"]);
}

fn forced_release_ends_the_command(rig: &Rig) {
    let script = "trap 'touch term; exit 0' TERM; echo $LOCKKEEPER_TOKEN > token; touch ready; while :; do sleep 0.2; done";
    let run = rig.start(&["--ttl", "24s", "--kill-after", "10s", "a"], script);
    rig.until_file("ready");
    let token = rig.read("token").trim().parse::<u64>().unwrap();
    force(rig);
    let next = rig.run(&["-n", "a"], "echo $LOCKKEEPER_TOKEN");
    let new = String::from_utf8(next.stdout)
        .unwrap()
        .trim()
        .parse::<u64>()
        .unwrap();
    assert!(new > token, "{token}, {new}");
    let output = run.output();
    // The command exits with 0, and `run` still with 79.
    exits(&output, 79);
    // The shell may write lines, too.
    let lines = stderr_of(&output);
    let ours = lines
        .lines()
        .filter(|line| line.starts_with("lockkeeper: "));
    assert_eq!(ours.count(), 1, "{lines}");
    assert!(rig.exists("term"));
}

fn forced_release_kills_a_command_that_ignores_term(rig: &Rig) {
    let run = rig.start(&with(&["a"]), FORKING);
    rig.until_file("ready");
    force(rig);
    // On this host the next `run` waits for the end of the command.
    assert_eq!(code(&rig.run(&with(&["-n", "a"]), NEXT)), 0);
    assert!(!rig.exists("overlap"), "{}", rig.read("overlap"));
    assert_eq!(run.code(), 79);
    for pid in both(rig) {
        assert!(!is_alive(pid), "run ended before its command's group did");
    }
}

fn forced_release_with_on_lost_warn_only_warns(rig: &Rig) {
    let script = "touch ready; until [ -e done ]; do sleep 0.05; done; exit 8";
    let mut run = rig.start(&with(&["--on-lost", "warn", "a"]), script);
    rig.until_file("ready");
    force(rig);
    // `run` learns of the loss at the next renewal, so wait for the warning.
    let mut stderr = run.0.as_mut().unwrap().stderr.take().unwrap();
    let mut first = [0; 1];
    std::io::Read::read_exact(&mut stderr, &mut first).unwrap();
    assert!(run.is_running());
    rig.write("done", "");
    assert_eq!(run.code(), 8);
}

fn forced_release_during_hold_at_least_is_reported(rig: &Rig) {
    let run = rig.start(
        &with(&["--hold-at-least", "1h", "a"]),
        "echo $$ > new; mv new pid; exit 3",
    );
    rig.until_file("pid");
    rig.until_reaped(rig.pid("pid"));
    force(rig);
    let output = run.output();
    contains(&fails(&output, 3), &["the rest of --hold-at-least"]);
}

fn fixed_lease_ends_the_command(rig: &Rig) {
    // Long enough for both processes to write their ids on a busy machine.
    let args = ["--lease", "8s", "--kill-after", "1s", "a"];
    let output = rig.start(&args, FORKING).output();
    exits(&output, 79);
    contains(&stderr_of(&output), &["--lease is over"]);
    for pid in both(rig) {
        assert!(!is_alive(pid));
    }
    assert_eq!(code(&rig.run(&["-n", "a"], "true")), 0, "it was released");
    // A command that ends in time keeps its status.
    assert_eq!(code(&rig.run(&args, "exit 3")), 3);
}

fn run_ends_after_all_processes_of_the_group(rig: &Rig) {
    // The end of each process is an event for `run`.
    let script = "for i in $(seq 200); do
  (trap '' TERM; exec sleep 60 > /dev/null 2>&1) & echo $! >> pids
done; wait";
    let args = ["--lease", "6s", "--kill-after", "1s", "a"];
    let output = rig.start(&args, script).output();
    exits(&output, 79);
    for pid in rig.read("pids").lines() {
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        assert!(!is_alive(pid), "run ended before {pid} did");
    }
}

fn end_of_max_hold_ends_the_command_and_is_named(rig: &Rig) {
    for (on_lost, effect) in [
        ("term", "its command is ended"),
        ("warn", "its command goes on without it"),
    ] {
        let args = ["--ttl", "6s", "--on-lost", on_lost, "a"];
        let mut run = rig.run_command(&args, "sleep 10; exit 3");
        let output = run.env("LOCKKEEPER_MAX_HOLD", "3s").output().unwrap();
        let (line, is_ended) = (stderr_of(&output), on_lost == "term");
        assert_eq!(code(&output), if is_ended { 79 } else { 3 }, "{line}");
        let why = "`max_hold` of 3s is over; ";
        assert!(line.contains(&format!("{why}{effect}")), "{line}");
    }
    let mut run = rig.run_command(&["--hold-at-least", "1m", "a"], "touch started");
    let output = run.env("LOCKKEEPER_MAX_HOLD", "30s").output().unwrap();
    let line = stderr_of(&output);
    assert_eq!(code(&output), 64, "{line}");
    contains(&line, &["longer than the `max_hold` of 30s"]);
    assert!(!rig.exists("started"));
}
