//! The user that a server runs as: `initdb`, `postgres` and `pgbouncer` refuse to run as root.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;

/// The user and group that a server runs as, where this process is root.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerUser(Option<(u32, u32)>);

impl ServerUser {
    /// Finds the user `postgres`, which the package makes, else `nobody`.
    pub(super) fn find() -> io::Result<Self> {
        if !geteuid().is_root() {
            return Ok(Self(None));
        }
        let users = fs::read_to_string("/etc/passwd")?;
        let ids = |name: &str| {
            let line = users
                .lines()
                .find(|line| line.split(':').next() == Some(name))?;
            let mut fields = line.split(':').skip(2);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        };
        let found = ids("postgres").or_else(|| ids("nobody"));
        let found = found.ok_or_else(|| io::Error::other("no user `postgres` or `nobody`"))?;
        Ok(Self(Some(found)))
    }

    /// Makes a command that runs as this user.
    pub(super) fn command(self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Self(Some((user, group))) = self {
            command.uid(user).gid(group);
        }
        command
    }

    /// Gives a file or a folder, with all that is in it, to this user.
    pub(super) fn give(self, path: &Path) -> io::Result<()> {
        let Self(Some((user, group))) = self else {
            return Ok(());
        };
        chown(path, Some(user), Some(group))?;
        if path.is_dir() {
            for entry in fs::read_dir(path)? {
                self.give(&entry?.path())?;
            }
        }
        Ok(())
    }
}
