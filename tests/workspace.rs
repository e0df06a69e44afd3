//! A backend of this workspace is in every list that CONTRIBUTING's "A new backend" names.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

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
            let schemes = rest.split_once("fn schemes").unwrap().1;
            let list = schemes.split_once("&[").unwrap().1;
            let list = list.split_once(']').unwrap().0;
            found.push(DriverSource {
                name: name.to_owned(),
                schemes: list
                    .split('"')
                    .skip(1)
                    .step_by(2)
                    .map(str::to_owned)
                    .collect(),
            });
        }
    }
}

/// Returns the texts of a list in a manifest.
fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .map(|text| text.as_str().unwrap())
}

/// Returns what lacks the backend of `root/backends/{folder}`.
fn missing(root: &Path, folder: &str) -> Vec<String> {
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    let mut missing = Vec::new();
    let mut want = |is_there: bool, what: &str| {
        if !is_there {
            missing.push(format!("backends/{folder}: {what} is missing"));
        }
    };
    let package = format!("lockkeeper-{folder}");
    let path = format!("backends/{folder}");

    let manifest: Table = read("Cargo.toml").parse().unwrap();
    for key in ["members", "default-members"] {
        let is_there = texts(&manifest["workspace"][key]).any(|member| member == path);
        want(is_there, &format!("the entry in `{key}` of Cargo.toml"));
    }
    let is_there = manifest["workspace"]["dependencies"].get(&package);
    want(
        is_there.is_some(),
        "the entry in `[workspace.dependencies]` of Cargo.toml",
    );
    let (optional, of_package) = (format!("dep:{package}"), format!("{package}/"));
    let mut parts = manifest["features"]
        .as_table()
        .unwrap()
        .values()
        .flat_map(texts);
    let is_there = parts.any(|part| part == optional || part.starts_with(&of_package));
    want(is_there, "the feature in Cargo.toml");
    for file in ["ARCHITECTURE.md", "docs/decisions.md"] {
        want(read(file).contains(&path), &format!("its part of {file}"));
    }

    let is_server = read(&format!("{path}/Cargo.toml")).contains("lockkeeper-remote");
    let readme = read("README.md");
    let columns = readme
        .lines()
        .find(|line| line.starts_with("| | `memory:`"))
        .unwrap();
    let mut found = Vec::new();
    drivers(&root.join(&path).join("src"), &mut found);
    want(!found.is_empty(), "an `impl Driver` in its sources");
    for DriverSource { name, schemes } in found {
        let driver = format!("{}::{name}", package.replace('-', "_"));
        want(
            read("src/lib.rs").contains(&driver),
            &format!("{driver} in `drivers()` of src/lib.rs"),
        );
        // A driver with several schemes is listed under one of them.
        let any = |is_there: &dyn Fn(&str) -> bool| schemes.iter().any(|scheme| is_there(scheme));
        let mut listed = |file: &str, before: &str| {
            let is_there = any(&|scheme| read(file).contains(&format!("{before}{scheme}")));
            want(
                is_there,
                &format!("a line with {before}SCHEME of {name} in {file}"),
            );
        };
        listed("tests/conformance.rs", "fixtures::");
        listed("bench/src/main.rs", "free::");
        if is_server {
            listed("scripts/servers", "wanted ");
            listed("testkit/src/lib.rs", "mod ");
            let faults = |scheme: &str| {
                let suite = format!("tests/{scheme}_faults/main.rs");
                read("Cargo.toml").contains(&format!("{scheme}_faults"))
                    && root.join(suite).exists()
            };
            want(
                any(&faults),
                &format!("the suite tests/SCHEME_faults of {name}"),
            );
            let rig = read("cli/tests/run/rig.rs").to_lowercase();
            want(
                any(&|scheme| rig.contains(&format!("server::{scheme}("))),
                &format!("the server of {name} in cli/tests/run/rig.rs"),
            );
        }
        for scheme in schemes {
            let code = format!("`{scheme}:");
            want(
                columns.contains(&code),
                &format!("a column with {code}` in README's table"),
            );
            for file in ["docs/choosing-a-store.md", "CHANGELOG.md"] {
                want(read(file).contains(&code), &format!("{code}` in {file}"));
            }
        }
    }
    missing
}

#[test]
fn every_backend_is_in_every_list() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    for entry in fs::read_dir(root.join("backends")).unwrap() {
        let path = entry.unwrap().path();
        // A library that backends share has no driver, and no column.
        if path.join("Cargo.toml").exists() && !path.ends_with("remote") {
            all.extend(missing(root, path.file_name().unwrap().to_str().unwrap()));
        }
    }
    let all = all.join("\n");
    assert!(
        all.is_empty(),
        "see \"A new backend\" in CONTRIBUTING.md\n{all}"
    );
}
