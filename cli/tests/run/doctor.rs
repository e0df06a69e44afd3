//! `doctor` on healthy stores, and on those with defects.

use std::process::Stdio;

use lockkeeper_testkit::{PgBouncer, PoolMode};
use serde_json::Value;

use crate::operate::{fits, out};
use crate::rig::{Case, Outcome, Rig, Running, Server, Skip, code, stderr_of};

pub(crate) const CASES: &[Case] = &[
    ("doctor_reports_a_healthy_store", doctor),
    ("doctor_reports_missing_rights", doctor_without_rights),
];
pub(crate) const ALONE: &[Case] = &[
    ("doctor_reports_defects", doctor_of_defects),
    ("doctor_reports_poolers_and_replicas", doctor_of_others),
];

fn doctor(rig: &mut Rig) -> Outcome {
    // A SQLite file does not exist before its first lock.
    assert_eq!(code(&rig.run(&["another"], "true")), 0);
    let output = rig.lockkeeper(&["doctor"]).output().unwrap();
    fits(&out(&output));
    let as_json = rig.lockkeeper(&["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&as_json.stdout).unwrap();
    let verdict = report["verdict"].as_str().unwrap();
    // A server without persistence gets a warning.
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
        // A busy machine is a slow store.
        if topic != "round trip" {
            assert_eq!(found["severity"], "fine", "{found:#}");
        }
    }
    let nothing = rig.lockkeeper(&["who"]).output().unwrap();
    assert_eq!(out(&nothing), "No lock is held.\n", "a lock is left");
    Ok(())
}

fn doctor_of_defects(rig: &mut Rig) -> Outcome {
    let broken = rig
        .lockkeeper(&["doctor", "--url", "redis://127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(code(&broken), 2);
    assert!(out(&broken).contains("->"), "{}", out(&broken));
    let memory = rig
        .lockkeeper(&["doctor", "--url", "memory:"])
        .output()
        .unwrap();
    assert_eq!(code(&memory), 1, "{}", out(&memory));
    let Some(server) = rig.server.as_deref() else {
        // A file that every user may write to.
        let file = rig.path("store/locks.db");
        assert_eq!(code(&rig.run(&["another"], "true")), 0);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(file, mode).unwrap();
        let output = rig.lockkeeper(&["doctor"]).output().unwrap();
        assert_eq!(code(&output), 1, "{}", out(&output));
        assert!(out(&output).contains("chmod"), "{}", out(&output));
        // A program that does not end its transaction.
        let database = rusqlite::Connection::open(rig.path("store/locks.db")).unwrap();
        database.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut doctor = rig.lockkeeper(&["doctor"]);
        doctor.env("LOCKKEEPER_WAIT", "forever");
        doctor.stdout(Stdio::piped());
        let output = Running(Some(doctor.spawn().unwrap())).output();
        assert_eq!(code(&output), 2, "{}", out(&output));
        drop(database);
        rig.write("damaged.db", &"this is no database ".repeat(100));
        let url = format!("sqlite:{}", rig.path("damaged.db").display());
        let output = rig.lockkeeper(&["doctor", "--url", &url]).output().unwrap();
        assert_eq!(code(&output), 2, "{}", out(&output));
        fits(&out(&output));
        // With the cause, in SQLite's own words.
        let output = rig.lockkeeper(&["who", "--url", &url]).output().unwrap();
        assert_eq!(code(&output), 78, "{}", out(&output));
        assert!(
            stderr_of(&output).contains("file is not a database"),
            "{}",
            stderr_of(&output)
        );
        return Ok(());
    };
    let server = match server {
        Server::Redis(server) => server,
        Server::MySql(server) => {
            server.execute("SET GLOBAL max_connections = 10").unwrap();
            let output = rig.lockkeeper(&["doctor"]).output().unwrap();
            assert_eq!(code(&output), 1, "{}", out(&output));
            assert!(out(&output).contains("max_connections"), "{}", out(&output));
            server.execute("SET GLOBAL max_connections = 100").unwrap();
            server.execute("SET GLOBAL read_only = ON").unwrap();
            let output = rig.lockkeeper(&["doctor"]).output().unwrap();
            assert_eq!(code(&output), 1, "{}", out(&output));
            assert!(out(&output).contains("read-only"), "{}", out(&output));
            let output = rig.run(&["a"], "true");
            assert_eq!(code(&output), 0, "{}", stderr_of(&output));
            assert!(
                stderr_of(&output).contains("read-only"),
                "{}",
                stderr_of(&output)
            );
            return Ok(());
        }
        Server::Postgres(server) => {
            server
                .execute("ALTER ROLE keeper CONNECTION LIMIT 9")
                .unwrap();
            let output = rig.lockkeeper(&["doctor"]).output().unwrap();
            assert_eq!(code(&output), 1, "{}", out(&output));
            assert!(
                out(&output).contains("CONNECTION LIMIT"),
                "{}",
                out(&output)
            );
            return Ok(());
        }
        Server::Etcd(server) => {
            let output = rig.lockkeeper(&["doctor"]).output().unwrap();
            assert_eq!(code(&output), 1, "{}", out(&output));
            assert!(out(&output).contains("1 member"), "{}", out(&output));
            let alarm = serde_json::json!({ "action": "ACTIVATE", "alarm": "NOSPACE" });
            server.call("/v3/maintenance/alarm", &alarm).unwrap();
            let output = rig.lockkeeper(&["doctor"]).output().unwrap();
            assert_eq!(code(&output), 2, "{}", out(&output));
            assert!(out(&output).contains("full"), "{}", out(&output));
            return Ok(());
        }
    };
    server
        .command(&["CONFIG", "SET", "maxmemory", "100mb"])
        .unwrap();
    server
        .command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .unwrap();
    server
        .command(&["CONFIG", "SET", "appendonly", "yes"])
        .unwrap();
    server
        .command(&["CONFIG", "SET", "appendfsync", "always"])
        .unwrap();
    let output = rig.lockkeeper(&["doctor"]).output().unwrap();
    assert_eq!(code(&output), 1, "{}", out(&output));
    assert!(out(&output).contains("allkeys-lru"), "{}", out(&output));
    // A busy machine is a slow store.
    let is_slow = out(&output).contains("warning   acquire and release take");
    let summary = format!("0 unusable, {} with warnings", 1 + u32::from(is_slow));
    assert!(out(&output).contains(&summary), "{}", out(&output));
    // Without the replicas that the URL asks for no lock is granted.
    let url = format!("{}&replicas=1", rig.url());
    let output = rig.lockkeeper(&["doctor", "--url", &url]).output().unwrap();
    assert_eq!(code(&output), 2, "{}", out(&output));
    Ok(())
}

/// What answers is not the server that keeps the locks.
fn doctor_of_others(rig: &mut Rig) -> Outcome {
    let Some(Server::Postgres(server)) = rig.server.as_deref() else {
        return Err(Skip("only PostgreSQL has such poolers and replicas here"));
    };
    if PgBouncer::ignored().is_some() {
        return Err(Skip(
            "no pgbouncer on this machine; scripts/servers sets it up",
        ));
    }
    let pool = PgBouncer::start(server, PoolMode::Transaction).unwrap();
    let refused = |url: &str, word: &str| {
        let output = rig.lockkeeper(&["doctor", "--url", url]).output().unwrap();
        let text = out(&output);
        assert_eq!(code(&output), 2, "{text}");
        assert!(text.contains(word), "{text}");
    };
    refused(&server.url_via(pool.addr()), "pool_mode=session");
    let standby = server.standby().unwrap();
    refused(&standby.url(), "replica");
    Ok(())
}

fn doctor_without_rights(rig: &mut Rig) -> Outcome {
    let Some(Server::Redis(server)) = rig.server.as_deref() else {
        return Err(Skip("rights like that are Redis' own"));
    };
    let rights = ["on", ">secret", "~*", "&*", "+@all", "-scan"];
    let words = [&["ACL", "SETUSER", "locker"][..], &rights].concat();
    server.command(&words).unwrap();
    let url = rig.url().replace("redis://", "redis://locker:secret@");
    let output = rig.lockkeeper(&["doctor", "--url", &url]).output().unwrap();
    assert_eq!(code(&output), 1, "{}", out(&output));
    let text = out(&output).replace("\n          ", " ");
    assert!(text.contains("cannot list the names"), "{text}");
    assert!(text.contains("+scan") && !text.contains("secret"), "{text}");
    Ok(())
}
