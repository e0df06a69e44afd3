//! Every signal, while the command runs and while the lock is waited for.

use std::os::unix::process::CommandExt;
use std::process::Command;

use lockkeeper_testkit::cases;
use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Case, Rig, Running, code, contains, exits, is_alive, stderr_of};

pub(crate) const CASES: &[Case] = cases![
    signals_end_the_command,
    signals_reach_the_whole_group,
    command_that_ignores_term_keeps_its_lock,
    signals_end_the_wait,
    second_signal_ends_a_release_that_hangs,
    other_signals_do_not_end_the_wait,
    tstp_does_not_stop_a_service,
    stopped_command_keeps_its_lock,
    hup_stays_ignored_under_nohup,
    signals_ignored_from_the_start_stay_ignored,
];

const ALL: [Signal; 6] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

fn signals_end_the_command(rig: &Rig) {
    for signal in ALL {
        let name = format!("ready-{}", signal.as_raw());
        let run = rig.start(
            &["a"],
            &format!("ulimit -c 0; touch {name}; while :; do sleep 0.2; done"),
        );
        rig.until_file(&name);
        run.signal(signal);
        let output = run.output();
        exits(&output, 128 + signal.as_raw());
        assert_eq!(code(&rig.run(&["-n", "a"], "true")), 0, "it was released");
    }
}

fn signals_reach_the_whole_group(rig: &Rig) {
    // A second process of the group gets the signal, too; both write a file before they end.
    let script = r#"
for s in TERM INT HUP QUIT USR1 USR2; do trap "echo $s > first; exit 9" $s; done
sh -c 'for s in TERM INT HUP QUIT USR1 USR2; do trap "echo $s > second; exit" $s; done
  touch ready; while :; do sleep 0.2; done'
:"#;
    for (signal, name) in ALL
        .into_iter()
        .zip(["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"])
    {
        let run = rig.start(&["a"], script);
        rig.until_file("ready");
        run.signal(signal);
        assert_eq!(run.code(), 9);
        assert_eq!(rig.read("first").trim(), name);
        assert_eq!(rig.read("second").trim(), name);
        rig.remove(&["first", "second", "ready"]);
    }
}

fn command_that_ignores_term_keeps_its_lock(rig: &Rig) {
    let mut run = rig.start(
        &["a"],
        "trap 'touch heard' TERM; touch ready; until [ -e done ]; do sleep 0.05; done; exit 4",
    );
    rig.until_file("ready");
    run.signal(Signal::TERM);
    rig.until_file("heard");
    assert_eq!(code(&rig.run(&["-n", "a"], "touch overlap")), 75);
    assert!(run.is_running() && !rig.exists("overlap"));
    rig.write("done", "");
    assert_eq!(run.code(), 4);
}

fn signals_end_the_wait(rig: &Rig) {
    let holder = rig.hold("a");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let waiter = rig.start(&["a"], "touch started");
        rig.until_waited_for("a", 1);
        waiter.signal(signal);
        assert_eq!(waiter.code(), 128 + signal.as_raw());
        rig.until_waited_for("a", 0);
    }
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    assert!(!rig.exists("started"));
}

fn second_signal_ends_a_release_that_hangs(rig: &Rig) {
    let run = rig.start(
        &["a"],
        "touch held; until [ -e release ]; do sleep 0.05; done; echo $$ > ended",
    );
    rig.until_file("held");
    let other = rusqlite::Connection::open(rig.path("store/locks.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    rig.write("release", "");
    rig.until("the command has ended", || {
        rig.exists("ended") && !rig.read("ended").is_empty()
    });
    rig.until_reaped(rig.pid("ended"));
    end_by_second_signal(rig, run);
}

/// Sends TERM until a second one ends `run`, while the store does not answer the release.
pub(crate) fn end_by_second_signal(rig: &Rig, mut run: Running) {
    rig.until("the second one ends it", || {
        // The time between two signals: `timeout` sends two at once, which count as one.
        std::thread::sleep(std::time::Duration::from_millis(50));
        run.signal(Signal::TERM);
        !run.is_running()
    });
    let output = run.output();
    let text = stderr_of(&output);
    assert_eq!(code(&output), 143, "{text}");
    contains(&text, &["a second signal"]);
}

fn other_signals_do_not_end_the_wait(rig: &Rig) {
    let holder = rig.hold("a");
    // The process gets a group of its own, like a job of a shell. In an orphaned group, as that of
    // these tests may be, TSTP stops no process.
    let mut job = rig.run_command(&["a"], "touch started");
    let mut waiter = Running(Some(job.process_group(0).spawn().unwrap()));
    rig.until_waited_for("a", 1);
    waiter.signal(Signal::USR1);
    waiter.signal(Signal::USR2);
    // TSTP stops a waiting `run`, and CONT continues it.
    waiter.signal(Signal::TSTP);
    rig.until("it is stopped", || state(waiter.pid()) == 'T');
    waiter.signal(Signal::CONT);
    rig.until("it runs again", || state(waiter.pid()) != 'T');
    assert!(waiter.is_running() && !rig.exists("started"));
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    assert_eq!(waiter.code(), 0);
    assert!(rig.exists("started"));
}

fn tstp_does_not_stop_a_service(rig: &Rig) {
    // It leads a session, like a process that an init or a container starts: no process would continue
    // it.
    let start = |name: &str, script: &str| {
        let run = rig.run_command(&[name], script);
        let mut service = rig.leader();
        service.arg(run.get_program()).args(run.get_args());
        Running(Some(service.spawn().unwrap()))
    };
    let work = "until [ -e done ]; do sleep 0.05; done";
    let first = start("a", &format!("touch ready; {work}; exit 3"));
    rig.until_file("ready");
    let second = start("a", "exit 4");
    rig.until_waited_for("a", 1);
    let handles = format!("trap 'touch heard' TSTP; touch set; {work}; exit 5");
    let third = start("b", &handles);
    rig.until_file("set");
    for service in [&first, &second, &third] {
        service.signal(Signal::TSTP);
    }
    rig.until_file("heard");
    rig.write("done", "");
    assert_eq!(first.code(), 3);
    assert_eq!(second.code(), 4);
    assert_eq!(third.code(), 5);
}

fn state(pid: rustix::process::Pid) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    rest.chars().next().unwrap()
}

fn stopped_command_keeps_its_lock(rig: &Rig) {
    // Without a terminal no process would continue a stopped `run`, so `run` goes on renewing.
    let script = "echo $$ > pid; touch ready; until [ -e done ]; do sleep 0.05; done; exit 5";
    // A renewal is due after 3 s.
    let renewed = 7_500;
    let mut run = rig.start(&["--ttl", "9s", "--kill-after", "100ms", "a"], script);
    rig.until_file("ready");
    let command = rig.pid("pid");
    rustix::process::kill_process(command, Signal::STOP).unwrap();
    rig.until("it is stopped", || state(command) == 'T');
    // Until the lock was renewed more than once, which is due after a third of the ttl.
    let token = rig.who("a")["token"].clone();
    for _ in 0..2 {
        let left = |held: &Value| held["remaining_ms"].as_u64();
        rig.until_who("the lease grows old", "a", |held| {
            left(held) < Some(renewed)
        });
        rig.until_who("and is renewed", "a", |held| left(held) > Some(renewed));
    }
    assert_eq!(rig.who("a")["token"], token);
    assert!(run.is_running() && is_alive(command));
    rig.write("done", "");
    rustix::process::kill_process(command, Signal::CONT).unwrap();
    assert_eq!(run.code(), 5);
}

fn hup_stays_ignored_under_nohup(rig: &Rig) {
    let mut command = Command::new("nohup");
    rig.set_environment(&mut command);
    command
        .arg(env!("CARGO_BIN_EXE_lockkeeper"))
        .args(["run", "a", "--", "sh", "-c"])
        .arg("touch ready; until [ -e done ]; do sleep 0.05; done; exit 6")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let mut run = Running(Some(command.spawn().unwrap()));
    rig.until_file("ready");
    run.signal(Signal::HUP);
    run.signal(Signal::USR1);
    // USR1 ends the command. If HUP were not ignored, it would have ended the command before.
    assert_eq!(run.ended().code(), Some(128 + Signal::USR1.as_raw()));
}

fn signals_ignored_from_the_start_stay_ignored(rig: &Rig) {
    // A shell ignores INT and QUIT in what a script starts with `&`.
    let script = "trap '' INT QUIT TERM TSTP USR2; exec \"$0\" run a -- sh -c 'touch ready; while :; do sleep 0.2; done'";
    let mut command = Command::new("sh");
    rig.set_environment(&mut command);
    command.args(["-c", script, env!("CARGO_BIN_EXE_lockkeeper")]);
    let mut run = Running(Some(command.spawn().unwrap()));
    rig.until_file("ready");
    let ignored = [
        Signal::INT,
        Signal::QUIT,
        Signal::TERM,
        Signal::TSTP,
        Signal::USR2,
    ];
    for signal in ignored.into_iter().chain([Signal::USR1]) {
        run.signal(signal);
    }
    // As above.
    assert_eq!(run.ended().code(), Some(128 + Signal::USR1.as_raw()));
}
