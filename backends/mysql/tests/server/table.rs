//! Locks in a table.

use std::sync::Arc;
use std::thread;

use lockkeeper_core::{Error, ErrorKind, SystemClock};
use lockkeeper_mysql::{Conn, MySqlOptions, Opts, open_table};
use lockkeeper_register::RegisterProvider;
use lockkeeper_testkit::{MySqlKind, MySqlServer, cases};
use mysql::OptsBuilder;
use mysql::prelude::Queryable;

use crate::checks::REPLY_LIMIT;
use crate::store::{Case, start_own};
use crate::table_cases as shared;

pub(crate) const CASES: &[Case] = cases![
    entries_and_sessions_are_rows,
    table_is_made_once,
    tables_that_cannot_be_relied_on_are_refused,
];

const DATABASE: &str = MySqlServer::DATABASE;

/// Returns the options of the server's user, or of another one, in the database of the tables.
fn options(server: &MySqlServer, user: Option<&str>) -> MySqlOptions {
    options_in(server, user, Some(DATABASE))
}

fn options_in(server: &MySqlServer, user: Option<&str>, database: Option<&str>) -> MySqlOptions {
    let opts = Opts::from_url(&server.url()).unwrap();
    let opts = OptsBuilder::from_opts(opts).db_name(database);
    let opts = match user {
        Some(user) => opts.user(Some(user)).pass(Some("s3cret")),
        None => opts,
    };
    let options = MySqlOptions::from_opts(opts).response_timeout(REPLY_LIMIT);
    let options = options.connect_timeout(REPLY_LIMIT);
    match server.public_key() {
        Some(key) => options.server_key(key),
        None => options,
    }
}

fn try_table(options: &MySqlOptions, table: &str) -> Result<RegisterProvider, Error> {
    open_table(options, table, &"s".repeat(512), Arc::new(SystemClock))
}

fn entries_and_sessions_are_rows(kind: MySqlKind) {
    let server = start_own(kind);
    let options = options(&server, None);
    let table = |name: &str| try_table(&options, name).unwrap();
    // A NOT without parentheses means something else then.
    server
        .execute("SET GLOBAL sql_mode = CONCAT(@@GLOBAL.sql_mode, ',HIGH_NOT_PRECEDENCE')")
        .unwrap();
    shared::cases_of_one_table(table);
    let locked = || {
        let mut app = Conn::new(options.opts()).unwrap();
        app.query_drop("START TRANSACTION").unwrap();
        let row = "namespace = REPEAT('s', 512) AND name = 'lock/a'";
        let sql = format!("SELECT 1 FROM t6 WHERE {row} LOCK IN SHARE MODE");
        assert_eq!(app.query_first(sql).unwrap(), Some(1));
        app
    };
    shared::row_that_a_transaction_has_locked_is_not_waited_for(table("t6").store(), locked);
    let spoil = || {
        let row = "name = 'lock/b'";
        let sql = format!("UPDATE {DATABASE}.t7 SET value = x'ff', version = -1 WHERE {row}");
        server.execute(&sql).unwrap();
    };
    shared::row_of_another_program_hides_no_other(table("t7").store(), spoil);
    server
        .execute("SET GLOBAL completion_type = 'CHAIN'")
        .unwrap();
    shared::writes_are_seen_by_another_program(table("t8").store(), table("t8").store());
    // A value may have 30 KiB, a request more than that, and a reply 16 MiB.
    let size = if kind == MySqlKind::MariaDb10 {
        30 << 10
    } else {
        1
    };
    shared::entries_are_listed(table("t9").store(), size);
    table("t9").store().examine(shared::call()).unwrap();
    let left = server.value(&format!("SELECT COUNT(*) FROM {DATABASE}.t3"));
    assert_eq!(left.unwrap().as_deref(), Some("0"));
}

fn table_is_made_once(kind: MySqlKind) {
    let server = start_own(kind);
    let options = options(&server, None);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| try_table(&options, "locks").unwrap());
        }
    });
    server.execute("CREATE DATABASE other").unwrap();
    let user = MySqlServer::USER;
    let grant = format!("GRANT ALL ON other.* TO '{user}'@'%'");
    server.execute(&grant).unwrap();
    try_table(&options, "other.locks").unwrap();
    let named = "SELECT GROUP_CONCAT(table_schema ORDER BY table_schema DESC) FROM information_schema.tables WHERE table_name = 'locks'";
    assert_eq!(
        server.value(named).unwrap().as_deref(),
        Some(format!("{DATABASE},other").as_str())
    );
}

fn tables_that_cannot_be_relied_on_are_refused(kind: MySqlKind) {
    let server = start_own(kind);
    let own = options(&server, None);
    try_table(&own, "good").unwrap();
    let refused =
        |options: &MySqlOptions, table: &str, prepare: &str, kind: ErrorKind, says: &str| {
            let prepare = prepare
                .split("; ")
                .map(|sql| sql.replace("IN.", &format!("{DATABASE}.")));
            prepare.for_each(|sql| server.execute(&sql).unwrap());
            let error = try_table(options, table).unwrap_err();
            assert_eq!(error.kind(), kind, "{table}: {error:?}");
            assert!(format!("{error:?}").contains(says), "{table}: {error:?}");
        };
    let incompatible = ErrorKind::Incompatible;
    refused(
        &own,
        "noted",
        "CREATE TABLE IN.noted (a int) ENGINE=InnoDB",
        incompatible,
        "comment \"\"",
    );
    let future =
        "CREATE TABLE IN.future LIKE IN.good; ALTER TABLE IN.future COMMENT='lockkeeper 2'";
    refused(&own, "future", future, incompatible, "lockkeeper 2");
    let other = "CREATE TABLE IN.other (a int) ENGINE=MyISAM COMMENT='lockkeeper 1'";
    refused(&own, "other", other, incompatible, "MyISAM");
    refused(
        &own,
        "seen",
        "CREATE VIEW IN.seen AS SELECT 1",
        incompatible,
        "no table of InnoDB",
    );
    let denied = ErrorKind::PermissionDenied;
    server
        .execute("CREATE USER other IDENTIFIED BY 's3cret'")
        .unwrap();
    let other = options(&server, Some("other"));
    let grant = "GRANT SELECT, INSERT, UPDATE ON IN.good TO other";
    refused(
        &other,
        "good",
        grant,
        denied,
        "GRANT SELECT, INSERT, UPDATE, DELETE",
    );
    server
        .execute(&format!("GRANT DELETE ON {DATABASE}.good TO other"))
        .unwrap();
    try_table(&other, "good").unwrap();
    refused(
        &other,
        "more",
        "SELECT 1",
        denied,
        &format!("CREATE TABLE `{DATABASE}`.`more`"),
    );
    refused(
        &own,
        "good",
        "SET GLOBAL read_only = ON",
        incompatible,
        "read-only",
    );
    server.execute("SET GLOBAL read_only = OFF").unwrap();
    let nowhere = options_in(&server, None, None);
    refused(
        &nowhere,
        "good",
        "SELECT 1",
        ErrorKind::InvalidValue,
        "DATABASE.TABLE",
    );
    refused(
        &own,
        "good",
        "SET GLOBAL init_connect = 'SET autocommit = 0'",
        incompatible,
        "autocommit",
    );
}
