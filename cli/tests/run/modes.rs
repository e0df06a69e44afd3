//! Shared locks and slots: `run`, and what `who` and `unlock` do with several holders.

use std::process::Output;

use lockkeeper_testkit::cases;

use crate::operate::{fits, out};
use crate::rig::{Case, Rig, Running, code, contains, exits, fails, stderr_of};

pub(crate) const CASES: &[Case] = cases![
    shared_commands_run_beside_each_other,
    commands_have_slots_of_their_own,
    slots_of_another_number_are_refused,
    unlock_frees_one_of_several_slots,
    unlock_frees_one_reader_or_all,
];

/// Creates the file `held-$$`, and ends when the file `release` exists.
const HOLD: &str = "touch held-$$; until [ -e release ]; do sleep 0.05; done; exit 7";
/// Creates the file `held-$$` with the slot and the token, and ends when the file `release` exists.
const HOLD_SLOT: &str = "echo $LOCKKEEPER_SLOT $LOCKKEEPER_TOKEN > new-$$; mv new-$$ held-$$;
until [ -e release ]; do sleep 0.05; done; exit 7";

/// Returns whether the store has such a mode.
pub(crate) fn has_mode(rig: &Rig, mode: &[&str]) -> bool {
    let output = rig.run(&[mode, &["unsupported"]].concat(), "true");
    let text = stderr_of(&output);
    match code(&output) {
        78 if text.contains("capability") => false,
        0 => true,
        status => panic!("{status}: {text}"),
    }
}

/// Starts a holder, and waits until there are `count` in all.
fn hold(rig: &Rig, args: &[&str], script: &str, count: usize) -> Running {
    let run = rig.start(args, script);
    rig.until("it holds", || holds(rig).len() == count);
    run
}

/// Returns what the holders have written, in its order.
fn holds(rig: &Rig) -> Vec<String> {
    let files = std::fs::read_dir(rig.folder.path()).unwrap().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let names = names.filter(|name| name.starts_with("held-"));
    let mut texts: Vec<_> = names.map(|name| rig.read(&name)).collect();
    texts.sort_unstable();
    texts
}

fn unlock(rig: &Rig, args: &[&str]) -> Output {
    let mut command = rig.lockkeeper(&["unlock", "--force", "--yes"]);
    command.args(args).output().unwrap()
}

fn shared_commands_run_beside_each_other(rig: &Rig) {
    let first = hold(rig, &["--shared", "a"], HOLD, 1);
    let second = hold(rig, &["-s", "a"], HOLD, 2);
    let output = rig.run(&["-n", "a"], "touch started");
    exits(&output, 75);
    assert!(!rig.exists("started"));
    let held = rig.holders("a");
    assert_eq!(held.len(), 2, "{held:?}");
    for one in &held {
        assert_eq!(one["mode"], "shared", "{one}");
        assert!(one["slot"].is_null() && one["permits"].is_null(), "{one}");
    }
    let more = stderr_of(&output).contains("and 1 more");
    assert!(more, "{}", stderr_of(&output));
    let table = out(&rig.lockkeeper(&["who", "a"]).output().unwrap());
    let rows = table.lines().filter(|line| line.contains(" shared "));
    assert_eq!(rows.count(), 2, "{table}");
    rig.write("release", "");
    assert_eq!((first.code(), second.code()), (7, 7));
    assert!(rig.holders("a").is_empty(), "a lock is left");
}

fn commands_have_slots_of_their_own(rig: &Rig) {
    let first = hold(rig, &["--slots", "2", "a"], HOLD_SLOT, 1);
    let second = hold(rig, &["--slots", "2", "a"], HOLD_SLOT, 2);
    let texts = holds(rig);
    let numbers: Vec<_> = texts
        .iter()
        .filter_map(|text| text.split_once(' '))
        .collect();
    assert_eq!([numbers[0].0, numbers[1].0], ["0", "1"]);
    let tokens = numbers.iter().map(|(_, token)| token.trim().parse::<u64>());
    let tokens: Vec<_> = tokens.map(Result::unwrap).collect();
    assert!(tokens[0] < tokens[1], "{tokens:?}");
    let output = rig.run(&["-n", "--slots", "2", "a"], "true");
    exits(&output, 75);
    // The lock of that name is free.
    assert_eq!(code(&rig.run(&["-n", "a"], "true")), 0);
    let held = rig.holders("a");
    for (slot, one) in held.iter().enumerate() {
        assert_eq!(
            (&one["mode"], &one["slot"]),
            (&"permit".into(), &slot.into())
        );
        assert_eq!(one["permits"], 2, "{one}");
    }
    assert_eq!(held.len(), 2, "{held:?}");
    let table = out(&rig.lockkeeper(&["who"]).output().unwrap());
    fits(&table);
    contains(&table, &[" slot 0 ", " slot 1 "]);
    let next = rig.start(&["--slots", "2", "a"], "echo $LOCKKEEPER_SLOT");
    rig.until_waited_for("a", 1);
    rig.write("release", "");
    assert_eq!((first.code(), second.code()), (7, 7));
    let next = next.output();
    exits(&next, 0);
    assert!(
        ["0\n", "1\n"].contains(&out(&next).as_str()),
        "{}",
        out(&next)
    );
}

fn slots_of_another_number_are_refused(rig: &Rig) {
    let holder = hold(rig, &["--slots", "2", "a"], HOLD_SLOT, 1);
    let output = rig.run(&["--slots", "3", "a"], "true");
    contains(&fails(&output, 78), &["3", "use the same"]);
    rig.write("release", "");
    assert_eq!(holder.code(), 7);
    assert_eq!(code(&rig.run(&["--slots", "3", "a"], "true")), 0);
}

fn unlock_frees_one_of_several_slots(rig: &Rig) {
    let first = hold(rig, &["--slots", "2", "a"], HOLD_SLOT, 1);
    let second = hold(rig, &["--slots", "2", "a"], HOLD_SLOT, 2);
    let output = unlock(rig, &["a"]);
    contains(&fails(&output, 64), &["--slot 0", "--all"]);
    let table = out(&output);
    contains(&table, &[" slot 0 ", " slot 1 "]);
    let output = unlock(rig, &["a", "--slot", "2"]);
    exits(&output, 0);
    contains(&out(&output), &["no such holder"]);
    assert_eq!(rig.holders("a").len(), 2, "one was freed");
    let output = unlock(rig, &["a", "--slot", "1"]);
    exits(&output, 0);
    assert!(
        out(&output).starts_with("\"a\" (slot 1) is held by "),
        "{}",
        out(&output)
    );
    let held = rig.holders("a");
    assert_eq!((held.len(), &held[0]["slot"]), (1, &0.into()), "{held:?}");
    rig.write("release", "");
    assert_eq!((first.code(), second.code()), (7, 79));
}

fn unlock_frees_one_reader_or_all(rig: &Rig) {
    let first = hold(rig, &["--shared", "a"], HOLD, 1);
    let second = hold(rig, &["--shared", "a"], HOLD, 2);
    let third = hold(rig, &["--shared", "a"], HOLD, 3);
    let output = unlock(rig, &["a"]);
    let line = stderr_of(&output);
    assert_eq!(code(&output), 64, "{line}");
    contains(&line, &["--mode shared --"]);
    let pid = first.pid().to_string();
    let output = unlock(rig, &["a", "--pid", &pid]);
    exits(&output, 0);
    contains(&out(&output), &["Freed \"a\" (shared)."]);
    assert_eq!(rig.holders("a").len(), 2);
    let output = unlock(rig, &["a", "--mode", "shared", "--all"]);
    exits(&output, 0);
    contains(&out(&output), &["Freed 2 of 2 holds of"]);
    assert!(rig.holders("a").is_empty());
    rig.write("release", "");
    let codes = [first.code(), second.code(), third.code()];
    assert_eq!(codes, [79; 3]);
}
