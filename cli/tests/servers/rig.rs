//! The command as its users start it.

use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Trial};
use serde_json::Value;

/// Runs `case`, unless something that it needs is missing.
pub(crate) fn trial(
    name: String,
    missing: Vec<Option<String>>,
    case: impl FnOnce() + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || {
        if let Some(why) = missing.into_iter().flatten().next() {
            return Ok(Completion::ignored_with(why));
        }
        case();
        Ok(Completion::Completed)
    })
}

/// Runs `compare`, and sees to it that it leaves nothing on this machine and does not show `secret`.
pub(crate) fn compare(args: &[&str], secret: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
        .arg("compare")
        .args(args)
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    for bytes in [&output.stdout, &output.stderr] {
        assert!(!String::from_utf8_lossy(bytes).contains(secret));
    }
    output
}

/// The rows of a run that went as it must.
pub(crate) fn rows(args: &[&str], secret: &str) -> Vec<Value> {
    let output = compare(&[&["--json"], args].concat(), secret);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["rows"].as_array().unwrap().clone()
}

/// The row of a way of locking.
pub(crate) fn of<'a>(rows: &'a [Value], strategy: &str) -> &'a Value {
    let row = rows.iter().find(|row| row["strategy"] == strategy);
    row.unwrap_or_else(|| panic!("no {strategy} in {rows:#?}"))
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "not seen: {what}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}
