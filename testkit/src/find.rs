//! Where the servers are.

use std::collections::HashSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where `scripts/servers` unpacks what the distribution does not have.
pub(crate) fn servers_folder() -> PathBuf {
    env::var_os("TESTKIT_SERVERS")
        .filter(|folder| !folder.is_empty())
        .map_or_else(
            || {
                let package = Path::new(env!("CARGO_MANIFEST_DIR"));
                package
                    .parent()
                    .unwrap_or(package)
                    .join("target")
                    .join("servers")
            },
            PathBuf::from,
        )
}

/// Where what takes long to make is kept between runs: with the servers where there are any, else
/// with the user's other caches.
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

/// `program` in every folder of PATH, and in those where systems keep servers and PATH may not lead to.
pub(crate) fn on_path(program: &str) -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path)
        .chain(
            [
                "/usr/sbin",
                "/usr/local/bin",
                "/usr/local/sbin",
                "/opt/homebrew/bin",
            ]
            .map(PathBuf::from),
        )
        // The folder's own name only: the program may be a link that is looked at by its name.
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

/// The program that an environment variable names, if it is set.
pub(crate) fn named_by(variable: &str) -> Option<PathBuf> {
    env::var_os(variable)
        .filter(|program| !program.is_empty())
        .map(PathBuf::from)
}

/// Programs, and what each says to `--version`.
pub(crate) struct Found(Vec<(PathBuf, Result<String, String>)>);

impl Found {
    pub(crate) fn look(programs: impl Iterator<Item = PathBuf>) -> Self {
        Self(
            programs
                .map(|program| (version_of(&program), program))
                .map(|(version, program)| (program, version))
                .collect(),
        )
    }

    /// The first whose version `is_it`; if there is none, what was found instead.
    pub(crate) fn choose(
        &self,
        name: &str,
        is_it: impl Fn(&str) -> bool,
    ) -> Result<PathBuf, String> {
        let versions = || {
            let said = self.0.iter();
            said.filter_map(|(program, version)| Some((program, version.as_ref().ok()?)))
        };
        if let Some((program, _)) = versions().find(|(_, version)| is_it(version)) {
            return Ok(program.clone());
        }
        let seen: Vec<String> = versions()
            .map(|(program, version)| {
                let version: Vec<&str> = version.split_whitespace().take(3).collect();
                format!("{} is {}", program.display(), version.join(" "))
            })
            .collect();
        let seen = if seen.is_empty() {
            "no server of that kind found".to_owned()
        } else {
            seen.join(", ")
        };
        Err(format!(
            "no {name} on this machine ({seen}); scripts/servers sets it up"
        ))
    }
}

/// What the program says to `--version`, or why it says nothing.
pub(crate) fn version_of(program: &Path) -> Result<String, String> {
    let said = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{} does not start: {error}", program.display()))?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

/// Whether this runs as continuous integration, where a missing server is a failure.
fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

/// Why tests are to show as ignored; in continuous integration they never are.
pub(crate) fn ignored(program: impl FnOnce() -> Result<PathBuf, String>) -> Option<String> {
    if in_ci() { None } else { program().err() }
}
