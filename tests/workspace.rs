//! A backend of this workspace is in every list that CONTRIBUTING's "A new backend" names. Its suite is
//! looked for by `tests/conformance.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::fs;
use std::path::Path;

use toml::{Table, Value};

/// A driver as its source declares it.
struct DriverSource {
    name: String,
    schemes: Vec<String>,
}

/// Finds the drivers in the sources under `folder`.
fn drivers(folder: &Path, found: &mut Vec<DriverSource>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            drivers(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for rest in text.split("\nimpl Driver for ").skip(1) {
            let (name, rest) = rest.split_once(' ').unwrap();
            let (_, rest) = rest
                .split_once("fn schemes")
                .expect("`schemes` of a driver");
            let (_, rest) = rest.split_once("&[\"").expect("a list of schemes");
            let (list, _) = rest.split_once(']').unwrap();
            found.push(DriverSource {
                name: name.to_owned(),
                schemes: list.split('"').step_by(2).map(str::to_owned).collect(),
            });
        }
    }
}

fn lists(value: &Value, text: &str) -> bool {
    let list = value.as_array().expect("a list of texts");
    list.iter().filter_map(Value::as_str).any(|it| it == text)
}

/// Returns the lists that lack the backend of `root/backends/{folder}`.
fn missing(root: &Path, folder: &str) -> Vec<String> {
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let mut missing = Vec::new();
    let mut want = |is_there: bool, what: String| {
        if !is_there {
            missing.push(format!("backends/{folder}: {what}"));
        }
    };
    let manifest: Table = read("Cargo.toml").parse().unwrap();
    let package = format!("lockkeeper-{folder}");

    for key in ["members", "default-members"] {
        let is_there = lists(&manifest["workspace"][key], &format!("backends/{folder}"));
        want(is_there, format!("no entry in `{key}` of Cargo.toml"));
    }
    let features = manifest["features"].as_table().unwrap();
    let optional = format!("dep:{package}");
    let of_package = format!("{package}/");
    let is_there = features.values().any(|feature| {
        let parts = feature.as_array().into_iter().flatten();
        let mut parts = parts.filter_map(Value::as_str);
        parts.any(|part| part == optional || part.starts_with(&of_package))
    });
    want(is_there, "no feature in Cargo.toml".to_owned());

    let mut found = Vec::new();
    drivers(&root.join("backends").join(folder).join("src"), &mut found);
    want(!found.is_empty(), "no `Driver` in its sources".to_owned());
    let (facade, bench) = (read("src/lib.rs"), read("bench/src/main.rs"));
    let (readme, choosing) = (read("README.md"), read("docs/choosing-a-store.md"));
    let is_header = |line: &&str| line.starts_with("| | `memory:`");
    let columns = readme.lines().find(is_header).expect("README's table");
    for DriverSource { name, schemes } in found {
        let path = format!("{}::{name}", package.replace('-', "_"));
        want(
            facade.contains(&path),
            format!("no {path} in `drivers()` of src/lib.rs"),
        );
        want(
            schemes
                .iter()
                .any(|scheme| bench.contains(&format!("free::{scheme}"))),
            format!("no `free::SCHEME` for {name} in bench/src/main.rs"),
        );
        for scheme in schemes {
            let code = format!("`{scheme}:");
            want(
                columns.contains(&code),
                format!("no column of README's table names {code}`"),
            );
            want(
                choosing.contains(&code),
                format!("docs/choosing-a-store.md does not name {code}`"),
            );
        }
    }
    missing
}

#[test]
fn every_backend_is_in_every_list() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let backends = fs::read_dir(root.join("backends")).unwrap();
    let mut all = Vec::new();
    for entry in backends {
        let path = entry.unwrap().path();
        // A library that backends share has no driver, and no column.
        if path.join("Cargo.toml").exists() && !path.ends_with("remote") {
            all.extend(missing(root, path.file_name().unwrap().to_str().unwrap()));
        }
    }
    assert!(
        all.is_empty(),
        "see \"A new backend\" in CONTRIBUTING.md\n{}",
        all.join("\n")
    );
}
