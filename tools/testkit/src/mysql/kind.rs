//! Kinds of MySQL servers, and where their programs are.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::find::{self, Found};

/// A kind of MySQL server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MySqlKind {
    /// MariaDB 10.x, as Debian 12 and Ubuntu 24.04 have it.
    MariaDb10,
    /// Oracle's MySQL 9.x.
    MySql9,
}

impl MySqlKind {
    /// All kinds that `scripts/servers` sets up.
    pub const ALL: [Self; 2] = [Self::MariaDb10, Self::MySql9];

    /// Returns the name for tests: `mariadb-10`, `mysql-9`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MariaDb10 => "mariadb-10",
            Self::MySql9 => "mysql-9",
        }
    }

    /// Returns whether a program with this version is of this kind. The path does not matter, since either
    /// may be installed as the other.
    fn matches(self, version: &str) -> bool {
        let maria = version.contains("MariaDB");
        match self {
            Self::MariaDb10 => maria && version.contains("Ver 10."),
            Self::MySql9 => !maria && version.contains("Ver 9."),
        }
    }

    /// Returns the program: the first of this kind among `TESTKIT_MARIADBD`, `TESTKIT_MYSQLD`, those that
    /// `scripts/servers` unpacked, and those on PATH and in `/usr/sbin`. Searched once per process.
    ///
    /// # Errors
    /// There is none: the text says what was found instead, and what to do.
    pub fn program(self) -> Result<PathBuf, String> {
        static FOUND: OnceLock<Found> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            Found::search(
                ["TESTKIT_MARIADBD", "TESTKIT_MYSQLD"]
                    .into_iter()
                    .filter_map(find::named_by)
                    .chain([find::servers_folder().join("mysql-9/mysqld")])
                    .chain(find::on_path("mariadbd"))
                    .chain(find::on_path("mysqld")),
            )
        });
        found.choose(self.name(), |version| self.matches(version))
    }

    /// Returns why tests with this server are shown as ignored, `None` when they run. In continuous
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
    fn kinds_are_told_apart_by_version() {
        let maria =
            "/usr/sbin/mysqld  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64";
        let mysql = "/usr/sbin/mariadbd  Ver 9.7.4-2 for Linux on x86_64 ((Debian))";
        assert!(MySqlKind::MariaDb10.matches(maria) && !MySqlKind::MySql9.matches(maria));
        assert!(MySqlKind::MySql9.matches(mysql) && !MySqlKind::MariaDb10.matches(mysql));
    }
}
