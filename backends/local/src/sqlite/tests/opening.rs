//! Opening: errors of URLs and files, and the creation of files.

use super::*;

#[test]
fn errors_name_what_is_wrong_with_the_url() {
    let drivers = Drivers::new().with(SqliteDriver);
    for (url, hint) in [
        ("sqlite:", "sqlite:/var/lib/app/locks.db"),
        ("sqlite://host/locks.db", "one slash"),
        ("sqlite::memory:", "write memory:"),
        ("sqlite:a%00b", "path of a file"),
    ] {
        let error = drivers.open(&Config::from_url(url).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}");
        assert!(error.to_string().contains(hint), "{error}");
    }
}

#[test]
fn errors_name_what_is_wrong_with_the_file() {
    use std::error::Error as _;
    let store = TempStore::new();
    let folder = store.folder.path();

    let error = refused(&folder.join("missing/locks.db"));
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(
        error.to_string().contains("does not exist; create it"),
        "{error}"
    );
    assert!(error.source().is_some());

    fs::write(
        folder.join("text"),
        "no database, and long enough to be seen as none ".repeat(9),
    )
    .unwrap();
    let error = refused(&folder.join("text"));
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(
        error.to_string().contains("not an intact SQLite database"),
        "{error}"
    );
    assert!(error.source().is_some());
    for no_file in [folder.to_owned(), folder.join("text/locks.db")] {
        assert_eq!(
            refused(&no_file).kind(),
            ErrorKind::Incompatible,
            "{no_file:?}"
        );
    }

    let is_refused = |path: &Path, hint: &str| {
        let error = refused(path);
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    };
    is_refused(&folder.join("x".repeat(248)), "too long");
    let deep = folder.join("y".repeat(200)).join("z".repeat(200));
    fs::create_dir_all(&deep).unwrap();
    is_refused(&deep.join("w".repeat(140)), "too long");
    assert_eq!(
        fs::read_dir(&deep).unwrap().count(),
        0,
        "no file was created"
    );
    drop(store.provider());
    drop(SqliteProvider::open(folder.join("x".repeat(247)).to_str().unwrap(), "n").unwrap());
    fs::hard_link(store.path(), folder.join("second.db")).unwrap();
    is_refused(&store.path(), "more than one name");
    fs::remove_file(folder.join("second.db")).unwrap();
    drop(store.provider());
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(folder.join("nowhere"), folder.join("link")).unwrap();
        is_refused(&folder.join("link"), "link to nothing");
        is_refused(Path::new("/dev/null"), "is not a file");
    }

    let other = folder.join("other.db");
    let raw = Connection::open(&other).unwrap();
    raw.execute_batch("CREATE TABLE seats (number)").unwrap();
    let error = refused(&other);
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(
        error.to_string().contains("another application's"),
        "{error}"
    );
    let mode: String = raw
        .query_row("PRAGMA journal_mode", (), |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "delete", "the file is unchanged");

    drop(store.provider());
    store.raw().pragma_update(None, "user_version", 2).unwrap();
    let error = refused(&store.path());
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("upgrade"), "{error}");
}

/// Root cannot create files in sysfs either.
#[cfg(target_os = "linux")]
#[test]
fn unwritable_location_is_permission_denied() {
    let error = refused(Path::new("/sys/locks.db"));
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("write permission"), "{error}");
    assert_eq!(
        convert_error(code(rusqlite::ffi::SQLITE_READONLY)).kind(),
        ErrorKind::PermissionDenied
    );
    assert_eq!(
        convert_error(code(rusqlite::ffi::SQLITE_IOERR)).kind(),
        ErrorKind::Unknown
    );
}

#[test]
fn lost_race_for_the_log_locks_is_retried() {
    let lost = || code(rusqlite::ffi::SQLITE_PROTOCOL);
    assert_eq!(convert_error(lost()).kind(), ErrorKind::Unavailable);
    assert!(db::is_busy(&lost()));
}

#[cfg(target_os = "linux")]
#[test]
fn opening_a_busy_file_does_not_block_other_files() {
    let store = TempStore::new();
    let raw = store.raw();
    raw.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let path = store.path();
    let opening =
        thread::spawn(move || SqliteProvider::open(path.to_str().unwrap(), "n").map(drop));
    let descriptors = || {
        let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let files = all.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
        files.filter(|file| *file == store.path()).count()
    };
    until("the thread tries to open the busy file", || {
        descriptors() > 1
    });
    drop(TempStore::new().provider());
    assert!(!opening.is_finished(), "the busy file is still locked");
    raw.execute_batch("ROLLBACK").unwrap();
    opening.join().unwrap().unwrap();
}

fn code(code: i32) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None)
}

#[cfg(unix)]
#[test]
fn new_files_have_permissions_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let store = TempStore::new();
    let _guard = store.keeper().lock("seat").unwrap();
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let mode = fs::metadata(store.folder.path().join(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let given = store.folder.path().join("given.db");
    drop(Connection::open(&given).unwrap());
    fs::write(&given, "").unwrap();
    fs::set_permissions(&given, fs::Permissions::from_mode(0o660)).unwrap();
    drop(SqliteProvider::open(given.to_str().unwrap(), "default").unwrap());
    assert_eq!(
        fs::metadata(&given).unwrap().permissions().mode() & 0o777,
        0o660
    );
}

/// A user that can read the `-shm` file can put a read lock on the byte that writers lock. In an
/// experiment this blocked all acquisitions.
#[cfg(unix)]
#[test]
fn world_accessible_file_is_a_warning() {
    use lockkeeper_core::Severity;
    use std::os::unix::fs::PermissionsExt;
    let store = TempStore::new();
    let provider = store.provider();
    let examined = || {
        let findings = Backend::admin(&provider)
            .unwrap()
            .examine(HostInstant::NEVER)
            .unwrap();
        let mut about = findings.into_iter().filter(|it| it.topic == "permissions");
        about.next().unwrap()
    };
    for (file, mode, may) in [
        ("locks.db", 0o660, None),
        ("locks.db", 0o644, Some("read")),
        ("locks.db", 0o606, Some("write")),
        ("locks.db-shm", 0o664, Some("read")),
    ] {
        let path = store.folder.path().join(file);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let found = examined();
        assert!(found.what.contains(&format!("mode {mode:o}")), "{found:?}");
        let Some(may) = may else {
            assert_eq!(found.severity, Severity::Fine, "{found:?}");
            continue;
        };
        assert_eq!(found.severity, Severity::Warning, "{found:?}");
        assert!(found.what.contains(&format!("may {may}")), "{found:?}");
        assert!(found.advice.contains("chmod o-rwx"), "{found:?}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
}

#[test]
fn debug_shows_the_place() {
    let shown = format!("{:?}", TempStore::new().provider());
    assert!(
        shown.contains("locks.db") && shown.contains("default"),
        "{shown}"
    );
}
