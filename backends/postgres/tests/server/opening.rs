//! Errors on opening: each names the cause, and none contains a secret.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind, Severity};
use lockkeeper_testkit::{
    Certificates, Fault, PostgresKind, PostgresOptions, PostgresServer, Proxy, cases, until,
};

use crate::admin::found;
use crate::checks::{WAIT_LIMIT, is_refused, refused, with_timeouts};
use crate::store::{Case, holder, open, start, start_own, try_open};

pub(crate) const CASES: &[Case] = cases![
    ways_to_log_in,
    missing_rights,
    client_certificates,
    server_without_free_connections,
    connection_without_a_reply_is_not_kept,
    functions_of_other_users_do_not_count,
    locations_of_databases_differ,
    replica_is_refused,
    server_without_advisory_locks_is_refused,
    limits_for_applications_do_not_count,
];

fn ways_to_log_in(kind: PostgresKind) {
    for (login, works) in [
        ("scram-sha-256", true),
        ("trust", true),
        // It would send the password as it is, and the network is not private.
        ("password", false),
    ] {
        let server = PostgresServer::start(kind, &PostgresOptions::new().login(login)).unwrap();
        if works {
            drop(open(&server, "").lock("a").unwrap());
        } else {
            refused(&server.url(), ErrorKind::PermissionDenied, &["tls=on"]);
            let (user, password) = (PostgresServer::USER, PostgresServer::PASSWORD);
            let socket = server.socket().display().to_string();
            let url = format!("postgres:?socket={socket}&user={user}&password={password}&db=shop");
            drop(try_open(&with_timeouts(&url)).unwrap().lock("a").unwrap());
        }
    }
    let server = PostgresServer::start(kind, &PostgresOptions::new().login("md5")).unwrap();
    let password = PostgresServer::PASSWORD;
    server
        .execute(&format!(
            "SET password_encryption = 'md5'; ALTER ROLE keeper PASSWORD '{password}'"
        ))
        .unwrap();
    drop(open(&server, "").lock("a").unwrap());
}

fn missing_rights(kind: PostgresKind) {
    let server = start_own(kind);
    let at = server.addr();
    let denied = ErrorKind::PermissionDenied;
    for user in ["keeper:s3cret", "unknown:s3cret", "postgres:s3cret"] {
        let url = format!("postgres://{user}@{at}/shop");
        refused(&url, denied, &["`user` and `password`", "pg_hba.conf"]);
    }
    refused(
        &format!("postgres://keeper@{at}/shop"),
        denied,
        &["password"],
    );
    let url = format!("postgres://keeper:{}@{at}", PostgresServer::PASSWORD);
    refused(
        &format!("{url}/nowhere"),
        ErrorKind::InvalidValue,
        &["no database", "nowhere", "`db`"],
    );
    // Without a database, it is the one with the user's name.
    refused(&url, ErrorKind::InvalidValue, &["no database", "keeper"]);
    server
        .execute("REVOKE CONNECT ON DATABASE template1 FROM public")
        .unwrap();
    refused(&format!("{url}/template1"), denied, &["CONNECT"]);
    server
        .execute("ALTER ROLE keeper CONNECTION LIMIT 1")
        .unwrap();
    let keeper = open(&server, "");
    let _held = keeper.lock("a").unwrap();
    refused(
        &server.url(),
        ErrorKind::Unavailable,
        &["limit", "pool_size"],
    );
}

/// The user has no password, and logs in by a certificate alone.
fn client_certificates(kind: PostgresKind) {
    let server = PostgresServer::start(kind, &PostgresOptions::new().tls()).unwrap();
    let data = server.folder().join("data");
    for (file, line) in [
        ("pg_hba.conf", "hostssl all all 127.0.0.1/32 cert map=own"),
        ("pg_ident.conf", "own localhost keeper"),
    ] {
        fs::write(
            data.join(file),
            format!("local all postgres trust\n{line}\n"),
        )
        .unwrap();
    }
    server.restart().unwrap();
    let Certificates {
        authority,
        certificate,
        key,
    } = server.certificates().unwrap();
    // As other clients write it.
    let database = format!("postgres://keeper@{}/shop", server.addr());
    let url = format!(
        "{database}?sslmode=verify-full&sslrootcert={}",
        authority.display()
    );
    let untrusted = format!("{database}?sslmode=require");
    refused(
        &untrusted,
        ErrorKind::PermissionDenied,
        &["`sslmode=require`", "`ca_file`"],
    );
    let with = |certificate: &Path, key: &Path| {
        let (certificate, key) = (certificate.display(), key.display());
        format!("{url}&cert_file={certificate}&key_file={key}")
    };
    let keeper = try_open(&with(certificate, key)).unwrap();
    let held = keeper.lock("a").unwrap();
    let session = format!(
        "SELECT ssl FROM pg_stat_ssl WHERE pid = {}",
        holder(&server)
    );
    assert_eq!(server.value(&session).unwrap(), "t");
    drop(held);
    let denied = ErrorKind::PermissionDenied;
    refused(&url, denied, &["`cert_file`"]);
    let folder = server.folder().join("another");
    fs::create_dir(&folder).unwrap();
    let another = Certificates::make(&folder).unwrap();
    refused(
        &with(&another.certificate, &another.key),
        denied,
        &["`cert_file`"],
    );
    let invalid = ErrorKind::InvalidValue;
    refused(&with(certificate, &another.key), invalid, &["`key_file`"]);
    refused(&format!("{url}&cert_file=/x"), invalid, &["`key_file`"]);
    refused(&with(Path::new("/x"), key), invalid, &["/x"]);
}

fn server_without_free_connections(kind: PostgresKind) {
    let options = PostgresOptions::new()
        .config("max_connections", "8")
        .config("superuser_reserved_connections", "3")
        .config("max_wal_senders", "0");
    let server = PostgresServer::start(kind, &options).unwrap();
    let mut all = Vec::new();
    let mut refusal = None;
    until("the server has no free connection", || {
        match try_open(&server.url()) {
            Ok(keeper) => all.push(keeper),
            Err(error) => refusal = Some(error),
        }
        refusal.is_some()
    });
    is_refused(
        Err::<(), _>(refusal.unwrap()),
        ErrorKind::Unavailable,
        &["max_connections", "pool_size"],
    );
    // A keeper that holds a session locks free names on it.
    let held = ["a", "b"].map(|name| all[0].lock(name).unwrap());
    drop(held);
}

fn replica_is_refused(kind: PostgresKind) {
    let server = start_own(kind);
    let keeper = open(&server, "");
    let before = keeper.lock("a").unwrap().token();
    fs::write(server.folder().join("data/standby.signal"), "").unwrap();
    server.restart().unwrap();
    until("the replica takes sessions", || server.sessions().is_ok());
    refused(
        &with_timeouts(&server.url()),
        ErrorKind::Incompatible,
        &["replica", "primary"],
    );
    // A keeper that was open rides it out, since its address may soon lead to the primary again.
    // On a busy machine, the server may take longer than a reply is waited for.
    let mut refusal = None;
    until("the server says that it is a replica", || {
        refusal = keeper.try_lock("a").err();
        let says = |error: &Error| error.to_string().contains("replica");
        refusal.as_ref().is_some_and(says)
    });
    is_refused(
        Err::<(), _>(refusal.unwrap()),
        ErrorKind::Unavailable,
        &["replica"],
    );
    assert_eq!(found(&keeper, "topology").severity, Severity::Unusable);
    server.execute("SELECT pg_promote()").unwrap();
    assert!(keeper.lock("a").unwrap().token() > before);
}

/// A connection whose reply is missing serves no lock: its replies would be taken for those of later requests.
fn connection_without_a_reply_is_not_kept(kind: PostgresKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    proxy.once(
        "pg_control_system",
        Fault::DelayReplies(Duration::from_secs(1)),
    );
    let url = server.url_via(proxy.addr());
    let error = try_open(&format!("{url}?connect_timeout=300ms")).unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
}

/// Another user has made a function that grants all, in a schema that the keepers' user prefers.
fn functions_of_other_users_do_not_count(kind: PostgresKind) {
    let server = start_own(kind);
    for sql in [
        "CREATE SCHEMA app",
        "CREATE FUNCTION app.pg_try_advisory_lock(int8) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
        "GRANT USAGE ON SCHEMA app TO keeper",
        "ALTER ROLE keeper SET search_path = app, pg_catalog",
    ] {
        server.execute(sql).unwrap();
    }
    let keepers = [(); 2].map(|()| open(&server, ""));
    let _held = keepers[0].lock("a").unwrap();
    assert!(keepers[1].try_lock("a").unwrap().is_none());
}

fn locations_of_databases_differ(kind: PostgresKind) {
    let server = start(kind);
    let here = open(&server, "").location();
    assert!(here.ends_with("/shop?namespace=default"), "{here}");
    let url = server.url().replace("/shop", "/template1");
    let other = try_open(&with_timeouts(&url)).unwrap();
    assert_ne!(other.location(), here);
    // They have locks of their own.
    let keeper = open(&server, "");
    let held = (keeper.lock("a").unwrap(), other.lock("a").unwrap());
    assert!(held.0.is_held() && held.1.is_held());
    let socket = server.socket().display().to_string();
    let (user, password) = (PostgresServer::USER, PostgresServer::PASSWORD);
    let url = format!("postgresql:?socket={socket}&user={user}&password={password}&db=shop");
    let location = try_open(&url).unwrap().location();
    assert!(
        location.ends_with("&namespace=default&db=shop"),
        "{location}"
    );
}

/// Some servers and pools that speak the protocol answer to advisory locks, and keep none.
fn server_without_advisory_locks_is_refused(kind: PostgresKind) {
    let server = start_own(kind);
    for (name, takes, gives, body) in [
        ("pg_advisory_lock_shared", "int, int", "void", ""),
        ("pg_try_advisory_lock", "int8", "bool", "SELECT true"),
    ] {
        let sql = format!(
            "ALTER FUNCTION pg_catalog.{name}({takes}) RENAME TO real_{name}; \
             CREATE FUNCTION pg_catalog.{name}({takes}) RETURNS {gives} LANGUAGE sql AS '{body}'"
        );
        server.execute(&sql).unwrap();
    }
    refused(
        &with_timeouts(&server.url()),
        ErrorKind::Incompatible,
        &["advisory locks", "PostgreSQL itself"],
    );
}

/// A database and a user can have limits of time, which would end a wait and begin it anew at the queue's end.
fn limits_for_applications_do_not_count(kind: PostgresKind) {
    let server = start_own(kind);
    let limits = "SELECT string_agg(name, ' ') FROM pg_settings \
        WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout')";
    for limit in server.value(limits).unwrap().split(' ') {
        server
            .execute(&format!("ALTER ROLE keeper SET {limit} = '500ms'"))
            .unwrap();
    }
    let (holder, waiter) = (open(&server, ""), open(&server, ""));
    let held = holder.lock("a").unwrap();
    let waits = |more: &str| {
        let sql = format!(
            "SELECT waitstart FROM pg_locks WHERE locktype = 'advisory' AND NOT granted {more}"
        );
        server.value(&sql).unwrap()
    };
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.try_lock_for("a", WAIT_LIMIT).map(drop));
        until("it waits", || !waits("").is_empty());
        let since = waits("");
        until("it waits for longer than the limits, in one piece", || {
            let is_over = "AND waitstart < clock_timestamp() - interval '1 s'";
            waits(is_over) == since
        });
        drop(held);
        waiting.join().unwrap().unwrap();
    });
}
