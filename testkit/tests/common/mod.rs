//! What the tests of all servers share.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use lockkeeper_testkit::until;

/// Makes this program the owner that is killed in `server_ends_with_killed_owner`.
const CHILD: &str = "TESTKIT_CHILD";

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

/// Returns the kind of server that this process starts, if it is such an owner.
pub(crate) fn child() -> Option<String> {
    env::var(CHILD).ok()
}

/// Prints which server this process owns, and waits to be killed.
pub(crate) fn run_child(pid: u32, folder: &Path) -> ExitCode {
    println!("{pid} {}", folder.display());
    let _ = std::io::stdin().read(&mut [0]);
    ExitCode::SUCCESS
}

/// Starts this program as the owner of a server, and kills it.
pub(crate) fn server_ends_with_killed_owner(kind: &str) {
    let mut owner = Command::new(env::current_exe().unwrap())
        .env(CHILD, kind)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(owner.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let (pid, folder) = line.trim_end().split_once(' ').unwrap();
    let (pid, folder) = (pid.parse().unwrap(), PathBuf::from(folder));
    assert!(alive(pid) && folder.exists());
    owner.kill().unwrap();
    owner.wait().unwrap();
    until("the server ends", || !alive(pid));
    until("its folder goes", || !folder.exists());
}
