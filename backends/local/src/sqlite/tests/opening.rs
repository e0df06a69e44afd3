//! What is said of a URL and a file, and how files are made.

use super::*;

#[test]
fn what_is_wrong_with_a_url_is_said() {
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
fn what_is_wrong_with_a_file_is_said() {
    use std::error::Error as _;
    let place = Place::new();
    let folder = place.folder.path();

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
        error.to_string().contains("not a whole SQLite database"),
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

    let says = |path: &Path, hint: &str| {
        let error = refused(path);
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    };
    says(&folder.join("x".repeat(248)), "too long");
    let deep = folder.join("y".repeat(200)).join("z".repeat(200));
    fs::create_dir_all(&deep).unwrap();
    says(&deep.join("w".repeat(140)), "too long");
    assert_eq!(fs::read_dir(&deep).unwrap().count(), 0, "nothing was made");
    drop(place.provider());
    drop(SqliteProvider::open(folder.join("x".repeat(247)).to_str().unwrap(), "n").unwrap());
    fs::hard_link(place.path(), folder.join("second.db")).unwrap();
    says(&place.path(), "more than one name");
    fs::remove_file(folder.join("second.db")).unwrap();
    drop(place.provider());
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(folder.join("nowhere"), folder.join("link")).unwrap();
        says(&folder.join("link"), "link to nothing");
        says(Path::new("/dev/null"), "is not a file");
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
    assert_eq!(mode, "delete", "it was left as it was");

    drop(place.provider());
    place.raw().pragma_update(None, "user_version", 2).unwrap();
    let error = refused(&place.path());
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("upgrade"), "{error}");
}

/// Not even root writes to sysfs or makes files in it.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_written_is_refused() {
    let error = refused(Path::new("/sys/locks.db"));
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("write permission"), "{error}");
    assert_eq!(
        failure(code(rusqlite::ffi::SQLITE_READONLY)).kind(),
        ErrorKind::PermissionDenied
    );
    assert_eq!(
        failure(code(rusqlite::ffi::SQLITE_IOERR)).kind(),
        ErrorKind::Unknown
    );
}

#[test]
fn a_race_for_sqlites_own_locks_is_tried_again() {
    let lost = || code(rusqlite::ffi::SQLITE_PROTOCOL);
    assert_eq!(failure(lost()).kind(), ErrorKind::Unavailable);
    assert!(db::is_busy(&lost()));
}

#[cfg(target_os = "linux")]
#[test]
fn opening_a_busy_file_holds_up_no_other() {
    let place = Place::new();
    let raw = place.raw();
    raw.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let path = place.path();
    let opens = thread::spawn(move || SqliteProvider::open(path.to_str().unwrap(), "n").map(drop));
    let descriptors = || {
        let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let files = all.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
        files.filter(|file| *file == place.path()).count()
    };
    until("it tries to open the busy file", || descriptors() > 1);
    drop(Place::new().provider());
    assert!(!opens.is_finished(), "the other one was waited for");
    raw.execute_batch("ROLLBACK").unwrap();
    opens.join().unwrap().unwrap();
}

fn code(code: i32) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None)
}

#[cfg(unix)]
#[test]
fn the_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let _guard = place.keeper().lock("seat").unwrap();
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let mode = fs::metadata(place.folder.path().join(file))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let given = place.folder.path().join("given.db");
    drop(Connection::open(&given).unwrap());
    fs::write(&given, "").unwrap();
    fs::set_permissions(&given, fs::Permissions::from_mode(0o660)).unwrap();
    drop(SqliteProvider::open(given.to_str().unwrap(), "default").unwrap());
    assert_eq!(
        fs::metadata(&given).unwrap().permissions().mode() & 0o777,
        0o660
    );
}

/// Whoever can read the `-shm` can put a read lock on the byte that writers lock, as user `nobody`
/// did: nobody was granted anything any more.
#[cfg(unix)]
#[test]
fn a_file_that_everybody_may_read_or_write_is_warned_of() {
    use lockkeeper_core::Severity;
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let provider = place.provider();
    let examined = || {
        let findings = provider
            .admin()
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
        let path = place.folder.path().join(file);
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
    let shown = format!("{:?}", Place::new().provider());
    assert!(
        shown.contains("locks.db") && shown.contains("default"),
        "{shown}"
    );
}
