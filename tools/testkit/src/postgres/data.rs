//! The data folder of a PostgreSQL server.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::user::ServerUser;
use super::{PostgresKind, PostgresServer};
use crate::template::{self, run};

/// Makes the data folder `into` of a server that has never run.
pub(super) fn fill(
    kind: PostgresKind,
    program: &Path,
    user: ServerUser,
    into: &Path,
) -> io::Result<()> {
    let make = |into: &Path| make(program, user, into);
    template::fill(kind.name(), program, setup(), into, make)?;
    // The server refuses a folder that others can read.
    fs::set_permissions(into, Permissions::from_mode(0o700))?;
    user.give(into)
}

/// Makes the data folder `into` of a standby, as a copy of its primary's.
pub(super) fn back_up(
    primary: &PostgresServer,
    program: &Path,
    user: ServerUser,
    into: &Path,
) -> io::Result<()> {
    let mut command = user.command(&program.with_file_name("pg_basebackup"));
    command.arg("-D").arg(into).arg("-h").arg(primary.folder());
    command.args(["-p", &primary.addr().port().to_string(), "-U", "postgres"]);
    command.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
    run(&mut command, "")
}

/// Returns the SQL that makes the user and the database, a statement a line. A database has 300 files, which each server
/// copies: so the one that is there gets another name, and the second template goes.
fn setup() -> String {
    let (user, password, database) = (
        PostgresServer::USER,
        PostgresServer::PASSWORD,
        PostgresServer::DATABASE,
    );
    format!(
        "CREATE ROLE {user} LOGIN PASSWORD '{password}'\n\
         ALTER DATABASE postgres RENAME TO {database}\n\
         ALTER DATABASE {database} OWNER TO {user}\n\
         ALTER DATABASE template0 IS_TEMPLATE false\n\
         DROP DATABASE template0\n"
    )
}

fn make(program: &Path, user: ServerUser, into: &Path) -> io::Result<()> {
    // The server's user may not come to the cache folder.
    let folder = tempfile::Builder::new().prefix("lk-").tempdir()?;
    user.give(folder.path())?;
    let data = folder.path().join("data");
    let mut initdb = user.command(&program.with_file_name("initdb"));
    initdb.arg("-D").arg(&data);
    initdb.args(["--username=postgres", "--auth=trust", "--no-sync"]);
    initdb.args(["--encoding=UTF8", "--locale=C"]);
    run(&mut initdb, "")?;
    let mut single = user.command(program);
    single.arg("--single").arg("-D").arg(&data);
    single.args(["-c", "fsync=off", "template1"]);
    run(&mut single, &setup())?;
    template::copy(&data, into)
}
