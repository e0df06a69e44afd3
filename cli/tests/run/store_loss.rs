//! The store is killed, or loses its data.

use crate::loss::{FORKING, both, with};
use crate::rig::{Case, Outcome, Rig, Skip, code, is_alive, stderr_of};

pub(crate) const ALONE: &[Case] = &[
    ("killed_store_ends_the_command", killed_store),
    ("killed_store_ends_the_wait", killed_store_while_waiting),
    (
        "wait_without_bound_survives_a_restart_of_the_store",
        restarted_store_while_waiting,
    ),
    ("store_that_lost_its_data_ends_the_command", restarted_store),
];

const NO_SERVER: Skip = Skip("there is no server that could be killed");

fn killed_store(rig: &mut Rig) -> Outcome {
    let Some(server) = &rig.server else {
        return Err(NO_SERVER);
    };
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
    Ok(())
}

fn killed_store_while_waiting(rig: &mut Rig) -> Outcome {
    let Some(server) = &rig.server else {
        return Err(NO_SERVER);
    };
    let holder = rig.hold("a");
    let waiter = rig.start(&["--wait", "8s", "a"], "touch started");
    rig.until_waited_for("a", 1);
    server.kill();
    let output = waiter.output();
    assert_eq!(code(&output), 69, "{}", stderr_of(&output));
    assert_eq!(
        stderr_of(&output).lines().count(),
        1,
        "{}",
        stderr_of(&output)
    );
    assert!(!rig.exists("started"));
    rig.write("release", "");
    // The release gets no reply; or the end of the server has ended the holder's session, and the lock
    // is lost.
    let status = holder.code();
    assert!(status == 0 || status == 79, "{status}");
    Ok(())
}

fn restarted_store_while_waiting(rig: &mut Rig) -> Outcome {
    let Some(server) = &rig.server else {
        return Err(NO_SERVER);
    };
    let holder = rig.hold("a");
    let waiter = rig.start(&["a"], "exit 3");
    rig.until_waited_for("a", 1);
    server.kill();
    // Until another `run` has found out that the store is gone.
    assert_eq!(code(&rig.run(&["--wait", "1s", "b"], "true")), 69);
    server.restart();
    // The waiter is granted the lock, which the restarted store does not know, and waits for the end of
    // the holder's command.
    rig.write("release", "");
    assert_eq!(waiter.code(), 3);
    assert_eq!(holder.code(), 79);
    Ok(())
}

fn restarted_store(rig: &mut Rig) -> Outcome {
    let delete = |files: &[&str]| {
        for file in files {
            std::fs::remove_file(rig.path("store").join(file)).unwrap();
        }
    };
    let forget: Vec<Box<dyn Fn() + '_>> = match &rig.server {
        Some(server) => vec![Box::new(|| {
            server.kill();
            server.restart();
        })],
        None => vec![
            Box::new(|| delete(&["locks.db", "locks.db-wal", "locks.db-shm"])),
            Box::new(|| delete(&["locks.db-wal", "locks.db-shm"])),
        ],
    };
    for forget in forget {
        // The store has lost its data: the next renewal finds that, and the command is ended.
        let run = rig.start(&with(&["a"]), FORKING);
        rig.until_file("ready");
        forget();
        assert_eq!(run.code(), 79);
        for pid in both(rig) {
            assert!(!is_alive(pid));
        }
        // A server that was just started grants nothing before the second of its start is over.
        assert_eq!(code(&rig.run(&["--wait", "30s", "a"], "true")), 0);
        for file in ["ready", "first", "second"] {
            std::fs::remove_file(rig.path(file)).unwrap();
        }
    }
    Ok(())
}
