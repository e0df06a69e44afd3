//! Errors on opening: each names the cause, and none contains a secret.

use std::fs;
use std::sync::{Arc, Mutex};

use lockkeeper_core::{Config, Drivers, ErrorKind, LockKeeper, Observer, Severity};
use lockkeeper_mysql::{MySqlDriver, MySqlProvider};
use lockkeeper_testkit::{Certificates, MySqlKind, MySqlOptions, MySqlServer, cases};

use crate::checks::{refused, soon, with_timeouts};
use crate::store::{Case, start, start_own, try_open};

pub(crate) const CASES: &[Case] = cases![
    options_of_the_application_are_used,
    missing_rights,
    users_who_must_encrypt,
    password_is_given_to_a_known_server_only,
    read_only_server_gives_warning,
];

fn options_of_the_application_are_used(kind: MySqlKind) {
    let opts = mysql::Opts::from_url("mysql://me:s3cret@[::1]:7/shop").unwrap();
    let opts = mysql::OptsBuilder::from_opts(opts).ssl_opts(Some(mysql::SslOpts::default()));
    let opts = lockkeeper_mysql::MySqlOptions::from_opts(opts).opts();
    assert_eq!(opts.get_ip_or_hostname(), "[::1]");
    assert_eq!((opts.get_tcp_port(), opts.get_db_name()), (7, Some("shop")));
    let login = (opts.get_user(), opts.get_pass());
    assert_eq!(login, (Some("me"), Some("s3cret")));
    assert!(opts.get_ssl_opts().is_some());

    let opts = mysql::Opts::from_url(&start(kind).url()).unwrap();
    let options = lockkeeper_mysql::MySqlOptions::from_opts(opts);
    let provider = MySqlProvider::open(&options, "shop").unwrap();
    let keeper = LockKeeper::builder(Arc::new(provider)).build().unwrap();
    drop(keeper.lock("a").unwrap());
}

fn missing_rights(kind: MySqlKind) {
    let server = start_own(kind);
    let at = server.addr();
    let denied = ErrorKind::PermissionDenied;
    for user in ["keeper:s3cret", "keeper", "unknown:s3cret", "root"] {
        let url = format!("mysql://{user}@{at}/");
        refused(&url, denied, &["`user` and `password`"]);
    }
    let url = format!("mysql://keeper:{}@{at}/", MySqlServer::PASSWORD);
    // MySQL tells only users who may see all databases that one does not exist.
    server
        .execute("CREATE USER 'all'@'%' IDENTIFIED BY 's3cret'")
        .unwrap();
    server.execute("GRANT ALL ON *.* TO 'all'@'%'").unwrap();
    let missing = format!(
        "mysql:?socket={}&user=all&password=s3cret&db=nowhere",
        server.socket().display()
    );
    refused(
        &missing,
        ErrorKind::InvalidValue,
        &["no database", "nowhere", "`db`"],
    );
    server.execute("CREATE DATABASE secrets").unwrap();
    refused(&format!("{url}secrets"), denied, &["`db`"]);
    server
        .execute("CREATE USER 'bare'@'%' IDENTIFIED BY 's3cret'")
        .unwrap();
    let key = server.key_setting();
    let bare = try_open(&with_timeouts(&format!("mysql://bare:s3cret@{at}/?{key}"))).unwrap();
    drop(bare.lock("no privilege is needed").unwrap());
    for (user, rule, kind, word) in [
        ("locked", "ACCOUNT LOCK", denied, "locked"),
        ("expired", "PASSWORD EXPIRE", denied, "expired"),
        ("safe", "REQUIRE SSL", denied, "tls=on"),
        (
            "none",
            "WITH MAX_USER_CONNECTIONS 1",
            ErrorKind::Unavailable,
            "limit",
        ),
    ] {
        let create = format!("CREATE USER '{user}'@'%' IDENTIFIED BY 's3cret' {rule}");
        server.execute(&create).unwrap();
        let url = format!("mysql://{user}:s3cret@{at}/?{key}");
        let first = try_open(&url);
        let _held = first.map(|keeper| keeper.lock(user).unwrap());
        refused(&url, kind, &[word]);
    }
}

/// MySQL asks for the password at the first login of a user, and then knows it until the user is changed.
fn password_is_given_to_a_known_server_only(kind: MySqlKind) {
    let server = MySqlServer::start(kind, &MySqlOptions::new().tls()).unwrap();
    let mut root = server.client().unwrap();
    let Some(key) = server.public_key() else {
        assert_eq!(kind, MySqlKind::MariaDb10);
        return;
    };
    root.execute("CREATE USER 'fresh'@'%' IDENTIFIED BY 's3cret'")
        .unwrap();
    let mut forget = || root.execute("FLUSH PRIVILEGES").unwrap();
    let url = with_timeouts(&format!("mysql://fresh:s3cret@{}/", server.addr()));
    let says = ["tls=on", "`server_key_file`", "Unix socket"];
    refused(&url, ErrorKind::PermissionDenied, &says);
    let with_key = |file: &str| format!("{url}&server_key_file={file}");
    let authority = &server.certificates().unwrap().authority;
    let text = std::fs::read_to_string(&key).unwrap();
    let [cut, damaged] = ["cut", "damaged"].map(|name| key.with_extension(name));
    std::fs::write(&cut, &text[..text.len() / 2]).unwrap();
    std::fs::write(&damaged, text.replacen("MII", "AII", 1)).unwrap();
    for (file, word) in [
        ("/nowhere", "cannot be read"),
        (authority.to_str().unwrap(), "no whole public key"),
        (cut.to_str().unwrap(), "no whole public key"),
        (damaged.to_str().unwrap(), "no whole public key"),
    ] {
        refused(&with_key(file), ErrorKind::InvalidValue, &[word]);
    }
    let key = key.to_str().unwrap();
    drop(try_open(&with_key(key)).unwrap());
    // It knows the password now.
    drop(try_open(&url).unwrap());
    forget();
    refused(&url, ErrorKind::PermissionDenied, &says);
    let tls = format!("{url}&tls=on&ca_file={}", authority.display());
    refused(
        &format!("{tls}&server_key_file={key}"),
        ErrorKind::InvalidValue,
        &["TLS"],
    );
    drop(try_open(&tls).unwrap());
    forget();
    let socket = format!(
        "mysql:?socket={}&user=fresh&password=s3cret",
        server.socket().display()
    );
    drop(try_open(&with_timeouts(&socket)).unwrap());
}

fn users_who_must_encrypt(kind: MySqlKind) {
    let server = MySqlServer::start(kind, &MySqlOptions::new().tls()).unwrap();
    let files = server.certificates().unwrap();
    let trusted = files.authority.display();
    let refuses = ErrorKind::PermissionDenied;
    let mut root = server.client().unwrap();
    for rule in [
        "'safe'@'%' IDENTIFIED BY 's3cret' REQUIRE SSL",
        "'known'@'%' REQUIRE X509",
    ] {
        root.execute(&format!("CREATE USER {rule}")).unwrap();
    }
    let safe = format!("mysql://safe:s3cret@{}/", server.addr());
    refused(&safe, refuses, &[]);
    let safe = with_timeouts(&format!("{safe}?ssl-mode=REQUIRED&ssl-ca={trusted}"));
    drop(try_open(&safe).unwrap());
    assert!(root.status("Ssl_accepts").unwrap() > 0);

    let known = format!("mysql://known@{}/?tls=on&ca_file={trusted}", server.addr());
    refused(&known, refuses, &[]);
    let [certificate, key] = [&files.certificate, &files.key].map(|it| it.display().to_string());
    drop(try_open(&format!("{known}&cert_file={certificate}&key_file={key}")).unwrap());
    let folder = server.folder().join("another");
    fs::create_dir(&folder).unwrap();
    let another = Certificates::make(&folder).unwrap().key;
    let another = another.display().to_string();
    for (certificate, key, wrong) in [
        (&certificate, "/x", "`key_file`"),
        (&certificate, &another, "`key_file`"),
        (&key, &key, "`cert_file` has no certificate"),
    ] {
        let url = format!("{known}&cert_file={certificate}&key_file={key}");
        refused(&url, ErrorKind::InvalidValue, &[wrong]);
    }
}

#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl Observer for Warnings {
    fn warning(&self, store: &str, text: &str) {
        self.0.lock().unwrap().push(format!("{store}: {text}"));
    }
}

fn read_only_server_gives_warning(kind: MySqlKind) {
    let server = start_own(kind);
    let warnings = || -> (LockKeeper, Vec<String>) {
        let observer = Arc::new(Warnings::default());
        let config = Config::from_url(&with_timeouts(&server.url()))
            .unwrap()
            .observer(observer.clone());
        let keeper = Drivers::new().with(MySqlDriver).open(&config).unwrap();
        let warnings = observer.0.lock().unwrap().clone();
        (keeper, warnings)
    };
    assert_eq!(warnings().1, [""; 0]);
    server.execute("SET GLOBAL read_only = 1").unwrap();
    let (keeper, given) = warnings();
    assert!(
        given[0].contains("read-only") && !given[0].contains(MySqlServer::PASSWORD),
        "{given:?}"
    );
    let findings = keeper.admin().unwrap().examine(soon()).unwrap();
    let found = findings.iter().find(|found| found.topic == "topology");
    assert_eq!(found.unwrap().severity, Severity::Warning, "{findings:?}");
    drop(keeper.lock("a").unwrap());
}
