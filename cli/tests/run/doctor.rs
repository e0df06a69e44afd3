//! `doctor` on healthy stores, and on those with defects.

use std::process::Stdio;

use lockkeeper_testkit::{RedisServer, cases};
use serde_json::Value;

use crate::operate::{fits, out};
use crate::rig::{Case, RedisCase, Rig, Running, code, contains, exits, stderr_of};

pub(crate) const CASES: &[Case] = cases![doctor_reports_a_healthy_store, doctor_reports_defects,];
pub(crate) const ON_REDIS: &[RedisCase] = cases![doctor_reports_missing_rights,];

fn doctor_reports_a_healthy_store(rig: &Rig) {
    // A SQLite file does not exist before its first lock.
    assert_eq!(code(&rig.run(&["another"], "true")), 0);
    let output = rig.lockkeeper(&["doctor"]).output().unwrap();
    fits(&out(&output));
    let as_json = rig.lockkeeper(&["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&as_json.stdout).unwrap();
    let verdict = report["verdict"].as_str().unwrap();
    // A busy machine is a slow store.
    assert_ne!(verdict, "unusable", "{report:#}");
    assert_eq!(code(&output), i32::from(verdict == "warning"), "{report:#}");
    assert_eq!(code(&as_json), code(&output));
    let findings = report["findings"].as_array().unwrap();
    for topic in [
        "connect",
        "round trip",
        "contend",
        "hand over",
        "expire",
        "version",
        "names",
    ] {
        let found = findings.iter().find(|finding| finding["topic"] == topic);
        let found = found.unwrap_or_else(|| panic!("{topic} in {report:#}"));
        if topic != "round trip" {
            assert_eq!(found["severity"], "fine", "{found:#}");
        }
    }
    let nothing = rig.lockkeeper(&["who"]).output().unwrap();
    assert_eq!(out(&nothing), "No lock is held.\n", "a lock is left");
}

fn doctor_reports_defects(rig: &Rig) {
    let broken = rig
        .lockkeeper(&["doctor", "--url", "redis://127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(code(&broken), 2);
    contains(&out(&broken), &["->"]);
    let memory = rig
        .lockkeeper(&["doctor", "--url", "memory:"])
        .output()
        .unwrap();
    exits(&memory, 1);
    // A file that every user may write to.
    let file = rig.path("store/locks.db");
    assert_eq!(code(&rig.run(&["another"], "true")), 0);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&file, mode).unwrap();
    let output = rig.lockkeeper(&["doctor"]).output().unwrap();
    exits(&output, 1);
    contains(&out(&output), &["chmod"]);
    // A program that does not end its transaction.
    let database = rusqlite::Connection::open(&file).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut doctor = rig.lockkeeper(&["doctor"]);
    doctor.env("LOCKKEEPER_WAIT", "forever");
    doctor.stdout(Stdio::piped());
    let output = Running(Some(doctor.spawn().unwrap())).output();
    exits(&output, 2);
    drop(database);
    rig.write("damaged.db", &"this is no database ".repeat(100));
    let url = format!("sqlite:{}", rig.path("damaged.db").display());
    let output = rig.lockkeeper(&["doctor", "--url", &url]).output().unwrap();
    exits(&output, 2);
    fits(&out(&output));
    // With the cause, in SQLite's own words.
    let output = rig.lockkeeper(&["who", "--url", &url]).output().unwrap();
    let line = stderr_of(&output);
    assert_eq!(code(&output), 78, "{line}");
    contains(&line, &["file is not a database"]);
}

fn doctor_reports_missing_rights(rig: &Rig, server: &RedisServer) {
    let rights = ["on", ">secret", "~*", "&*", "+@all", "-scan"];
    let words = [&["ACL", "SETUSER", "locker"][..], &rights].concat();
    server.command(&words).unwrap();
    let url = rig.url().replace("redis://", "redis://locker:secret@");
    let output = rig.lockkeeper(&["doctor", "--url", &url]).output().unwrap();
    exits(&output, 1);
    let text = out(&output).replace("\n          ", " ");
    contains(&text, &["cannot list the names"]);
    assert!(text.contains("+scan") && !text.contains("secret"), "{text}");
}
