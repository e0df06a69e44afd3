//! `run NAME --also NAME`: several locks at once.

use lockkeeper_testkit::cases;

use crate::rig::{Case, Rig, Running, code, contains, exits, fails, stderr_of};

pub(crate) const CASES: &[Case] = cases![
    command_holds_all_names,
    name_that_is_given_twice_counts_once,
    slot_and_tokens_are_not_passed_on_by_pass_url,
    nothing_is_held_if_one_name_is_busy,
    loss_of_one_name_ends_the_command,
];

const HOLD: &str = "echo $LOCKKEEPER_NAME $LOCKKEEPER_TOKEN $LOCKKEEPER_TOKENS > new; mv new held
until [ -e release ]; do sleep 0.05; done; exit 7";

fn hold(rig: &Rig, args: &[&str]) -> Running {
    let run = rig.start(args, HOLD);
    rig.until_file("held");
    run
}

fn command_holds_all_names(rig: &Rig) {
    let run = hold(rig, &["b", "--also", "a", "--also", "c"]);
    for name in ["a", "b", "c"] {
        let output = rig.run(&["-n", name], "true");
        assert_eq!(code(&output), 75, "{name}: {}", stderr_of(&output));
    }
    let text = rig.read("held");
    let words: Vec<_> = text.split_whitespace().collect();
    let [name, token, ref tokens @ ..] = words[..] else {
        panic!("{text}");
    };
    assert_eq!((name, token, tokens.len()), ("b", tokens[0], 3), "{text}");
    for (name, token) in ["b", "a", "c"].into_iter().zip(tokens) {
        assert_eq!(&rig.who(name)["token"], token, "{name}: {text}");
    }
    rig.write("release", "");
    assert_eq!(run.code(), 7);
    let output = rig.run(&["-v", "-n", "c", "--also", "b", "--also", "a"], "true");
    let lines = stderr_of(&output);
    assert_eq!(code(&output), 0, "{lines}");
    contains(&lines, &["released \"c\", \"b\", \"a\""]);
}

fn name_that_is_given_twice_counts_once(rig: &Rig) {
    // A claim that were taken twice would be waited for as long as the lease.
    let args = ["-v", "--ttl", "5m", "a", "--also", "a"];
    let output = rig.start(&args, "echo $LOCKKEEPER_TOKENS").output();
    let lines = stderr_of(&output);
    assert_eq!(code(&output), 0, "{lines}");
    assert!(!lines.contains("an earlier command"), "{lines}");
    let text = String::from_utf8(output.stdout).unwrap();
    let tokens: Vec<_> = text.split_whitespace().collect();
    assert_eq!((tokens.len(), tokens[0]), (2, tokens[1]));
}

fn slot_and_tokens_are_not_passed_on_by_pass_url(rig: &Rig) {
    for (lock, name, own) in [
        (&["a", "--also", "b"][..], "TOKENS", None),
        (&["--slots", "1", "a"], "SLOT", Some("0")),
    ] {
        let script = format!(
            "echo $LOCKKEEPER_{name}; {} run --pass-url c -- sh -c 'echo ${{LOCKKEEPER_{name}-none}}'",
            env!("CARGO_BIN_EXE_lockkeeper")
        );
        let output = rig.run(&[&["--pass-url"], lock].concat(), &script);
        exits(&output, 0);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<_> = text.lines().collect();
        assert!(own.is_none_or(|own| lines[0] == own), "{text}");
        assert_eq!(lines[1], "none", "{text}");
    }
}

fn nothing_is_held_if_one_name_is_busy(rig: &Rig) {
    let holder = rig.hold("b");
    let output = rig.run(&["-n", "a", "--also", "b", "--also", "c"], "touch started");
    contains(&fails(&output, 75), &["\"b\" is held by "]);
    assert!(!rig.exists("started"));
    for name in ["a", "c"] {
        assert!(rig.who(name).is_null(), "{name} is held");
    }
    // It gets all names when the last one is free.
    let waiter = rig.start(&["c", "--also", "b"], "touch started");
    rig.until_waited_for("b", 1);
    assert!(!rig.exists("started"));
    rig.write("release", "");
    assert_eq!((holder.code(), waiter.code()), (0, 0));
    assert!(rig.exists("started"));
}

fn loss_of_one_name_ends_the_command(rig: &Rig) {
    let args = ["--ttl", "24s", "--kill-after", "10s", "a", "--also", "b"];
    let script = "trap 'touch term; exit 0' TERM; touch held; while :; do sleep 0.2; done";
    let run = rig.start(&args, script);
    rig.until_file("held");
    let mut unlock = rig.lockkeeper(&["unlock", "--force", "--yes", "b"]);
    assert_eq!(code(&unlock.output().unwrap()), 0);
    let output = run.output();
    let line = stderr_of(&output);
    assert_eq!(code(&output), 79, "{line}");
    contains(&line, &["the set of locks \"a\", \"b\" is lost"]);
    assert!(rig.exists("term"));
    assert!(rig.who("a").is_null(), "the other name is still held");
}
