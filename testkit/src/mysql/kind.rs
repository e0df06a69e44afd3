//! Which server, and where it is.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::find::{self, Found};

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MySqlKind {
    /// MariaDB 10.x, as Debian 12 and Ubuntu 24.04 have it.
    MariaDb10,
    /// MySQL 9.x, Oracle's.
    MySql9,
}

impl MySqlKind {
    /// All that `scripts/servers` sets up.
    pub const ALL: [Self; 2] = [Self::MariaDb10, Self::MySql9];

    /// `mariadb-10`, `mysql-9`: for the names of tests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MariaDb10 => "mariadb-10",
            Self::MySql9 => "mysql-9",
        }
    }

    /// By the version alone: either may call itself by the other's path.
    fn is_it(self, version: &str) -> bool {
        let maria = version.contains("MariaDB");
        match self {
            Self::MariaDb10 => maria && version.contains("Ver 10."),
            Self::MySql9 => !maria && version.contains("Ver 9."),
        }
    }

    /// The program: `TESTKIT_MARIADBD`, `TESTKIT_MYSQLD`, what `scripts/servers` unpacked, or one
    /// on PATH or in `/usr/sbin`; the first that says it is this kind. Looked for once per process.
    ///
    /// # Errors
    /// There is none: what was found instead, and what to do.
    pub fn program(self) -> Result<PathBuf, String> {
        static FOUND: OnceLock<Found> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            Found::look(
                ["TESTKIT_MARIADBD", "TESTKIT_MYSQLD"]
                    .into_iter()
                    .filter_map(find::named_by)
                    .chain([find::servers_folder().join("mysql-9/mysqld")])
                    .chain(find::on_path("mariadbd"))
                    .chain(find::on_path("mysqld")),
            )
        });
        found.choose(self.name(), |version| self.is_it(version))
    }

    /// Why tests with this server are to show as ignored; `None` when they are to run. In continuous
    /// integration (`CI` is set) they always run, and fail where the server is missing.
    #[must_use]
    pub fn ignored(self) -> Option<String> {
        find::ignored(|| self.program())
    }
}

impl fmt::Display for MySqlKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_told_apart_by_what_they_say() {
        let maria =
            "/usr/sbin/mysqld  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64";
        let mysql = "/usr/sbin/mariadbd  Ver 9.7.4-2 for Linux on x86_64 ((Debian))";
        assert!(MySqlKind::MariaDb10.is_it(maria) && !MySqlKind::MySql9.is_it(maria));
        assert!(MySqlKind::MySql9.is_it(mysql) && !MySqlKind::MariaDb10.is_it(mysql));
    }
}
