//! A backend of this workspace is in every list that CONTRIBUTING's "A new backend" names. The files of core and of
//! the backends import each other as [`imports`] says. The [`links`] of pages lead somewhere.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[path = "workspace/imports.rs"]
mod imports;
#[path = "workspace/links.rs"]
mod links;

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

/// The places of the backend in `root/backends/{folder}`, and those that lack it.
struct Places<'a> {
    root: &'a Path,
    folder: &'a str,
    missing: Vec<String>,
}

impl Places<'_> {
    /// Returns the text of a file; nothing if there is none.
    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.root.join(file)).unwrap_or_default()
    }

    /// Returns the texts of the pages about stores.
    fn store_pages(&self) -> impl Iterator<Item = String> {
        let pages = fs::read_dir(self.root.join("docs/stores")).unwrap();
        pages.map(|page| fs::read_to_string(page.unwrap().path()).unwrap())
    }

    fn manifest(&self, file: &str) -> Table {
        self.read(file).parse().unwrap()
    }

    fn want(&mut self, is_there: bool, what: &str) {
        if !is_there {
            let folder = self.folder;
            self.missing
                .push(format!("backends/{folder}: {what} is missing"));
        }
    }

    /// Checks the places of the package. Returns whether a feature turns it on.
    fn check_package(&mut self) -> bool {
        let folder = self.folder;
        let (package, path) = (format!("lockkeeper-{folder}"), format!("backends/{folder}"));
        let manifest = self.manifest("Cargo.toml");
        for key in ["members", "default-members"] {
            let is_there = texts(&manifest["workspace"][key]).any(|member| member == path);
            self.want(is_there, &format!("the entry in `{key}` of Cargo.toml"));
        }
        let is_there = manifest["workspace"]["dependencies"].get(&package);
        self.want(
            is_there.is_some(),
            "the entry in `[workspace.dependencies]` of Cargo.toml",
        );
        let features = manifest["features"].as_table().unwrap();
        let (optional, of_package) = (format!("dep:{package}"), format!("{package}/"));
        let mut parts = features.values().flat_map(texts);
        let is_there = parts.any(|part| part == optional || part.starts_with(&of_package));
        self.want(is_there, "the feature in Cargo.toml");
        let own = self.manifest(&format!("{path}/Cargo.toml"));
        let has_tls = own
            .get("features")
            .is_some_and(|it| it.get("tls").is_some());
        let tls = format!("{package}?/tls");
        self.want(
            !has_tls || texts(&features["tls"]).any(|part| part == tls),
            "its part of the feature `tls` in Cargo.toml",
        );
        let is_optional = features.contains_key(folder);
        let command = self.manifest("cli/Cargo.toml");
        let in_command = &command["dependencies"]["lockkeeper"]["features"];
        let mut on = texts(&features["default"]).chain(texts(in_command));
        self.want(
            !is_optional || on.any(|feature| feature == folder),
            "its feature in cli/Cargo.toml",
        );
        let module = format!("pub use {} as {folder};", package.replace('-', "_"));
        self.want(
            self.read("src/lib.rs").contains(&module),
            "its module in `backends` of src/lib.rs",
        );
        let suites = self.read("tests/conformance.rs");
        let is_there = suites.contains(&format!("\"{package}\""));
        self.want(is_there, "its suite in tests/conformance.rs");
        let is_there = self.read("ARCHITECTURE.md").contains(&path);
        self.want(is_there, "its part of ARCHITECTURE.md");
        is_optional
    }

    /// Checks the places of a driver.
    fn check_driver(&mut self, driver: &DriverSource, is_optional: bool) {
        let DriverSource { name, schemes } = driver;
        let facade = self.read("src/lib.rs");
        let path = format!("lockkeeper_{}::{name}", self.folder);
        self.want(
            facade.contains(&path),
            &format!("{path} in `drivers()` of src/lib.rs"),
        );
        let bench = match driver.schemes.iter().any(|scheme| scheme == "quorum") {
            true => "tools/bench/src/main.rs",
            false => "tools/bench/src/store.rs",
        };
        self.listed(driver, bench, &["free ", "\""]);
        self.listed(driver, "docs/shapes.md", &["`"]);
        let readme = self.read("README.md");
        let columns = readme
            .lines()
            .find(|line| line.starts_with("| | `memory:`"));
        for scheme in schemes {
            let (code, text) = (format!("`{scheme}:"), format!("\"{scheme}\""));
            self.want(
                columns.unwrap().contains(&code),
                &format!("a column with {code}` in README's table"),
            );
            for file in ["src/lib.rs", "CHANGELOG.md"] {
                let is_there = self.read(file).contains(&code);
                self.want(is_there, &format!("{code}` in {file}"));
            }
            let is_there = self.store_pages().any(|page| page.contains(&code));
            self.want(is_there, &format!("a page with {code}` in docs/stores/"));
            self.want(
                !is_optional || facade.contains(&text),
                &format!("{text} in src/lib.rs, for a build without the feature"),
            );
        }
    }

    /// Checks the places of a driver whose store is a server.
    fn check_server(&mut self, driver: &DriverSource) {
        for (file, before) in [
            ("scripts/servers", &["wanted "][..]),
            ("tools/testkit/src/store_kind.rs", &["=> "]),
            ("tests/faults/main.rs", &["mod "]),
            ("tools/soak/src/store.rs", &["mod ", "sessions::start_"]),
            ("cli/compare.schema.json", &["|"]),
        ] {
            self.listed(driver, file, before);
        }
        let DriverSource { name, schemes } = driver;
        let client = self.read("compare/src/store/client.rs");
        self.want(
            client.contains(name),
            &format!("{name} in compare/src/store/client.rs"),
        );
        let kinds = self.read("tools/testkit/src/store_kind.rs").to_lowercase();
        let (_, servers) = kinds.split_once("pub fn servers()").unwrap();
        let (servers, _) = servers.split_once("pub fn").unwrap();
        let mut kinds = schemes.iter().map(|scheme| format!("{scheme}kind::"));
        self.want(
            kinds.any(|kind| servers.contains(&kind)),
            &format!("the server of {name} in `StoreKind::servers`"),
        );
    }

    /// Checks that a file lists a driver: one of its schemes after one of some texts.
    fn listed(&mut self, driver: &DriverSource, file: &str, before: &[&str]) {
        let text = self.read(file);
        let mut entries = driver.schemes.iter().flat_map(|scheme| {
            let entry = move |before: &&str| format!("{before}{scheme}");
            before.iter().map(entry)
        });
        let is_there = entries.any(|entry| text.contains(&entry));
        let (name, before) = (&driver.name, before.join("SCHEME or "));
        self.want(
            is_there,
            &format!("a line with {before}SCHEME of {name} in {file}"),
        );
    }
}

/// Returns what lacks the backend of `root/backends/{folder}`.
fn missing(root: &Path, folder: &str) -> Vec<String> {
    let mut places = Places {
        root,
        folder,
        missing: Vec::new(),
    };
    let is_optional = places.check_package();
    let own = places.read(&format!("backends/{folder}/Cargo.toml"));
    let is_server = own.contains("lockkeeper-remote");
    let mut found = Vec::new();
    drivers(&root.join(format!("backends/{folder}/src")), &mut found);
    places.want(!found.is_empty(), "an `impl Driver` in its sources");
    for driver in found {
        places.check_driver(&driver, is_optional);
        if is_server {
            places.check_server(&driver);
        }
    }
    places.missing
}

#[test]
fn every_backend_is_in_every_list() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    for entry in fs::read_dir(root.join("backends")).unwrap() {
        let path = entry.unwrap().path();
        // A library that backends share has no driver, and no column.
        let is_library = ["remote", "sessions", "register"]
            .iter()
            .any(|it| path.ends_with(it));
        if path.join("Cargo.toml").exists() && !is_library {
            all.extend(missing(root, path.file_name().unwrap().to_str().unwrap()));
        }
    }
    let all = all.join("\n");
    assert!(
        all.is_empty(),
        "see \"A new backend\" in CONTRIBUTING.md\n{all}"
    );
}
