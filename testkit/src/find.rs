//! Where the servers are.

use std::collections::HashSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where `scripts/servers` unpacks what the distribution does not have.
pub(crate) fn servers_folder() -> PathBuf {
    env::var_os("LOCKKEEPER_SERVERS")
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
pub(crate) fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}
