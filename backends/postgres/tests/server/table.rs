//! Locks in a table.

use std::sync::Arc;
use std::thread;

use lockkeeper_core::{Error, ErrorKind, SystemClock};
use lockkeeper_postgres::{PlainClient, PostgresOptions, open_table};
use lockkeeper_register::RegisterProvider;
use lockkeeper_testkit::{PostgresKind, PostgresServer, cases, until};

use crate::checks::WAIT_LIMIT;
use crate::store::{Case, options, start_own};
use crate::table_cases as shared;

pub(crate) const CASES: &[Case] = cases![
    entries_and_sessions_are_rows,
    table_is_made_once,
    table_whose_name_is_taken_is_made_when_it_is_free,
    tables_that_cannot_be_relied_on_are_refused,
    table_of_another_user_is_refused_to_a_superuser,
];

fn try_table(options: &PostgresOptions, table: &str) -> Result<RegisterProvider, Error> {
    open_table(options, table, &"s".repeat(512), Arc::new(SystemClock))
}

fn entries_and_sessions_are_rows(kind: PostgresKind) {
    let server = start_own(kind);
    let options = options(server.addr());
    let table = |name: &str| try_table(&options, name).unwrap();
    shared::cases_of_one_table(table);
    for lock in ["SHARE", "UPDATE"] {
        shared::row_that_a_transaction_has_locked_is_not_waited_for(
            table(&format!("t_{lock}")).store(),
            || {
                let mut client = PlainClient::connect(&options).unwrap();
                let sql = format!("BEGIN; SELECT * FROM \"t_{lock}\" FOR {lock}");
                assert!(client.run(&sql, WAIT_LIMIT).unwrap().count > 0);
                client
            },
        );
    }
    let spoil = || {
        let sql = "UPDATE t7 SET value = '\\xff', version = -1 WHERE name = 'lock/b'";
        execute(&server, sql);
    };
    shared::row_of_another_program_hides_no_other(table("t7").store(), spoil);
    shared::writes_are_seen_by_another_program(table("t8").store(), table("t8").store());
    // A reply is limited to 16 MiB, and has two digits for a byte.
    let size = if kind == PostgresKind::Postgres15 {
        30 << 10
    } else {
        1
    };
    shared::entries_are_listed(table("t9").store(), size);
    // Nothing but sessions is left of the rehearsals, and they have ended.
    let left = "SELECT count(*) FROM t3";
    assert_eq!(rows(&server, left), "0");
}

/// Returns what a statement in the database of the tables returns.
fn rows(server: &PostgresServer, sql: &str) -> String {
    let mut client = PlainClient::connect(&options(server.addr())).unwrap();
    let mut rows = client.run(sql, WAIT_LIMIT).unwrap().rows;
    rows.remove(0).remove(0).unwrap_or_default()
}

fn execute(server: &PostgresServer, sql: &str) {
    let mut client = PlainClient::connect(&options(server.addr())).unwrap();
    client.run(sql, WAIT_LIMIT).unwrap();
}

fn table_is_made_once(kind: PostgresKind) {
    let server = start_own(kind);
    let options = options(server.addr());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| try_table(&options, "locks").unwrap());
        }
    });
    execute(&server, "CREATE SCHEMA other");
    try_table(&options, "other.locks").unwrap();
    let named = "SELECT string_agg(relnamespace::regnamespace || '.' || relname, ' ' ORDER BY oid) FROM pg_class WHERE relname = 'locks'";
    assert_eq!(rows(&server, named), "public.locks other.locks");
}

/// A session can fail to make a table that another one has just made, and not see that table yet. A type takes the name of
/// a table as well.
fn table_whose_name_is_taken_is_made_when_it_is_free(kind: PostgresKind) {
    let server = start_own(kind);
    let options = options(server.addr());
    let mut other = PlainClient::connect(&options).unwrap();
    let mut run = |sql| other.run(sql, WAIT_LIMIT).unwrap();
    run("BEGIN; CREATE TYPE locks AS ENUM ('a')");
    thread::scope(|scope| {
        let opened = scope.spawn(|| try_table(&options, "locks"));
        until("the table waits for the name", || {
            rows(&server, "SELECT count(*) FROM pg_locks WHERE NOT granted") != "0"
        });
        run("COMMIT");
        run("DROP TYPE locks");
        opened.join().unwrap().unwrap();
    });
    run("CREATE TYPE taken AS ENUM ('a')");
    let error = try_table(&options, "taken").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
    assert!(error.to_string().contains("something else has its name"));
}

fn tables_that_cannot_be_relied_on_are_refused(kind: PostgresKind) {
    let server = start_own(kind);
    let options = options(server.addr());
    try_table(&options, "good").unwrap();
    let user = PostgresServer::USER;
    let refused = |table: &str, prepare: &str, kind: ErrorKind, says: &str| {
        execute(&server, prepare);
        let error = try_table(&options, table).unwrap_err();
        assert_eq!(error.kind(), kind, "{table}: {error:?}");
        assert!(format!("{error:?}").contains(says), "{table}: {error:?}");
    };
    let incompatible = ErrorKind::Incompatible;
    refused(
        "noted",
        "CREATE TABLE noted (a int)",
        incompatible,
        "\"none\"",
    );
    refused(
        "future",
        "CREATE TABLE future (LIKE good); COMMENT ON TABLE future IS 'lockkeeper 2'",
        incompatible,
        "lockkeeper 2",
    );
    refused(
        "seen",
        "CREATE VIEW seen AS SELECT * FROM good",
        incompatible,
        "no ordinary table",
    );
    refused(
        "brief",
        "CREATE UNLOGGED TABLE brief (LIKE good)",
        incompatible,
        "survives a crash",
    );
    let denied = ErrorKind::PermissionDenied;
    let public = "CREATE TABLE open (LIKE good INCLUDING ALL); COMMENT ON TABLE open IS 'lockkeeper 1'; GRANT UPDATE ON open TO PUBLIC";
    refused("open", public, denied, "REVOKE");
    refused("nowhere.t", "SELECT 1", incompatible, "nowhere");
    // Another user's table, which the schema's name makes trusted.
    let database = PostgresServer::DATABASE;
    let as_superuser = |sql: &str| {
        let mut client = server_superuser(&server, database);
        client(sql);
    };
    as_superuser(&format!(
        "CREATE ROLE mallory; CREATE SCHEMA mallory AUTHORIZATION mallory; GRANT ALL ON SCHEMA mallory TO {user}"
    ));
    as_superuser(&format!(
        "SET ROLE mallory; CREATE TABLE mallory.locks (namespace bytea, name bytea, version bigint, value bytea, ends timestamptz, PRIMARY KEY (namespace, name)); COMMENT ON TABLE mallory.locks IS 'lockkeeper 1'; GRANT SELECT, INSERT, UPDATE ON mallory.locks TO {user}"
    ));
    as_superuser(&format!("ALTER ROLE {user} SET search_path = mallory"));
    refused("locks", "SELECT 1", denied, "belongs to mallory");
    refused(
        "mallory.locks",
        "SELECT 1",
        denied,
        "GRANT SELECT, INSERT, UPDATE, DELETE",
    );
    as_superuser(&format!("GRANT DELETE ON mallory.locks TO {user}"));
    try_table(&options, "mallory.locks").unwrap();
    as_superuser(&format!(
        "REVOKE ALL ON SCHEMA mallory FROM {user}; GRANT USAGE ON SCHEMA mallory TO {user}"
    ));
    refused(
        "mallory.more",
        "SELECT 1",
        denied,
        "CREATE TABLE \"mallory\".\"more\"",
    );
    as_superuser(&format!(
        "ALTER ROLE {user} SET default_transaction_read_only = on"
    ));
    refused("mallory.locks", "SELECT 1", incompatible, "takes no writes");
}

/// A superuser has all roles, and a trigger runs with the superuser's rights.
fn table_of_another_user_is_refused_to_a_superuser(kind: PostgresKind) {
    let server = start_own(kind);
    try_table(&options(server.addr()), "locks").unwrap();
    let database = PostgresServer::DATABASE;
    let superuser = superuser(&server, database);
    let refused = || {
        let error = try_table(&superuser, "locks").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
        assert!(error.message().contains("triggers"), "{error:?}");
    };
    refused();
    let mut run = server_superuser(&server, database);
    run("CREATE ROLE mallory; ALTER TABLE locks OWNER TO mallory");
    refused();
    run(&format!("ALTER DATABASE {database} OWNER TO mallory"));
    refused();
    run("ALTER TABLE locks OWNER TO postgres");
    try_table(&superuser, "locks").unwrap();
    try_table(&superuser, "new").unwrap();
}

fn superuser(server: &PostgresServer, database: &str) -> PostgresOptions {
    PostgresOptions::unix(server.socket())
        .user("postgres")
        .database(database)
}

/// Returns what runs a statement as the superuser in a database.
fn server_superuser(server: &PostgresServer, database: &str) -> impl FnMut(&str) {
    let options = superuser(server, database);
    let mut client = PlainClient::connect(&options).unwrap();
    move |sql| drop(client.run(sql, WAIT_LIMIT).unwrap())
}
