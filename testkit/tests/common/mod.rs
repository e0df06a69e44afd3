//! What the tests of all servers need.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Makes this program the one that is killed in `dies_with_its_owner`.
const CHILD: &str = "TESTKIT_CHILD";

/// For what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Whether a process of this number is there and no zombie.
pub(crate) fn alive(pid: u32) -> bool {
    let out = Command::new("ps")
        .args(["-o", "stat=", "-p", &pid.to_string()])
        .output()
        .unwrap();
    let stat = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    !stat.is_empty() && !stat.starts_with('Z')
}

pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The kind of server that this process is to start and be killed with, if it is such a child.
pub(crate) fn child() -> Option<String> {
    env::var(CHILD).ok()
}

/// Says which server it has, and waits for its end.
pub(crate) fn be_the_child(pid: u32, folder: &Path) -> ExitCode {
    println!("{pid} {}", folder.display());
    let _ = std::io::stdin().read(&mut [0]);
    ExitCode::SUCCESS
}

/// Starts this program as the owner of a server, and kills it.
pub(crate) fn dies_with_its_owner(kind: &str) {
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
