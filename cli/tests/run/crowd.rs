//! Many runs at once, one after the other, and with many children.

use std::fs;
use std::thread;

use lockkeeper_testkit::cases;
use rustix::process::Signal;

use crate::claims::{claim_of, take};
use crate::rig::{Case, Rig, exits, stderr_of};

pub(crate) const CASES: &[Case] = cases![
    many_runs_exclude_each_other_and_leave_nothing,
    orphans_of_the_command_are_reaped,
];

fn many_runs_exclude_each_other_and_leave_nothing(rig: &Rig) {
    let holder = rig.hold("loop-0");
    let claim = claim_of(holder.pid());
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    for name in ["loop-0", "loop-1"] {
        rig.write(name, "0\n");
    }
    // Four threads for each name, so that most runs wait.
    let increment = "read n < $LOCKKEEPER_NAME; echo $((n + 1)) > $LOCKKEEPER_NAME";
    thread::scope(|scope| {
        for index in 0..8 {
            scope.spawn(move || {
                for _ in 0..5 {
                    let output = rig.run(&[&format!("loop-{}", index % 2)], increment);
                    exits(&output, 0);
                    assert_eq!(stderr_of(&output), "");
                }
            });
        }
    });
    for name in ["loop-0", "loop-1"] {
        assert_eq!(rig.read(name), "20\n");
    }
    let of_this_case = |entry: &fs::DirEntry| {
        let cwd = fs::read_link(entry.path().join("cwd"));
        cwd.is_ok_and(|cwd| cwd == rig.folder.path())
    };
    let left: Vec<_> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(of_this_case)
        .collect();
    assert!(left.is_empty(), "{left:?}");
    // A watchdog does not run in the folder of the case, but it holds the claim.
    assert!(take(&claim).is_some(), "a watchdog is left");
    for file in fs::read_dir(rig.path("store")).unwrap() {
        let name = file.unwrap().file_name();
        let name = name.to_string_lossy();
        let is_of_store = matches!(&*name, "locks.db" | "locks.db-wal" | "locks.db-shm");
        assert!(is_of_store, "{name}");
    }
}

fn orphans_of_the_command_are_reaped(rig: &Rig) {
    let leave = "echo $$ > command
(sh -c 'echo $$ > new; mv new orphan; until [ -e go ]; do sleep 0.05; done' &)
until [ -e orphan ]; do sleep 0.05; done";
    let is_there = |pid| fs::exists(format!("/proc/{pid}")).unwrap();
    // While the command runs, and while its lock is kept after it.
    for (rest, status) in [("; while :; do sleep 0.2; done", 143), ("", 0)] {
        let run = rig.start(&["--hold-at-least", "1h", "a"], &format!("{leave}{rest}"));
        rig.until_file("orphan");
        let (command, orphan) = (rig.pid("command"), rig.pid("orphan"));
        if rest.is_empty() {
            rig.until("the command is gone", || !is_there(command));
        }
        rig.write("go", "");
        rig.until("the orphan is gone", || !is_there(orphan));
        run.signal(Signal::TERM);
        assert_eq!(run.code(), status);
        rig.remove(&["command", "orphan", "go"]);
    }
}
