//! Administration, on servers where other clients take named locks, too.

use lockkeeper_core::{ErrorKind, HeldName, Holder, LockKeeper, LockName};
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer, cases};
use mysql::prelude::Queryable as _;

use crate::checks::{soon, with_timeouts};
use crate::store::{Case, open, start_own, try_open};

pub(crate) const CASES: &[Case] = cases![
    holder_process_is_shown_to_its_own_user,
    sql_in_lock_names_is_never_run,
    unlock_without_the_right_is_refused,
];

fn holder(keeper: &LockKeeper, name: &str) -> Holder {
    let name = LockName::new(name).unwrap();
    let admin = keeper.admin().unwrap();
    let mut held = admin.held(Some(&name), soon()).unwrap();
    assert_eq!(held.len(), 1, "{held:?}");
    held.remove(0).holder
}

fn holder_process_is_shown_to_its_own_user(kind: MySqlKind) {
    // MariaDB's performance schema is off by default.
    let server = match kind {
        MySqlKind::MySql9 => start_own(kind),
        MySqlKind::MariaDb10 => {
            let options = MySqlOptions::new().config("performance-schema", "ON");
            MySqlServer::start(kind, &options).unwrap()
        }
    };
    let (holding, asking) = (open(&server, ""), open(&server, ""));
    let _guard = holding.lock("a").unwrap();
    let holder = holder(&asking, "a");
    assert_eq!(holder.pid, Some(std::process::id()));
    // The server reports the client's port, too.
    let host = holder.host.unwrap();
    assert!(["localhost", "127.0.0.1"].contains(&&*host), "{host}");
}

/// Every user may take a named lock of any name, which an administrator is shown.
fn sql_in_lock_names_is_never_run(kind: MySqlKind) {
    let server = start_own(kind);
    let mut root = server.client().unwrap();
    for sql in [
        "CREATE TABLE shop.t (id INT)",
        "CREATE USER 'bare'@'%' IDENTIFIED BY 's3cret'",
    ] {
        root.execute(sql).unwrap();
    }
    if kind == MySqlKind::MySql9 {
        root.execute("GRANT SELECT ON performance_schema.* TO 'keeper'@'%'")
            .unwrap();
    }
    let hash = "0".repeat(40);
    let names = [
        "default:~'); drop table shop.t; -- ".to_owned(),
        format!("default:'~{hash}"),
        format!("default:a~{hash}'"),
        "default:\\".to_owned(),
    ];
    let bare = format!("mysql://bare:s3cret@{}/", server.addr());
    let mut bare = mysql::Conn::new(mysql::Opts::from_url(&bare).unwrap()).unwrap();
    for name in &names {
        let taken: Option<u8> = bare.exec_first("SELECT GET_LOCK(?, 0)", (name,)).unwrap();
        assert_eq!(taken, Some(1), "{name}");
    }
    let keeper = open(&server, "");
    let _own = keeper.lock("own").unwrap();
    let admin = keeper.admin().unwrap();
    let shown = admin.held(None, soon()).unwrap();
    for held in &shown {
        let _ = admin.force_release(held, soon());
    }
    root.execute("SELECT * FROM shop.t").unwrap();
    let names_shown: Vec<_> = shown.iter().map(|held| held.name.as_str()).collect();
    assert_eq!(
        names_shown,
        ["own"],
        "no keeper can have taken the other names"
    );
    // The mark of a held name is not run, either.
    let long = "x".repeat(65);
    let malformed = [
        "default:A".to_owned(),
        "default:\0".to_owned(),
        "default:~".to_owned(),
        format!("default:a~{hash}~{hash}"),
        format!("default:a~{}g", &hash[1..]),
        format!("{}~{hash}", &long[..24]),
        long,
    ];
    for name in names.iter().chain(&malformed) {
        let mark = shown[0].mark.replace("default:own", name);
        let error = admin
            .force_release(&HeldName::new("a", mark), soon())
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error:?}");
    }
    root.execute("SELECT * FROM shop.t").unwrap();
    let alive: Option<u8> = bare.query_first("SELECT 1").unwrap();
    assert_eq!(alive, Some(1));
}

fn unlock_without_the_right_is_refused(kind: MySqlKind) {
    let server = start_own(kind);
    server
        .execute("CREATE USER looker@'%' IDENTIFIED BY 'secret'")
        .unwrap();
    let _held = open(&server, "").lock("a").unwrap();
    let socket = server.socket().display().to_string();
    let looker = try_open(&with_timeouts(&format!(
        "mysql:?socket={socket}&user=looker&password=secret"
    )));
    let (looker, name) = (looker.unwrap(), LockName::new("a").unwrap());
    let admin = looker.admin().unwrap();
    let shown = admin.held(Some(&name), soon()).unwrap().remove(0);
    let error = admin.force_release(&shown, soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert!(error.to_string().contains("CONNECTION"), "{error}");
}
