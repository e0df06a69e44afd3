//! `who --watch`, in a file, in a pipe and through an outage. That at a terminal is with the others there.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use lockkeeper_testkit::{RedisServer, cases};
use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Case, RedisCase, Rig, Running, code};

pub(crate) const CASES: &[Case] = cases![
    who_watch_prints_what_has_changed,
    who_watch_prints_json_lines,
    who_watch_ends_with_its_reader,
];
pub(crate) const ON_REDIS: &[RedisCase] = cases![who_watch_survives_an_outage,];

const NOTHING: &str = "No lock is held.";

/// Starts a watch whose output is in the files `NAME.out` and `NAME.err`.
fn watch(rig: &Rig, name: &str, args: &[&str]) -> Running {
    let mut command = rig.lockkeeper(&["who", "--watch", "--interval", "0.1"]);
    let file = |kind: &str| File::create(rig.path(&format!("{name}.{kind}"))).unwrap();
    let command = command.args(args).stdout(file("out")).stderr(file("err"));
    Running(Some(command.spawn().unwrap()))
}

/// Returns the tables that were printed, without their times.
fn tables(rig: &Rig, name: &str) -> Vec<String> {
    let text = rig.read(&format!("{name}.out"));
    let blocks = text.split("\n\n").filter_map(|block| {
        let (time, table) = block.split_once('\n')?;
        assert!(time.starts_with("20") && time.ends_with('Z'), "{text}");
        Some(table.trim_end().to_owned())
    });
    blocks.collect()
}

fn last(rig: &Rig, name: &str) -> String {
    tables(rig, name).pop().unwrap_or_default()
}

fn who_watch_prints_what_has_changed(rig: &Rig) {
    assert_eq!(code(&rig.run(&["another"], "true")), 0);
    let all = watch(rig, "all", &[]);
    let one = watch(rig, "one", &["a"]);
    rig.until("nothing is held", || last(rig, "all") == NOTHING);
    rig.until("nothing is held", || {
        last(rig, "one") == "\"a\" is not held."
    });
    let holder = rig.hold("a");
    for name in ["all", "one"] {
        rig.until("the holder is shown", || last(rig, name).contains("\na "));
    }
    // A change of the time that is left is none.
    let before = tables(rig, "all");
    rig.until_who("the lease grows older", "a", |held| {
        held["remaining_ms"].as_u64() < Some(28_500)
    });
    assert_eq!(tables(rig, "all"), before);
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    rig.until("nothing is held", || last(rig, "all") == NOTHING);
    for watch in [all, one] {
        watch.signal(Signal::INT);
        assert_eq!(watch.code(), 130);
    }
    assert_eq!(rig.read("all.err"), "");
}

fn who_watch_prints_json_lines(rig: &Rig) {
    assert_eq!(code(&rig.run(&["another"], "true")), 0);
    let watch = watch(rig, "json", &["--json"]);
    let last = || {
        let text = rig.read("json.out");
        let lines: Vec<Value> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        lines.last().cloned().unwrap_or_default()
    };
    rig.until("nothing is held", || {
        last()["held"] == Value::Array(Vec::new())
    });
    let holder = rig.hold("a");
    rig.until("the holder is shown", || last()["held"][0]["name"] == "a");
    assert_eq!(last()["schema"], "lockkeeper-who");
    rig.write("release", "");
    assert_eq!(holder.code(), 0);
    watch.signal(Signal::TERM);
    assert_eq!(watch.code(), 143);
}

fn who_watch_ends_with_its_reader(rig: &Rig) {
    assert_eq!(code(&rig.run(&["another"], "true")), 0);
    let mut command = rig.lockkeeper(&["who", "--watch", "--interval", "0.1"]);
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut reader = BufReader::new(watch.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();
    drop(reader);
    // Nothing changes, so nothing more is printed.
    assert_eq!(Running(Some(watch)).code(), 0);
}

fn who_watch_survives_an_outage(rig: &Rig, server: &RedisServer) {
    let first = watch(rig, "first", &[]);
    rig.until("nothing is held", || last(rig, "first") == NOTHING);
    server.kill();
    let is_reported = |name: &str| rig.read(&format!("{name}.err")).contains("goes on asking");
    rig.until("the outage is reported", || is_reported("first"));
    // One that starts during the outage waits for its end as well.
    let second = watch(rig, "second", &[]);
    rig.until("the outage is reported", || is_reported("second"));
    server.restart().unwrap();
    rig.until("the list goes on", || tables(rig, "first").len() == 2);
    rig.until("the list begins", || last(rig, "second") == NOTHING);
    for (name, watch) in [("first", first), ("second", second)] {
        let errors = rig.read(&format!("{name}.err"));
        assert_eq!(errors.lines().count(), 1, "{errors}");
        watch.signal(Signal::INT);
        assert_eq!(watch.code(), 130);
    }
}
