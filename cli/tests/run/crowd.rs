//! Many runs at once, and one after the other.

use std::fs;
use std::process::Stdio;
use std::thread;

use rustix::process::Signal;

use crate::claims::{claim_of, take};
use crate::rig::{Case, Outcome, Rig, Running, Server, TIMEOUT, code, stderr_of};

pub(crate) const CASES: &[Case] = &[
    ("forty_at_once_count_to_forty", forty_at_once),
    ("orphans_of_the_command_are_reaped", orphans),
];
pub(crate) const ALONE: &[Case] = &[("many_runs_leave_nothing_behind", many_runs)];

fn forty_at_once(rig: &mut Rig) -> Outcome {
    rig.write("count", "0\n");
    let increment = "read n < count; echo $((n + 1)) > count";
    let start = |_| {
        let mut command = rig.run_command(&["counter"], increment);
        // Forty log in at once, on a machine that may be busy.
        rig.set_timeouts(&mut command, TIMEOUT);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().unwrap()))
    };
    let runs: Vec<_> = (0..40).map(start).collect();
    for run in runs {
        let output = run.output();
        assert_eq!(code(&output), 0, "{}", stderr_of(&output));
    }
    assert_eq!(rig.read("count").trim(), "40");
    Ok(())
}

fn many_runs(rig: &mut Rig) -> Outcome {
    let holder = rig.hold("loop-0");
    let claim = claim_of(holder.pid());
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    // Two threads for each name: most runs find the lock free, some wait.
    let rig = &*rig;
    thread::scope(|scope| {
        for index in 0..4 {
            scope.spawn(move || {
                for _ in 0..25 {
                    let name = format!("loop-{}", index / 2);
                    let output = rig.lockkeeper(&["run", &name, "--", "true"]).output();
                    let output = output.unwrap();
                    assert_eq!(code(&output), 0, "{}", stderr_of(&output));
                    assert_eq!(stderr_of(&output), "");
                }
            });
        }
    });
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
    match rig.server.as_deref() {
        None => {
            let files = fs::read_dir(rig.path("store")).unwrap();
            for file in files {
                let name = file.unwrap().file_name();
                let name = name.to_string_lossy();
                assert!(
                    matches!(&*name, "locks.db" | "locks.db-wal" | "locks.db-shm"),
                    "{name}"
                );
            }
        }
        Some(Server::Redis(server)) => {
            let mut client = server.client().unwrap();
            let pattern = format!("lockkeeper:{{{}[:}}]*", rig.namespace);
            let left = client.command(&["KEYS", &pattern]).unwrap();
            let left: Vec<_> = left.items().iter().map(|key| key.text().unwrap()).collect();
            // The last epoch of all names stays.
            assert_eq!(left, [format!("lockkeeper:{{{}}}:epoch", rig.namespace)]);
        }
        Some(Server::MySql(server)) => {
            assert_eq!(server.held().unwrap(), []);
            // The server notices the end of a session with a delay.
            rig.until("all sessions have ended", || {
                server.sessions().unwrap().is_empty()
            });
        }
        // A lock is a session's, so none is left either.
        Some(Server::Postgres(server)) => {
            rig.until("all sessions have ended", || {
                server.sessions().unwrap().is_empty()
            });
        }
        Some(Server::Etcd(server)) => {
            let prefix = format!("lockkeeper/{}/", rig.namespace);
            let left = server.keys(&prefix).unwrap().into_iter().map(|it| it.key);
            // What a namespace has once.
            assert_eq!(left.collect::<Vec<_>>(), [format!("{prefix}base")]);
        }
    }
    Ok(())
}

fn orphans(rig: &mut Rig) -> Outcome {
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
        for file in ["command", "orphan", "go"] {
            fs::remove_file(rig.path(file)).unwrap();
        }
    }
    Ok(())
}
