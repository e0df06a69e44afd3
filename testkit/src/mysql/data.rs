//! The data folder of a server: made once, which takes seconds, and copied for every server.

use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{MySqlKind, MySqlServer};
use crate::find;

/// Makes the data folder `into` of a server that has never run.
pub(super) fn fill(kind: MySqlKind, program: &Path, into: &Path) -> io::Result<()> {
    // Without a cache folder that can be written to, each server initialises its own data.
    match template(kind, program) {
        Ok(template) => copy(&template, into),
        Err(_) => make(kind, program, into),
    }
}

/// Returns the folder to copy from, and makes it if it does not exist.
fn template(kind: MySqlKind, program: &Path) -> io::Result<PathBuf> {
    let cache = find::cache_folder()
        .ok_or(io::ErrorKind::NotFound)?
        .join("data");
    let mut key = DefaultHasher::new();
    (program, find::version_of(program), setup(kind)).hash(&mut key);
    let template = cache.join(format!("{kind}-{:016x}", key.finish()));
    if template.is_dir() {
        return Ok(template);
    }
    fs::create_dir_all(&cache)?;
    // One process makes it at a time, and renames it to its final name when it is complete.
    let lock = File::create(cache.join(format!("{kind}.lock")))?;
    lock.lock()?;
    if !template.is_dir() {
        let new = tempfile::Builder::new()
            .prefix(".new-")
            .tempdir_in(&cache)?;
        let data = new.path().join("data");
        make(kind, program, &data)?;
        fs::rename(data, &template)?;
    }
    Ok(template)
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
            // With less, the initialisation waits for log space again and again.
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

/// Returns arguments that make a server small and quick, and change nothing that a client sees.
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
        ],
        MySqlKind::MySql9 => &["--innodb-redo-log-capacity=8M", "--auto-generate-certs=OFF"],
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

/// Runs a command to its end, with `input` as its standard input.
fn run(command: &mut Command, input: &str) -> io::Result<()> {
    let mut child = command
        // The scripts search the current folder for files of a server.
        .current_dir(env::temp_dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    // The input fits into a pipe, so this write does not block.
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let ended = child.wait_with_output()?;
    if ended.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} did not make a data folder ({}). Its output:\n{}",
        command.get_program().to_string_lossy(),
        ended.status,
        String::from_utf8_lossy(&ended.stderr)
    )))
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (old, new) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&old, &new)?;
        } else {
            copy_sparsely(&old, &new)?;
        }
    }
    Ok(())
}

/// Copies a file without writing its zeros, which most of it is.
fn copy_sparsely(from: &Path, to: &Path) -> io::Result<()> {
    let (mut old, mut new) = (File::open(from)?, File::create_new(to)?);
    let mut block = vec![0; 64 << 10];
    loop {
        let read = old.read(&mut block)?;
        let Some(bytes @ [_, ..]) = block.get(..read) else {
            break;
        };
        if bytes.iter().all(|byte| *byte == 0) {
            new.seek(SeekFrom::Current(i64::try_from(read).unwrap_or(0)))?;
        } else {
            new.write_all(bytes)?;
        }
    }
    new.set_len(old.metadata()?.len())
}
