//! Kinds of MySQL servers.

use crate::kinds::server_kinds;

server_kinds! {
    /// A kind of MySQL server.
    MySqlKind {
        /// MariaDB 10.x, as Debian 12 and Ubuntu 24.04 have it.
        MariaDb10 = "mariadb-10", ["MariaDB", "Ver 10."];
        /// Oracle's MySQL 9.x.
        MySql9 = "mysql-9", ["Ver 9."];
    }
    all: [MariaDb10, MySql9]; 2
    variables: &["TESTKIT_MARIADBD", "TESTKIT_MYSQLD"];
    unpacked: &["mysql-9/mysqld"];
    installed: &["mariadbd", "mysqld"];
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
