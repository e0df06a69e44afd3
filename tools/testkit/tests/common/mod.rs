//! What the tests of all servers share.

use std::process::Command;
use std::time::Duration;

/// A limit far longer than anything here takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns whether a process with this id exists and is not a zombie.
pub(crate) fn alive(pid: u32) -> bool {
    let out = Command::new("ps")
        .args(["-o", "stat=", "-p", &pid.to_string()])
        .output()
        .unwrap();
    let stat = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    !stat.is_empty() && !stat.starts_with('Z')
}
