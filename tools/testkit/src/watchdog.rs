//! A process that ends a server and removes its folder, also when this process is killed.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;

/// Each line of its input is the list of the processes that run. The input ends however this process ends.
///
/// It ignores the terminal's signals, since it has to outlive this process. While the killed processes end, they may
/// still add a file to the folder.
const SCRIPT: &str = r#"trap '' HUP INT TERM
running=
while read -r line; do running=$line; done
[ -z "$running" ] || kill -9 $running 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9; do
    [ -e "$1" ] || exit
    rm -rf -- "$1" 2>/dev/null || sleep 1
done"#;

/// The watchdog of one server and its folder.
#[derive(Debug)]
pub(crate) struct Watchdog(Child);

impl Watchdog {
    pub(crate) fn start(folder: &Path) -> io::Result<Self> {
        Command::new("/bin/sh")
            .args(["-c", SCRIPT, "lockkeeper-watchdog"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A runner's kill of the group must not reach it.
            .process_group(0)
            .spawn()
            .map(Self)
    }

    /// Sets the processes that the watchdog kills, instead of those before. Call this before waiting for a
    /// process, since its id may be reused afterwards.
    pub(crate) fn watch(&self, running: &[Pid]) -> io::Result<()> {
        let ids = running.iter().map(|pid| pid.as_raw_nonzero().to_string());
        let line = ids.collect::<Vec<_>>().join(" ") + "\n";
        let mut input = self.0.stdin.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all(line.as_bytes())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // This closes its input, and then it removes what is left of the folder.
        let _ = self.0.wait();
    }
}
