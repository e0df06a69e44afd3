//! The folder with a server's data: made once, which takes seconds, and copied for every server.

use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{MySqlKind, MySqlServer};
use crate::find;

/// Fills `into`, which does not exist yet, with the data of a server that has never run.
pub(super) fn fill(kind: MySqlKind, program: &Path, into: &Path) -> io::Result<()> {
    // Without a place for it, or with one that cannot be written to, each server waits for its own.
    match template(kind, program) {
        Ok(template) => copy(&template, into),
        Err(_) => make(kind, program, into),
    }
}

/// The one to copy from, made now if it is not there yet.
fn template(kind: MySqlKind, program: &Path) -> io::Result<PathBuf> {
    let place = find::cache_folder()
        .ok_or(io::ErrorKind::NotFound)?
        .join("data");
    let mut key = DefaultHasher::new();
    (program, find::version_of(program), setup(kind)).hash(&mut key);
    let template = place.join(format!("{kind}-{:016x}", key.finish()));
    if template.is_dir() {
        return Ok(template);
    }
    fs::create_dir_all(&place)?;
    // One process at a time, and it appears under its name only when it is whole.
    let lock = File::create(place.join(format!("{kind}.lock")))?;
    lock.lock()?;
    if !template.is_dir() {
        let new = tempfile::Builder::new()
            .prefix(".new-")
            .tempdir_in(&place)?;
        let data = new.path().join("data");
        make(kind, program, &data)?;
        fs::rename(data, &template)?;
    }
    Ok(template)
}

/// What is done to the system's tables: nobody gets in by TCP without a password.
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
            // Less is too little for the initialisation, which then waits for itself.
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

/// What makes a server small and quick. None of it changes what a client sees.
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
    // Who is root has to say that it is meant.
    if rustix::process::geteuid().is_root() {
        args.push("--user=root");
    }
    args
}

/// Where a server out of a folder has its files; others know it by themselves.
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

/// The folder that MariaDB is installed under.
fn base(program: &Path) -> Option<PathBuf> {
    let program = program.canonicalize().ok()?;
    Some(program.parent()?.parent()?.to_owned())
}

/// MariaDB's script that makes a data folder.
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

/// Runs it to its end, with `input` for its standard input.
fn run(command: &mut Command, input: &str) -> io::Result<()> {
    let mut child = command
        // Some look at what lies around them.
        .current_dir(env::temp_dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    // Shorter than a pipe holds, so that this does not wait for the other end.
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let ended = child.wait_with_output()?;
    if ended.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} did not make a data folder ({}). It said:\n{}",
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

/// Most of it is zeros, which need not be written.
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
