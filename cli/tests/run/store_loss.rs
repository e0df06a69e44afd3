//! The store is killed, or loses its data.

use lockkeeper_testkit::{RedisServer, cases};

use crate::loss::{FORKING, both, with};
use crate::rig::{Case, RedisCase, Rig, code, fails, is_alive, stderr_of};

pub(crate) const CASES: &[Case] = cases![file_that_is_deleted_ends_the_command,];
pub(crate) const ON_REDIS: &[RedisCase] = cases![
    killed_store_ends_the_command,
    killed_store_ends_the_wait,
    wait_without_bound_survives_a_restart_of_the_store,
];

fn killed_store_ends_the_command(rig: &Rig, server: &RedisServer) {
    let run = rig.start(&with(&["-v", "a"]), FORKING);
    rig.until_file("ready");
    server.kill();
    let output = run.output();
    let text = stderr_of(&output);
    assert_eq!(code(&output), 79, "{text}");
    assert!(!text.contains("suspended"), "{text}");
    let mut failures: Vec<_> = text
        .lines()
        .filter(|line| line.contains("tries again"))
        .collect();
    let all = failures.len();
    failures.dedup();
    assert_eq!(failures.len(), all, "{text}");
    for pid in both(rig) {
        assert!(!is_alive(pid));
    }
}

fn killed_store_ends_the_wait(rig: &Rig, server: &RedisServer) {
    let holder = rig.hold("a");
    // Until the end of its wait, it has to be queued, and the server killed.
    let waiter = rig.start(&["--wait", "20s", "a"], "touch started");
    rig.until_waited_for("a", 1);
    server.kill();
    fails(&waiter.output(), 69);
    assert!(!rig.exists("started"));
    rig.write("release", "");
    // The release gets no reply; or the end of the server has ended the holder's session, and the lock
    // is lost.
    let status = holder.code();
    assert!(status == 0 || status == 79, "{status}");
}

fn wait_without_bound_survives_a_restart_of_the_store(rig: &Rig, server: &RedisServer) {
    let holder = rig.hold("a");
    let waiter = rig.start(&["a"], "exit 3");
    rig.until_waited_for("a", 1);
    server.kill();
    // Until another `run` has found out that the store is gone.
    assert_eq!(code(&rig.run(&["--wait", "1s", "b"], "true")), 69);
    server.restart().unwrap();
    // The waiter is granted the lock, which the restarted store does not know, and waits for the end of
    // the holder's command.
    rig.write("release", "");
    assert_eq!(waiter.code(), 3);
    assert_eq!(holder.code(), 79);
}

fn file_that_is_deleted_ends_the_command(rig: &Rig) {
    for files in [
        &["locks.db", "locks.db-wal", "locks.db-shm"][..],
        &["locks.db-wal", "locks.db-shm"],
    ] {
        // The next renewal finds that the lock is lost, and the command is ended.
        let run = rig.start(&with(&["a"]), FORKING);
        rig.until_file("ready");
        for file in files {
            std::fs::remove_file(rig.path("store").join(file)).unwrap();
        }
        assert_eq!(run.code(), 79);
        for pid in both(rig) {
            assert!(!is_alive(pid));
        }
        assert_eq!(code(&rig.run(&["--wait", "30s", "a"], "true")), 0);
        rig.remove(&["ready", "first", "second"]);
    }
}
