//! Searches for the programs of servers.

use std::collections::HashSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the folder that `scripts/servers` unpacks servers into that the distribution does not have.
fn servers_folder() -> PathBuf {
    env::var_os("TESTKIT_SERVERS")
        .filter(|folder| !folder.is_empty())
        .map_or_else(
            || {
                let package = Path::new(env!("CARGO_MANIFEST_DIR"));
                package.join("../../target/servers")
            },
            PathBuf::from,
        )
}

/// Returns the folder for data that is kept between runs: that of the servers if it exists, else the
/// user's cache.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let servers = servers_folder();
    if servers.is_dir() {
        return Some(servers);
    }
    let home = |name, below: &str| {
        let folder = PathBuf::from(env::var_os(name)?);
        folder.is_absolute().then(|| folder.join(below))
    };
    home("XDG_CACHE_HOME", "lockkeeper").or_else(|| home("HOME", ".cache/lockkeeper"))
}

/// Returns `program` in every folder of PATH, and in folders of servers that may not be on PATH.
pub(crate) fn on_path(program: &str) -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let others = [
        "/usr/sbin",
        "/usr/local/bin",
        "/usr/local/sbin",
        "/opt/homebrew/bin",
    ];
    // Debian has a folder for each version of PostgreSQL. They come first: all programs of the version are in there, and
    // PATH may have a link to one of them.
    let versions = entries("/usr/lib/postgresql").map(|version| version.join("bin"));
    let mut folders: Vec<PathBuf> = versions
        .chain(env::split_paths(&path))
        .chain(others.map(PathBuf::from))
        // Resolve the folder only, since a program may depend on the name of its link.
        .filter_map(|folder| folder.canonicalize().ok())
        .collect();
    let mut seen = HashSet::new();
    folders.retain(|folder| seen.insert(folder.clone()));
    folders
        .into_iter()
        .map(|folder| folder.join(program))
        .filter(|file| file.is_file())
        .collect()
}

/// Returns what is in a folder.
fn entries(folder: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = Path::new(folder).read_dir().into_iter().flatten();
    entries.flatten().map(|entry| entry.path())
}

/// Returns the program that an environment variable names, if it is set.
fn named_by(variable: &str) -> Option<PathBuf> {
    env::var_os(variable)
        .filter(|program| !program.is_empty())
        .map(PathBuf::from)
}

/// Returns the library that gives a program another wall clock: the one that `TESTKIT_FAKETIME` names, else that of the
/// distribution's package.
pub(crate) fn faketime() -> Result<PathBuf, String> {
    // Below /usr/lib/x86_64-linux-gnu on Debian, and below /usr/lib64 on Fedora.
    let folders = entries("/usr/lib").chain(["/usr/lib", "/usr/lib64"].map(PathBuf::from));
    let mut files = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    let found = named_by("TESTKIT_FAKETIME").or_else(|| files.find(|it| it.is_file()));
    found.ok_or_else(|| "no libfaketime on this machine; scripts/servers installs it".to_owned())
}

/// Programs, and the output of `--version` of each.
pub(crate) struct Found(Vec<(PathBuf, Result<String, String>)>);

impl Found {
    /// Asks the programs that environment variables name, those that `scripts/servers` unpacked, and installed ones.
    pub(crate) fn search(variables: &[&str], unpacked: &[&str], installed: &[&str]) -> Self {
        let folder = servers_folder();
        let named = variables.iter().filter_map(|name| named_by(name));
        let unpacked = unpacked.iter().map(|program| folder.join(program));
        let installed = installed.iter().flat_map(|program| on_path(program));
        let programs = named.chain(unpacked).chain(installed);
        let asked = programs.map(|program| {
            let version = version_of(&program);
            (program, version)
        });
        Self(asked.collect())
    }

    /// Returns the first program whose version `matches`, else a text that says what was found instead.
    pub(crate) fn choose(
        &self,
        name: &str,
        matches: impl Fn(&str) -> bool,
    ) -> Result<PathBuf, String> {
        let versions = || {
            let said = self.0.iter();
            said.filter_map(|(program, version)| Some((program, version.as_ref().ok()?)))
        };
        if let Some((program, _)) = versions().find(|(_, version)| matches(version)) {
            return Ok(program.clone());
        }
        let seen: Vec<String> = versions()
            .map(|(program, version)| {
                let version: Vec<&str> = version.split_whitespace().take(3).collect();
                format!("{} is {}", program.display(), version.join(" "))
            })
            .collect();
        let seen = if seen.is_empty() {
            "no server program was found".to_owned()
        } else {
            seen.join(", ")
        };
        Err(format!(
            "no {name} on this machine ({seen}); scripts/servers sets it up"
        ))
    }
}

/// Returns the output of `--version`, or why there is none.
pub(crate) fn version_of(program: &Path) -> Result<String, String> {
    let said = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{} does not start: {error}", program.display()))?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

/// Returns whether this runs in continuous integration, where a missing server is a failure.
fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

/// Returns why tests are shown as ignored; in continuous integration they never are.
pub(crate) fn ignored(program: impl FnOnce() -> Result<PathBuf, String>) -> Option<String> {
    if in_ci() { None } else { program().err() }
}
