//! The data folder of a server: made once, which takes seconds, and copied for every server.

use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::find;

/// Makes the data folder `into` of a server that has never run. `make` makes one, by way of `setup`.
pub(crate) fn fill(
    name: &str,
    program: &Path,
    setup: impl Hash,
    into: &Path,
    make: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<()> {
    // Without a cache folder that can be written to, each server initialises its own data.
    match template(name, program, setup, &make) {
        Ok(template) => copy(&template, into),
        Err(_) => make(into),
    }
}

/// Returns the folder to copy from, and makes it if it does not exist.
fn template(
    name: &str,
    program: &Path,
    setup: impl Hash,
    make: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<PathBuf> {
    let cache = find::cache_folder()
        .ok_or(io::ErrorKind::NotFound)?
        .join("data");
    let mut key = DefaultHasher::new();
    (program, find::version_of(program), setup).hash(&mut key);
    let template = cache.join(format!("{name}-{:016x}", key.finish()));
    if template.is_dir() {
        return Ok(template);
    }
    fs::create_dir_all(&cache)?;
    // One process makes it at a time, and renames it to its final name when it is complete.
    let lock = File::create(cache.join(format!("{name}.lock")))?;
    lock.lock()?;
    if !template.is_dir() {
        let new = tempfile::Builder::new()
            .prefix(".new-")
            .tempdir_in(&cache)?;
        let data = new.path().join("data");
        make(&data)?;
        fs::rename(data, &template)?;
    }
    Ok(template)
}

/// Runs a command to its end, with `input` as its standard input.
pub(crate) fn run(command: &mut Command, input: &str) -> io::Result<()> {
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
        "{} failed ({}). Its output:\n{}",
        command.get_program().to_string_lossy(),
        ended.status,
        String::from_utf8_lossy(&ended.stderr)
    )))
}

/// Copies a folder. The files belong to this process.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
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

/// A page of InnoDB, or two of PostgreSQL.
const ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// Copies a file without writing its zeros, which most of it is.
fn copy_sparsely(from: &Path, to: &Path) -> io::Result<()> {
    let (mut old, mut new) = (File::open(from)?, File::create_new(to)?);
    let mut block = ZEROS;
    loop {
        let read = old.read(&mut block)?;
        let Some(bytes @ [_, ..]) = block.get(..read) else {
            break;
        };
        // One call of `memcmp`. A debug build that looks at each byte takes longer than the server to start.
        if ZEROS.starts_with(bytes) {
            new.seek(SeekFrom::Current(i64::try_from(read).unwrap_or(0)))?;
        } else {
            new.write_all(bytes)?;
        }
    }
    new.set_len(old.metadata()?.len())
}
