//! The data folder of a MySQL or MariaDB.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{MySqlKind, MySqlServer};
use crate::find;
use crate::template::{self, run};

/// Makes the data folder `into` of a server that has never run.
pub(super) fn fill(kind: MySqlKind, program: &Path, into: &Path) -> io::Result<()> {
    let make = |into: &Path| make(kind, program, into);
    template::fill(kind.name(), program, setup(kind), into, make)
}

/// Returns the SQL that creates the user and the database, and removes accounts without a password that
/// TCP clients could use.
fn setup(kind: MySqlKind) -> String {
    let (user, password, database) = (
        MySqlServer::USER,
        MySqlServer::PASSWORD,
        MySqlServer::DATABASE,
    );
    let privileges = match kind {
        MySqlKind::MariaDb10 => {
            "DELETE FROM mysql.global_priv \
             WHERE User = '' OR (User = 'root' AND Host <> 'localhost');\n\
             FLUSH PRIVILEGES;\n"
        }
        MySqlKind::MySql9 => "",
    };
    format!(
        "{privileges}CREATE DATABASE {database};\n\
         CREATE USER '{user}'@'%' IDENTIFIED BY '{password}';\n\
         GRANT ALL ON {database}.* TO '{user}'@'%';\n"
    )
}

fn make(kind: MySqlKind, program: &Path, into: &Path) -> io::Result<()> {
    match kind {
        MySqlKind::MariaDb10 => {
            let mut install = Command::new(installer(program)?);
            install.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
            install.args(["--skip-test-db", "--skip-name-resolve"]);
            if let Some(base) = base(program) {
                install.arg(format!("--basedir={}", base.display()));
            }
            run(with_data(&mut install, kind, into), "")?;
            let mut bootstrap = Command::new(program);
            bootstrap.args(["--no-defaults", "--bootstrap"]);
            run(with_data(&mut bootstrap, kind, into), &setup(kind))
        }
        MySqlKind::MySql9 => {
            let file = into.with_extension("sql");
            fs::write(&file, setup(kind))?;
            let mut initialize = Command::new(program);
            initialize.args(["--no-defaults", "--initialize-insecure"]);
            initialize.arg(format!("--init-file={}", file.display()));
            initialize.args(own_files(program));
            // With less, the initialisation waits for log space repeatedly.
            with_data(&mut initialize, kind, into).arg("--innodb-redo-log-capacity=64M");
            run(&mut initialize, "")?;
            fs::remove_file(file)
        }
    }
}

fn with_data<'a>(command: &'a mut Command, kind: MySqlKind, data: &Path) -> &'a mut Command {
    command
        .arg(format!("--datadir={}", data.display()))
        .args(quick(kind))
}

/// Returns arguments that make a server small and quick, and change nothing that a client of a new one sees.
pub(super) fn quick(kind: MySqlKind) -> Vec<&'static str> {
    let mut args = vec![
        "--skip-log-bin",
        "--innodb-buffer-pool-size=8M",
        "--innodb-doublewrite=OFF",
        "--innodb-flush-method=nosync",
        "--innodb-flush-log-at-trx-commit=2",
    ];
    args.extend_from_slice(match kind {
        MySqlKind::MariaDb10 => &[
            "--innodb-log-file-size=4M",
            "--innodb-temp-data-file-path=ibtmp1:3M:autoextend",
            "--aria-pagecache-buffer-size=1M",
            "--key-buffer-size=1M",
            // The default since 11.6.2. MySQL does not have it.
            "--loose-innodb-snapshot-isolation=ON",
        ],
        MySqlKind::MySql9 => &[
            "--innodb-redo-log-capacity=8M",
            "--innodb-log-buffer-size=1M",
            "--auto-generate-certs=OFF",
        ],
    });
    // The servers refuse to run as root without this.
    if rustix::process::geteuid().is_root() {
        args.push("--user=root");
    }
    args
}

/// Returns the paths of the files of a server that was unpacked into a folder; an installed server
/// knows its own.
pub(super) fn own_files(program: &Path) -> Vec<String> {
    let root = program.parent().map(|folder| folder.join("root/usr"));
    let Some(root) = root.filter(|root| root.join("share/mysql").is_dir()) else {
        return Vec::new();
    };
    [
        ("lc-messages-dir", "share/mysql"),
        ("character-sets-dir", "share/mysql/charsets"),
        ("plugin-dir", "lib/mysql/plugin"),
    ]
    .map(|(name, path)| format!("--{name}={}", root.join(path).display()))
    .into()
}

/// Returns the folder that MariaDB is installed under.
fn base(program: &Path) -> Option<PathBuf> {
    let program = program.canonicalize().ok()?;
    Some(program.parent()?.parent()?.to_owned())
}

/// Finds MariaDB's script that makes a data folder.
fn installer(program: &Path) -> io::Result<PathBuf> {
    let near = base(program).into_iter();
    near.flat_map(|base| ["bin", "scripts"].map(|folder| base.join(folder)))
        .map(|folder| folder.join("mariadb-install-db"))
        .filter(|file| file.is_file())
        .chain(find::on_path("mariadb-install-db"))
        .next()
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("no mariadb-install-db for {}", program.display()),
            )
        })
}
