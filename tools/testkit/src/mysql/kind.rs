//! Kinds of MySQL servers, and where their programs are.

use std::path::PathBuf;

use crate::find;
use crate::kinds::server_kinds;

server_kinds! {
    /// A kind of MySQL server.
    MySqlKind {
        /// MariaDB 10.x, as Debian 12 and Ubuntu 24.04 have it.
        MariaDb10 = "mariadb-10",
        /// Oracle's MySQL 9.x.
        MySql9 = "mysql-9",
    }
    all: [MariaDb10, MySql9]; 2
}

impl MySqlKind {
    /// Returns whether a program with this version is of this kind. The path does not matter, since either may be
    /// installed as the other.
    fn matches(self, version: &str) -> bool {
        let maria = version.contains("MariaDB");
        match self {
            Self::MariaDb10 => maria && version.contains("Ver 10."),
            Self::MySql9 => !maria && version.contains("Ver 9."),
        }
    }

    fn candidates() -> Vec<PathBuf> {
        let named = ["TESTKIT_MARIADBD", "TESTKIT_MYSQLD"];
        let mut programs: Vec<_> = named.into_iter().filter_map(find::named_by).collect();
        programs.push(find::servers_folder().join("mysql-9/mysqld"));
        programs.extend(find::on_path("mariadbd"));
        programs.extend(find::on_path("mysqld"));
        programs
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
