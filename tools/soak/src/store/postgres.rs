//! A PostgreSQL server, and a proxy before it.

use std::io;
use std::process::Command;
use std::thread;

use lockkeeper_testkit::{PostgresKind, PostgresOptions, PostgresServer, Proxy};

use super::{POLL, ServerSettings, Store, StoreFault};
use crate::faults::Lane;
use crate::faults::losses::LOSSES;

pub(super) struct Postgres {
    proxy: Proxy,
    server: PostgresServer,
    settings: ServerSettings,
}

impl Postgres {
    pub(super) fn start(kind: PostgresKind, settings: ServerSettings) -> io::Result<Self> {
        let server = PostgresServer::start(kind, &PostgresOptions::new())?;
        Ok(Self {
            proxy: Proxy::new(server.addr())?,
            server,
            settings,
        })
    }

    fn restart(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        self.settings.kill(&self.server, lane)?;
        lane.spell();
        self.server.restart()
    }

    fn kill_session(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        let sessions = self.server.sessions()?;
        let Some(session) = lane.pick(&sessions).copied() else {
            return Ok(());
        };
        lane.journal.forget(|| {
            self.server
                .execute(&format!("SELECT pg_terminate_backend({session}, 30000)"))
        })
    }

    /// Has a session crash: the server ends all others, forgets their locks and recovers.
    fn crash_session(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        let sessions = self.server.sessions()?;
        let Some(session) = lane.pick(&sessions).copied() else {
            return Ok(());
        };
        let recovered = || {
            self.server
                .value("SELECT pg_stat_get_bgwriter_stat_reset_time()")
        };
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
        if self.settings.is_restart_safe {
            crash()
        } else {
            lane.journal.forget(crash)
        }
    }
}

impl Store for Postgres {
    fn urls(&self) -> Vec<String> {
        let through = [self.server.addr(), self.proxy.addr()];
        through
            .map(|addr| self.settings.with_keys(&self.server.url_via(addr)))
            .into()
    }

    fn proxy(&self) -> Option<&Proxy> {
        Some(&self.proxy)
    }

    fn ends_with_connection(&self) -> bool {
        true
    }

    fn telling_url(&self) -> Option<String> {
        let url = self.settings.with_keys(&self.server.url());
        Some(format!("{url}pool_size={LOSSES}&"))
    }

    fn faults(&self) -> Vec<StoreFault<'_>> {
        vec![
            StoreFault::new("server stopped", |lane| {
                self.server.stop()?;
                lane.spell();
                self.server.cont()
            }),
            StoreFault::new("server restarted", |lane| self.restart(lane)),
            StoreFault::new("session killed", |lane| self.kill_session(lane)),
            StoreFault::new("session crashed", |lane| self.crash_session(lane)),
            StoreFault::new("all sessions killed", |lane| {
                lane.journal.forget(|| self.server.end_sessions())
            }),
        ]
    }

    fn connections(&self) -> io::Result<Vec<String>> {
        let sessions = self.server.sessions()?;
        Ok(sessions.iter().map(|it| format!("session {it}")).collect())
    }

    fn entries(&self) -> io::Result<Vec<String>> {
        let held = self.server.rows(
            "SELECT classid, objid, pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1",
        )?;
        let held = held.iter().map(|row| format!("a lock: {}", row.join(" ")));
        Ok(held.collect())
    }
}
