//! Opening: errors of URLs and files, and the creation of files.

use super::*;

#[test]
fn errors_name_what_is_wrong_with_the_url() {
    let drivers = Drivers::new().with(SqliteDriver);
    for (url, hint) in [
        ("sqlite:", "sqlite:/var/lib/app/locks.db"),
        ("sqlite://", "sqlite:/var/lib/app/locks.db"),
        ("sqlite::memory:", "write memory:"),
        ("sqlite:a%00b", "path of a file"),
    ] {
        let error = drivers.open(&Config::from_url(url).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}");
        assert!(error.to_string().contains(hint), "{error}");
    }
}

/// Asserts that opening `path` fails with [`ErrorKind::Incompatible`] and a text that contains `hint`.
fn assert_refused(path: &Path, hint: &str) -> Error {
    let error = open(path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.to_string().contains(hint), "{error}");
    error
}

#[test]
fn errors_name_what_is_wrong_with_the_path() {
    let store = TempStore::new();
    let folder = store.folder.path();
    let text = "no database, and long enough to be seen as none ".repeat(9);
    fs::write(folder.join("text"), text).unwrap();
    let deep = folder.join("y".repeat(200)).join("z".repeat(200));
    fs::create_dir_all(&deep).unwrap();
    for (path, hint) in [
        (folder.to_owned(), ""),
        (folder.join("text/locks.db"), ""),
        (folder.join("x".repeat(248)), "too long"),
        (deep.join("w".repeat(140)), "too long"),
    ] {
        assert_refused(&path, hint);
    }
    for (path, hint) in [
        ("missing/locks.db", "does not exist; create it"),
        ("text", "not an intact SQLite database"),
    ] {
        let error = assert_refused(&folder.join(path), hint);
        assert!(std::error::Error::source(&error).is_some(), "{path}");
    }
    let created = fs::read_dir(&deep).unwrap().count();
    assert_eq!(created, 0, "no file was created");
    drop(open(&folder.join("x".repeat(247))).unwrap());

    drop(store.provider());
    fs::hard_link(store.path(), folder.join("second.db")).unwrap();
    assert_refused(&store.path(), "more than one name");
    fs::remove_file(folder.join("second.db")).unwrap();
    drop(store.provider());
    {
        std::os::unix::fs::symlink(folder.join("nowhere"), folder.join("link")).unwrap();
        assert_refused(&folder.join("link"), "link to nothing");
        assert_refused(Path::new("/dev/null"), "is not a file");
    }
}

#[test]
fn database_of_another_application_or_version_is_refused() {
    let store = TempStore::new();
    let raw = store.raw();
    raw.execute_batch("CREATE TABLE seats (number)").unwrap();
    assert_refused(&store.path(), "another application's");
    let mode = raw.query_row("PRAGMA journal_mode", (), |row| row.get(0));
    assert_eq!(mode, Ok("delete".to_owned()), "the file is unchanged");

    let other = TempStore::new();
    drop(other.provider());
    for (version, advice) in [(4, "upgrade this program"), (1, "delete it")] {
        let raw = other.raw();
        raw.pragma_update(None, "user_version", version).unwrap();
        assert_refused(&other.path(), advice);
    }
}

/// Root cannot create files in sysfs either.
#[cfg(target_os = "linux")]
#[test]
fn unwritable_location_is_permission_denied() {
    let error = open(Path::new("/sys/locks.db")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("write permission"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn opening_a_busy_file_does_not_block_other_files() {
    let store = TempStore::new();
    let raw = store.raw();
    raw.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let path = store.path();
    let opening = thread::spawn(move || open(&path).map(drop));
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
    drop(open(&given).unwrap());
    assert_eq!(
        fs::metadata(&given).unwrap().permissions().mode() & 0o777,
        0o660
    );
}

/// A user that can read the `-shm` file can put a read lock on the byte that writers lock. In an
/// experiment this blocked all acquisitions.
#[test]
fn world_accessible_file_is_a_warning() {
    use lockkeeper_core::{Severity, StoreInfo};
    use std::os::unix::fs::PermissionsExt;
    let store = TempStore::new();
    let provider = store.provider();
    let examined = || {
        let admin = provider.admin().unwrap();
        let findings = admin.examine(HostInstant::NEVER).unwrap();
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

/// The id of a user and of a group that are not this process's.
const OTHER: u32 = 65_534;

/// Makes a file the file of another user, which only root may do. Returns whether it did.
fn give_away(file: &Path) -> bool {
    std::os::unix::fs::lchown(file, Some(OTHER), Some(OTHER)).is_ok()
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn assert_denied(path: &Path, hint: &str) {
    let error = open(path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains(hint), "{error}");
}

#[test]
fn folder_that_more_users_may_write_than_the_database_is_refused() {
    let store = TempStore::new();
    let folder = store.folder.path();
    for (mode, hint) in [(0o1777, "every user"), (0o773, "every user")] {
        set_mode(folder, mode);
        assert_denied(&store.path(), hint);
        assert!(!store.path().exists(), "no file was created");
    }
    // The group of the folder may be another one than that of the database.
    if std::os::unix::fs::chown(folder, None, Some(OTHER)).is_ok() {
        set_mode(folder, 0o770);
        assert_denied(&store.path(), "chmod g-w");
        set_mode(folder, 0o2770);
        fs::write(store.path(), "").unwrap();
        set_mode(&store.path(), 0o660);
        drop(store.provider());
        std::os::unix::fs::chown(folder, None, Some(0)).unwrap();
    }
    set_mode(folder, 0o700);
    let data = fs::metadata(folder).unwrap();
    if std::os::unix::fs::MetadataExt::uid(&data) == std::os::unix::fs::MetadataExt::gid(&data) {
        // The user's own group.
        set_mode(folder, 0o775);
    }
    drop(store.provider());
    set_mode(&store.path(), 0o600);
    set_mode(folder, 0o1777);
    assert_denied(&store.path(), "mkdir -m 700");
    // Who may write the folder may write the database, too.
    set_mode(&store.path(), 0o666);
    drop(store.provider());
}

#[test]
fn file_of_another_user_beside_the_database_is_refused() {
    let store = TempStore::new();
    drop(store.provider());
    for suffix in ["-wal", "-shm", "-journal"] {
        let planted = store.folder.path().join(format!("locks.db{suffix}"));
        fs::write(&planted, "").unwrap();
        if !give_away(&planted) {
            return;
        }
        set_mode(&planted, 0o666);
        assert_denied(&store.path(), "belongs to another user");
        fs::remove_file(&planted).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &planted).unwrap();
        give_away(&planted);
        assert_denied(&store.path(), "belongs to another user");
        fs::remove_file(&planted).unwrap();
    }
    drop(store.provider());
}

#[test]
fn link_of_another_user_to_a_database_is_not_followed() {
    let store = TempStore::new();
    drop(store.provider());
    let link = store.folder.path().join("link.db");
    std::os::unix::fs::symlink(store.path(), &link).unwrap();
    drop(open(&link).unwrap());
    if give_away(&link) {
        assert_denied(&link, "a link that another user made");
    }
}

#[test]
fn folder_that_every_user_may_write_since_the_opening_is_found() {
    use lockkeeper_core::{Severity, StoreInfo};
    let store = TempStore::new();
    let provider = store.provider();
    set_mode(store.folder.path(), 0o1777);
    let findings = provider.admin().unwrap().examine(HostInstant::NEVER);
    let mut findings = findings.unwrap().into_iter();
    let found = findings.find(|it| it.topic == "permissions").unwrap();
    assert_eq!(found.severity, Severity::Unusable, "{found:?}");
    assert!(found.what.contains("every user"), "{found:?}");
}

#[test]
fn debug_shows_path_and_namespace() {
    let shown = format!("{:?}", TempStore::new().provider());
    assert!(
        shown.contains("locks.db") && shown.contains("default"),
        "{shown}"
    );
}
