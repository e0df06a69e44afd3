//! `who`, `unlock --force`, and what is generated.

use std::process::Stdio;

use lockkeeper_testkit::cases;
use serde_json::Value;

use crate::rig::{Case, Rig, Running, code, contains, exits, fails, stderr_of};

pub(crate) const CASES: &[Case] = cases![
    who_shows_the_holder_within_80_columns,
    who_lists_all_namespaces_with_their_names,
    prefix_and_name_are_tests_for_scripts,
    unlock_asks_for_confirmation,
    unlock_with_yes_frees_without_an_open_output,
    who_unlock_and_doctor_create_no_store,
    fallback_is_not_asked_for_holders,
    completions_and_manual_are_generated,
];

pub(crate) fn out(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

fn who_shows_the_holder_within_80_columns(rig: &Rig) {
    // Creates the file.
    assert_eq!(code(&rig.run(&["another"], "true")), 0);
    let nothing = rig.lockkeeper(&["who"]).output().unwrap();
    assert_eq!(
        (code(&nothing), out(&nothing).as_str()),
        (0, "No lock is held.\n")
    );
    let long = format!("deploy:{}", "very-long:".repeat(20));
    let script =
        "echo $LOCKKEEPER_TOKEN > new; mv new token; until [ -e release ]; do sleep 0.05; done";
    let first = rig.start(&["seat:42"], script);
    let second = rig.start(&[&long], "until [ -e release ]; do sleep 0.05; done");
    rig.until("both are held", || {
        let all = rig.lockkeeper(&["who", "--json"]).output().unwrap();
        let report: Value = serde_json::from_slice(&all.stdout).unwrap();
        report["held"].as_array().unwrap().len() == 2
    });
    let held = rig.who("seat:42");
    assert_eq!(held["name"], "seat:42");
    assert_eq!(held["name_is_whole"], true);
    assert_eq!(held["pid"].to_string(), first.pid().to_string());
    rig.until_file("token");
    let token = rig.read("token");
    assert_eq!(held["token"], token.trim(), "{held}");
    let left = held["remaining_ms"].as_u64().unwrap();
    assert!(left > 0 && left <= 31_000, "{left}");
    assert!(rig.who("another").is_null());
    let table = rig.lockkeeper(&["who"]).output().unwrap();
    fits(&out(&table));
    contains(&out(&table), &["seat:42"]);
    assert!(!out(&table).contains(" mode "), "{}", out(&table));
    rig.write("release", "");
    assert_eq!((first.code(), second.code()), (0, 0));
}

fn who_lists_all_namespaces_with_their_names(rig: &Rig) {
    let first = rig.hold("of-this-case");
    let script = "touch second; until [ -e release ]; do sleep 0.05; done";
    let mut second = rig.run_command(&["b"], script);
    let second = second.env("LOCKKEEPER_NAMESPACE", "elsewhere");
    let second = Running(Some(second.spawn().unwrap()));
    rig.until_file("second");
    assert!(rig.who("of-this-case")["namespace"].is_null());
    let all = rig.lockkeeper(&["who", "-A", "--json"]).output().unwrap();
    let all: Value = serde_json::from_slice(&all.stdout).unwrap();
    let all = all["held"].as_array().unwrap();
    let of = |key: &str, value: &str| {
        let mut found = all.iter().filter(|held| held[key] == value);
        let one = found.next().unwrap_or_else(|| panic!("{value} in {all:?}"));
        assert!(found.next().is_none(), "{value} twice in {all:?}");
        one
    };
    assert_eq!(of("namespace", "elsewhere")["name"], "b");
    let namespace = of("name", "of-this-case")["namespace"].as_str().unwrap();
    assert_eq!(namespace, "default");
    let table = rig
        .lockkeeper(&["who", "--all-namespaces"])
        .output()
        .unwrap();
    fits(&out(&table));
    assert!(out(&table).starts_with("namespace"), "{}", out(&table));
    contains(&out(&table), &["\nelsewhere"]);
    rig.write("release", "");
    assert_eq!((first.code(), second.code()), (0, 0));
}

fn prefix_and_name_are_tests_for_scripts(rig: &Rig) {
    let hold = |name: &str| {
        let script = format!("touch {name}; until [ -e release ]; do sleep 0.05; done");
        let holder = rig.start(&["--label", "the job", name], &script);
        rig.until_file(name);
        holder
    };
    let holders = [hold("seat1"), hold("seat2"), hold("other")];
    let who = |args: &[&str]| {
        let output = rig.lockkeeper(&[&["who"], args].concat()).output().unwrap();
        (code(&output), out(&output))
    };
    let (status, seats) = who(&["--prefix", "seat"]);
    assert_eq!(status, 0);
    contains(&seats, &["seat1", "seat2", "[the job] pid"]);
    assert!(!seats.contains("other"), "{seats}");
    assert_eq!(rig.who("seat1")["label"], "the job");
    assert_eq!(who(&["seat1"]).0, 0);
    assert_eq!(who(&["seat3"]), (1, "\"seat3\" is not held.\n".to_owned()));
    let (status, none) = who(&["--prefix", "stand"]);
    assert_eq!((status, none.contains("\"stand\"")), (1, true), "{none}");
    assert_eq!(who(&["--url", "redis://127.0.0.1:1", "seat1"]).0, 69);

    let unlock = |args: &[&str]| {
        let unlock = ["unlock", "--force", "--yes", "--prefix", "seat"];
        rig.lockkeeper(&[&unlock, args].concat()).output().unwrap()
    };
    exits(&unlock(&[]), 64);
    let freed = unlock(&["--all"]);
    exits(&freed, 0);
    contains(&out(&freed), &["Freed 2 of 2 holds of \"seat\"…"]);
    assert_eq!(who(&["--prefix", "seat"]).0, 1);
    assert_eq!(who(&["other"]).0, 0);
    rig.write("release", "");
    assert_eq!(holders.map(Running::code), [79, 79, 0]);
}

fn unlock_asks_for_confirmation(rig: &Rig) {
    assert_eq!(code(&rig.run(&["another"], "true")), 0);
    let free = rig
        .lockkeeper(&["unlock", "--force", "a"])
        .output()
        .unwrap();
    assert_eq!(
        (code(&free), out(&free).as_str()),
        (0, "\"a\" is not held.\n")
    );
    let holder = rig.hold("a");
    // Standard input is no terminal, so there is no confirmation.
    let unconfirmed = rig
        .lockkeeper(&["unlock", "--force", "a"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    exits(&unconfirmed, 64);
    contains(&out(&unconfirmed), &["is held by"]);
    assert_eq!(
        code(&rig.run(&["-n", "a"], "true")),
        75,
        "it was not confirmed"
    );
    let freed = rig
        .lockkeeper(&["unlock", "--force", "--yes", "a"])
        .output()
        .unwrap();
    exits(&freed, 0);
    assert!(rig.who("a").is_null());
    // The command ends before the next renewal; the release finds that the lock was lost. Until then
    // the next `run` would wait for the claim.
    rig.write("release", "");
    assert_eq!(holder.code(), 79);
    assert_eq!(code(&rig.run(&["-n", "a"], "true")), 0);
}

fn unlock_with_yes_frees_without_an_open_output(rig: &Rig) {
    let holder = rig.hold("a");
    let unlock = |args: &[&str]| {
        let full = std::fs::File::create("/dev/full").unwrap();
        let mut command = rig.lockkeeper(&["unlock", "--force", "a"]);
        let output = command.args(args).stdout(full).output().unwrap();
        fails(&output, 71)
    };
    let line = unlock(&[]);
    contains(&line, &["nothing was done"]);
    assert_eq!(code(&rig.run(&["-n", "a"], "true")), 75);
    let line = unlock(&["--yes"]);
    contains(&line, &["freed \"a\", but cannot print"]);
    assert!(rig.who("a").is_null());
    rig.write("release", "");
    assert_eq!(holder.code(), 79);
}

fn who_unlock_and_doctor_create_no_store(rig: &Rig) {
    let url = format!("sqlite:{}", rig.path("typo.db").display());
    let explicit = format!("{url}?create=false");
    let overruled = format!("{url}?create=true");
    std::os::unix::fs::symlink("nowhere", rig.path("link")).unwrap();
    let link = format!("sqlite:{}", rig.path("link").display());
    for (args, url) in [
        (&["who", "--json"][..], &url),
        (&["unlock", "--force", "a"], &url),
        (&["who"], &explicit),
        (&["who"], &overruled),
    ] {
        let args = [args, &["--url", url]].concat();
        let output = rig.lockkeeper(&args).output().unwrap();
        exits(&output, 78);
        assert_eq!(
            (out(&output).as_str(), stderr_of(&output).lines().count()),
            ("", 1)
        );
        contains(&stderr_of(&output), &["typo.db"]);
        assert!(!rig.exists("typo.db"), "the query has created it");
    }
    let files = || std::fs::read_dir(rig.folder.path()).unwrap().count();
    let before = files();
    for (url, part, is_usable) in [
        (&url, "the first lock creates", true),
        (&overruled, "the first lock creates", true),
        (&explicit, "there is no file", false),
        (&link, "there is no file", false),
        (&"sqlite:/nowhere/typo.db".to_owned(), "create it", false),
    ] {
        let output = rig.lockkeeper(&["doctor", "--url", url]).output().unwrap();
        let text = out(&output);
        // A busy machine is a slow store.
        assert_eq!(code(&output) == 2, !is_usable, "{text}");
        contains(&text, &[part]);
        assert!(!text.contains("typo.db-"), "{text}");
        assert_eq!(files(), before, "doctor has left a file");
    }
}

fn fallback_is_not_asked_for_holders(rig: &Rig) {
    // The fallback knows nothing of the holders on the first store.
    for (args, status) in [
        (&["who"][..], 69),
        (&["who", "a"], 69),
        (&["unlock", "--force", "a"], 69),
        (&["doctor"], 2),
    ] {
        let mut command = rig.lockkeeper(args);
        command.env("LOCKKEEPER_URL", "redis://127.0.0.1:1/");
        command.env("LOCKKEEPER_FALLBACK", rig.url());
        let output = command.output().unwrap();
        assert_eq!(code(&output), status, "{args:?} {}", stderr_of(&output));
    }
}

fn completions_and_manual_are_generated(rig: &Rig) {
    for shell in ["bash", "zsh", "fish"] {
        let output = rig.lockkeeper(&["completions", shell]).output().unwrap();
        assert_eq!(code(&output), 0);
        let text = out(&output);
        assert!(
            text.contains("kill-after") && text.contains("doctor"),
            "{shell}"
        );
        assert!(!text.contains("__watchdog"), "{shell}");
    }
    let output = rig
        .lockkeeper(&["manual", "--folder", "man"])
        .output()
        .unwrap();
    exits(&output, 0);
    for page in [
        "lockkeeper",
        "lockkeeper-run",
        "lockkeeper-who",
        "lockkeeper-unlock",
        "lockkeeper-doctor",
    ] {
        assert!(rig.exists(&format!("man/{page}.1")), "{page}");
    }
    let text = rig.read("man/lockkeeper.1");
    for key in ["handover_max", "pool_size", "replicas"] {
        contains(&text, &[key]);
    }
    let text = rig.read("man/lockkeeper-run.1");
    for usage in ["\\-\\- <COMMAND>...\n", "\\-c <LINE>\n"] {
        let usage = format!("\nlockkeeper run [OPTIONS] <NAME> {usage}");
        assert!(text.contains(&usage), "{text}");
    }
    let doctor = rig.read("man/lockkeeper-doctor.1");
    let headings = |page: &str| {
        let sections = page.lines().filter_map(|line| line.strip_prefix(".SH "));
        sections.map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = [
        "NAME",
        "SYNOPSIS",
        "DESCRIPTION",
        "OPTIONS",
        "\"LOCKS IN A TABLE (LOCKS=TABLE)\"",
        "JSON",
        "\"EXIT STATUS\"",
    ];
    assert_eq!(headings(&doctor), expected, "a sentence became a heading");
    for row in ["64", "69", "71", "75", "78", "79", "126", "127"] {
        assert!(text.contains(row), "{row}");
    }
}
