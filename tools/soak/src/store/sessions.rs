//! A server whose locks end with a session, and a proxy before it: MariaDB, MySQL or PostgreSQL.

use std::io;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use lockkeeper_testkit::{
    MySqlKind, MySqlOptions, MySqlServer, PostgresOptions, PostgresServer, TestServer,
};

use super::{POLL, POSTGRES, ServerSettings, Store, StoreFault};
use crate::faults::Lane;
use crate::faults::losses::LOSSES;

/// Returns the numbers of the sessions of a server.
type Sessions<S> = fn(&S) -> io::Result<Vec<u64>>;

pub(super) fn start_mysql(kind: MySqlKind, settings: &ServerSettings) -> io::Result<Store> {
    let server = MySqlServer::start(kind, &MySqlOptions::new().show_locks())?;
    if kind == MySqlKind::MySql9 {
        // The right to list all holders.
        let user = MySqlServer::USER;
        server.execute(&format!(
            "GRANT SELECT ON performance_schema.* TO '{user}'@'%'"
        ))?;
    }
    store(&Arc::new(server), settings, |server| {
        Ok(server.sessions()?.iter().map(|it| it.id).collect())
    })
}

pub(super) fn start_postgres(settings: &ServerSettings) -> io::Result<Store> {
    let server = Arc::new(PostgresServer::start(POSTGRES, &PostgresOptions::new())?);
    let mut store = store(&server, settings, |server| {
        Ok(server.sessions()?.into_iter().map(u64::from).collect())
    })?;
    let is_restart_safe = settings.is_restart_safe;
    store
        .faults
        .push(StoreFault::new("session crashed", move |lane| {
            crash_session(&server, lane, is_restart_safe)
        }));
    Ok(store)
}

fn store<S: TestServer>(
    server: &Arc<S>,
    settings: &ServerSettings,
    sessions: Sessions<S>,
) -> io::Result<Store> {
    let store = Store::behind_proxy(server.clone(), settings)?;
    let [one, all] = [(); 2].map(|()| Arc::clone(server));
    Ok(Store {
        telling_url: store
            .telling_url
            .map(|url| format!("{url}pool_size={LOSSES}&")),
        faults: vec![
            StoreFault::stopped("server stopped", server),
            StoreFault::restarted("server restarted", server, settings, |_| Ok(())),
            StoreFault::new("session killed", move |lane| {
                let running = sessions(&one)?;
                let killed = lane.pick(&running).copied();
                kill(&*one, sessions, lane, &Vec::from_iter(killed))
            }),
            StoreFault::new("all sessions killed", move |lane| {
                kill(&*all, sessions, lane, &sessions(&all)?)
            }),
        ],
        ..store
    })
}

/// Kills sessions, and waits for their ends.
fn kill<S: TestServer>(
    server: &S,
    sessions: Sessions<S>,
    lane: &Lane<'_>,
    killed: &[u64],
) -> io::Result<()> {
    lane.journal.forget(|| {
        for session in killed {
            // An error means that the session has ended by itself.
            let _ = server.kill_session(*session);
        }
        while sessions(server)?.iter().any(|it| killed.contains(it)) {
            thread::sleep(POLL);
        }
        Ok(())
    })
}

/// Makes a session crash: the server ends all others, forgets their locks and recovers.
fn crash_session(
    server: &PostgresServer,
    lane: &mut Lane<'_>,
    is_restart_safe: bool,
) -> io::Result<()> {
    let sessions = server.sessions()?;
    let Some(session) = lane.pick(&sessions).copied() else {
        return Ok(());
    };
    let recovered = || server.value("SELECT pg_stat_get_bgwriter_stat_reset_time()");
    let before = recovered()?;
    let crash = || {
        let killed = Command::new("kill")
            .args(["-9", &session.to_string()])
            .status()?;
        // A session that has ended by itself meanwhile does not crash.
        while killed.success() && recovered().is_ok_and(|now| now == before) {
            thread::sleep(POLL);
        }
        while recovered().is_err() {
            thread::sleep(POLL);
        }
        Ok(())
    };
    match is_restart_safe {
        true => crash(),
        false => lane.journal.forget(crash),
    }
}
