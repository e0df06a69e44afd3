//! The store is out of reach when `run` starts.

use std::fs::File;
use std::process::{Command, Stdio};

use lockkeeper_testkit::{RedisServer, cases};
use rustix::process::Signal;

use crate::rig::{Case, RedisCase, Rig, Running, code, contains, exits, stderr_of};

pub(crate) const CASES: &[Case] = cases![
    wait_for_the_store_ends_with_69,
    fallback_is_opened_when_the_wait_is_over,
    fallback_is_checked_before_the_wait,
];
pub(crate) const ON_REDIS: &[RedisCase] = cases![store_may_come_up_within_the_wait,];

const NOWHERE: &str = "redis://127.0.0.1:1/";

/// Starts a `run -v --wait WAIT` whose messages are in the file `WAIT`, and waits until it has found no
/// store.
fn start(rig: &Rig, wait: &str, change: impl Fn(&mut Command)) -> Running {
    start_with(rig, wait, &["--wait", wait], change)
}

fn start_with(rig: &Rig, name: &str, args: &[&str], change: impl Fn(&mut Command)) -> Running {
    let script = format!("touch started-{name}");
    let mut command = rig.run_command(&[&["-v"], args, &["a"]].concat(), &script);
    change(&mut command);
    let messages = File::create(rig.path(name)).unwrap();
    let run = Running(Some(command.stderr(messages).spawn().unwrap()));
    rig.until("the outage is reported", || {
        rig.read(name).contains("tries again")
    });
    run
}

fn store_may_come_up_within_the_wait(rig: &Rig, server: &RedisServer) {
    server.kill();
    let [limited, endless] = ["10m", "forever"].map(|wait| start(rig, wait, |_| {}));
    let keyed = start_with(rig, "key", &[], |command| {
        command.env("LOCKKEEPER_OPEN_WAIT", "10m");
    });
    let interrupted = start(rig, "9m", |_| {});
    interrupted.signal(Signal::TERM);
    assert_eq!(interrupted.code(), 143);
    server.restart().unwrap();
    for (run, name) in [(limited, "10m"), (endless, "forever"), (keyed, "key")] {
        assert_eq!(run.code(), 0);
        assert!(rig.exists(&format!("started-{name}")));
    }
    assert!(!rig.exists("started-9m"));
    // What is left of --wait is for the lock.
    let holder = rig.hold("a");
    assert_eq!(code(&rig.run(&["--wait", "50ms", "a"], "true")), 75);
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
}

fn wait_for_the_store_ends_with_69(rig: &Rig) {
    let output = rig.run(&["-v", "--wait", "3s", "--url", NOWHERE, "a"], "true");
    let lines = stderr_of(&output);
    assert_eq!(code(&output), 69, "{lines}");
    assert_eq!(lines.lines().count(), 2, "{lines}");
    contains(&lines, &["for the last", "refused"]);
    let nowhere = "redis://127.0.0.1:1/?open_wait=10m";
    assert_eq!(code(&rig.run(&["-n", "--url", nowhere, "a"], "true")), 69);
    let mut command = rig.lockkeeper(&["who", "--url", nowhere]);
    assert_eq!(code(&command.output().unwrap()), 69);
}

fn with_fallback(command: &mut Command, fallback: &str) {
    command.env("LOCKKEEPER_URL", NOWHERE);
    command.env("LOCKKEEPER_FALLBACK", fallback);
}

fn fallback_is_opened_when_the_wait_is_over(rig: &Rig) {
    let fell_back = |name: &str| {
        rig.read(name)
            .contains("does not exclude holders on redis:")
    };
    let brief = start(rig, "3s", |command| with_fallback(command, rig.url()));
    assert_eq!(brief.code(), 0);
    assert!(fell_back("3s"), "{}", rig.read("3s"));
    let endless = start(rig, "forever", |command| with_fallback(command, rig.url()));
    endless.signal(Signal::TERM);
    assert_eq!(endless.code(), 143);
    assert!(!fell_back("forever"), "{}", rig.read("forever"));
    assert!(rig.exists("started-3s") && !rig.exists("started-forever"));
    // A ticket of the fallback would be refused where the first store answers.
    let mut acquire = rig.lockkeeper(&["acquire", "--wait", "0s", "a"]);
    with_fallback(&mut acquire, rig.url());
    exits(&acquire.output().unwrap(), 69);
}

fn fallback_is_checked_before_the_wait(rig: &Rig) {
    let mut command = rig.run_command(&["--wait", "forever", "a"], "true");
    with_fallback(&mut command, "redis://127.0.0.1/?tll=5s");
    let command = command.stderr(Stdio::piped());
    let output = Running(Some(command.spawn().unwrap())).output();
    exits(&output, 78);
    contains(&stderr_of(&output), &["`tll`"]);
}
