//! The output and the exit status of `lockkeeper compare`, of the real binary.
#![allow(
    clippy::unwrap_used,
    reason = "in a test a panic is the report; clippy.toml spares only the test functions themselves"
)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The rows of all scenarios with all strategies on the embedded stores.
const ROWS: usize = 48;

/// Returns the command, with `folder` for its temporary files.
fn lockkeeper(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(args).env("TMPDIR", folder);
    command
}

/// Runs the command, which must leave no file behind.
fn run(args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let output = lockkeeper(folder.path(), args).output().unwrap();
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{args:?}");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs the command with `--json`; returns its exit status and the object.
fn json(args: &[&str]) -> (Option<i32>, Value) {
    let output = run(&[&["compare", "--json"], args].concat());
    assert_eq!(text(&output.stderr), "", "{args:?}");
    (
        output.status.code(),
        serde_json::from_slice(&output.stdout).unwrap(),
    )
}

/// Runs the command, which must print nothing; returns its exit status and its error message.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let output = run(&[&["compare"], args].concat());
    assert_eq!(text(&output.stdout), "", "{args:?}");
    (output.status.code(), text(&output.stderr))
}

#[test]
fn repeated_rows_have_their_expected_verdicts_and_the_shape_of_the_schema() {
    let (code, mut report) = json(&["--threads=20", "--repeat=2"]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["complete"], true);
    assert_eq!(report["rows"].as_array().unwrap().len(), ROWS);
    for row in report["rows"].as_array().unwrap() {
        assert_eq!(row["verdict"], row["expected"], "{row:#}");
        let numbers = ["admitted", "turned_away", "oversold"].map(|n| row[n].as_u64().unwrap());
        match (row["scenario"].as_str(), row["strategy"].as_str()) {
            (Some("gather"), Some("lockkeeper" | "optimistic")) => assert_eq!(numbers, [5, 15, 0]),
            (Some("stock"), Some("lockkeeper")) => assert_eq!(numbers, [10, 10, 0]),
            (Some("seat"), Some("lockkeeper" | "optimistic")) => assert_eq!(numbers, [1, 39, 0]),
            (Some("slow"), Some("lockkeeper")) => assert_eq!(numbers, [3, 1, 0]),
            (Some("nested"), Some("lockkeeper")) => assert_eq!(numbers, [3, 0, 0]),
            (Some("crash"), Some("lockkeeper")) => assert_eq!(numbers, [2, 1, 0]),
            (Some("limit"), Some("lockkeeper")) => assert_eq!(numbers, [20, 0, 0]),
            (_, Some("none" | "freed-early")) => assert!(numbers[2] > 0, "{row:#}"),
            _ => assert_eq!(numbers[2], 0, "{row:#}"),
        }
        let (commands, connections) = (&row["commands_per_grant"], &row["connections"]);
        match [&row["scenario"], &row["store"], &row["strategy"]].map(Value::as_str) {
            [Some("gather"), Some("sqlite"), Some("lockkeeper")] => {
                assert!(commands.as_f64() > Some(0.0) && connections == 1, "{row:#}");
            }
            [_, _, Some("none")] => assert!(commands.is_null() && connections.is_null()),
            _ => {}
        }
    }

    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("compare.schema.json");
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    let index = compiler.compile(schema.to_str().unwrap(), &mut schemas);
    let index = index.unwrap();
    schemas.validate(&report, index).unwrap();
    report["rows"][0]["verdict"] = "perhaps".into();
    schemas.validate(&report, index).unwrap_err();
}

#[test]
fn html_needs_no_network_and_describes_every_picture() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let output = run(&["compare", "--threads=20", "--html", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let page = std::fs::read_to_string(&file).unwrap();
    for loads in ["<script", "src=", "http", "@import", "url(", "<link"] {
        assert!(!page.contains(loads), "{loads}");
    }
    let pictures = page.split("<svg").skip(1);
    assert!(pictures.clone().count() >= 2 * ROWS);
    for picture in pictures {
        let picture = picture.split("</svg>").next().unwrap();
        for part in ["role=\"img\"", "<title>", "</title><desc>"] {
            assert!(picture.contains(part), "{part} in {picture}");
        }
    }
    let all = format!("{ROWS} of {ROWS} rows");
    for part in ["id=\"crash\"", &all, "freed-early", "setnx-spin"] {
        assert!(page.contains(part), "{part}");
    }

    let nowhere = folder.path().join("no/such/folder.html");
    let (code, said) = refused(&["--html", nowhere.to_str().unwrap()]);
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("choose another file"), "{said}");
}

#[test]
fn tables_of_a_config_file_are_stores() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.toml");
    let text = "[shop.locks]\nurl = 'memory:'\nttl = '5s'\n[[more]]\nurl = 'memory:a'";
    std::fs::write(&file, text).unwrap();
    let args = ["--threads=20", "--scenario=gather", "--config"];
    let (code, report) = json(&[&args[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(code, Some(0), "{report:#}");
    let rows = report["rows"].as_array().unwrap().iter();
    let stores: Vec<_> = rows.map(|row| row["store"].clone()).collect();
    assert_eq!(stores, ["memory", "memory", "memory-2", "memory-2"]);

    std::fs::write(&file, "[locks]\nurl = 'memory:'\ntll = '5s'").unwrap();
    let (code, said) = refused(&["--config", file.to_str().unwrap()]);
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("did you mean `ttl`?"), "{said}");
}

#[test]
fn control_fails_with_two_threads() {
    let (code, report) = json(&["--threads=2", "--seats=1", "--items=1", "--url=memory:"]);
    assert_eq!(code, Some(0), "{report:#}");
}

#[test]
fn scenario_data_is_not_kept_in_the_users_store() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.db");
    let url = format!("sqlite:{}?namespace=mine", file.display());
    let (code, report) = json(&["--threads=20", "--scenario=stock", "--url", &url]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["rows"].as_array().unwrap().len(), 3);
    let database = rusqlite::Connection::open(&file).unwrap();
    let data = "SELECT COUNT(*) FROM sqlite_schema WHERE name IN ('cells', 'users')";
    let tables: i64 = database.query_row(data, [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 0);
}

#[test]
fn table_fits_a_hundred_columns_and_is_explained() {
    let output = run(&["compare", "--threads=20", "--scenario=gather"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "", "stderr is no terminal here");
    let shown = text(&output.stdout);
    for line in shown.lines() {
        assert!(line.chars().count() <= 100, "{line}");
        assert!(!line.contains('\u{1b}'), "{line}");
    }
    for part in [
        "scenario",
        "verdict",
        "wrong, ok",
        "Left out: redlock",
        "20 threads wanted 5 seats: lockkeeper let in exactly 5 on every store; without a lock",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
}

#[test]
fn wrong_usage_is_refused_with_a_remedy() {
    for (args, remedy) in [
        (&["--threads=0"][..], "2..=10000"),
        (&["--threads=10001"], "2..=10000"),
        (&["--seats=100"], "use more threads, or fewer seats"),
        (&["--threads=3", "--scenario=stock"], "fewer items"),
        (&["--held=0s"], "use 1ms or more"),
        (&["--held=1h"], "use 10s or less"),
        (&["--held=soon"], "write it like 500ms"),
        (&["--repeat=0"], "1..=1000"),
        (&["--scenario=chaos"], "gather"),
        (&["--strategy=hope"], "lockkeeper"),
        (&["--strategy=redlock"], "--servers starts them"),
        (&["--strategy=freed-early", "--scenario=slow"], "no part"),
        (&["--config=/nonexistent.toml"], "make it readable"),
        (&["--holder"], "an order on standard input"),
        (&["--url=carrier-pigeon:"], "memory:, sqlite:"),
        (&["--url=memory:", "--url=nonsense"], "--url 2"),
        (&["--url=memory:?tlt=5s"], "did you mean `ttl`?"),
        (&["--url=memory:?ttl=0s"], "100ms or more"),
        (&["--url=memory:?require=cross_host"], "cross_host"),
        (&["--fast"], "--help"),
    ] {
        let (code, said) = refused(args);
        assert_eq!(code, Some(64), "{args:?}: {said}");
        assert!(said.contains(remedy), "{args:?}: {said}");
    }
}

#[test]
fn unreachable_store_is_one_line_and_status_1() {
    let (code, said) = refused(&["--url=sqlite:/nonexistent/folder/locks.db"]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("/nonexistent/folder"), "{said}");
}

#[test]
fn help_documents_options_json_and_exit_status() {
    let help = text(&run(&["compare", "--help"]).stdout);
    for part in [
        "--json",
        "commands_per_grant",
        "Exit status",
        "gather",
        "none",
        "reentrant-hash",
        "--servers",
        "--url",
    ] {
        assert!(help.contains(part), "{part} in\n{help}");
    }
    assert_eq!(run(&[]).status.code(), Some(64));
    assert!(text(&run(&["--version"]).stdout).starts_with("lockkeeper "));
}

#[test]
fn help_names_each_server_that_is_started() {
    let help = text(&run(&["compare", "--help"]).stdout);
    let about = help.split_once("--servers\n").unwrap().1;
    let about = about.split_once("--json").unwrap().0;
    for server in [
        "Redis",
        "MariaDB",
        "MySQL",
        "PostgreSQL",
        "etcd",
        "Consul",
        "ZooKeeper",
    ] {
        assert!(about.contains(server), "{server} in\n{about}");
    }
}

#[test]
fn interruption_shows_what_was_measured_and_leaves_nothing_behind() {
    use lockkeeper::clock::{Clock, SystemClock};
    use std::process::Stdio;
    use std::time::Duration;

    let (folder, locks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let url = format!("sqlite:{}", locks.path().join("locks.db").display());
    // The second row would take half a minute.
    let args = [
        "compare",
        "--json",
        "--strategy=lockkeeper",
        "--scenario=gather",
        "--scenario=slow",
        "--threads=10",
        "--repeat=30",
        "--url",
        &url,
    ];
    let child = lockkeeper(folder.path(), &args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let keeper = lockkeeper::open(&url).unwrap();
    let admin = keeper.admin().unwrap();
    let is_slow_running = || {
        let deadline = SystemClock.now() + Duration::from_secs(10);
        let held = admin.held(None, deadline).unwrap();
        held.iter().any(|held| held.name.contains("/slow-"))
    };
    while !is_slow_running() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();

    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["complete"], false);
    assert_eq!(report["rows"].as_array().unwrap().len(), 1, "{report:#}");
    assert!(text(&output.stderr).contains("interrupted"));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}
