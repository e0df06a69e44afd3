//! A MariaDB or MySQL server, and a proxy before it.

use std::io;
use std::thread;

use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer, MySqlSession, Proxy};

use super::{POLL, ServerSettings, Store, StoreFault};
use crate::faults::Lane;
use crate::faults::losses::LOSSES;

pub(super) struct MySql {
    proxy: Proxy,
    server: MySqlServer,
    settings: ServerSettings,
}

impl MySql {
    pub(super) fn start(kind: MySqlKind, settings: ServerSettings) -> io::Result<Self> {
        let server = MySqlServer::start(kind, &MySqlOptions::new().show_locks())?;
        if kind == MySqlKind::MySql9 {
            // The right to list all holders.
            let user = MySqlServer::USER;
            server.execute(&format!(
                "GRANT SELECT ON performance_schema.* TO '{user}'@'%'"
            ))?;
        }
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

    /// Kills those of the sessions that run now which `choose` returns, and waits for their ends.
    fn kill_sessions(
        &self,
        lane: &mut Lane<'_>,
        choose: impl Fn(&mut Lane<'_>, Vec<MySqlSession>) -> Vec<MySqlSession>,
    ) -> io::Result<()> {
        let mut client = self.server.client()?;
        let sessions = client.sessions()?;
        let killed = choose(lane, sessions);
        lane.journal.forget(|| {
            for session in &killed {
                // An error means that the session has ended by itself.
                let _ = client.execute(&format!("KILL {}", session.id));
            }
            let is_killed = |one: &MySqlSession| killed.iter().any(|it| it.id == one.id);
            while client.sessions()?.iter().any(is_killed) {
                thread::sleep(POLL);
            }
            Ok(())
        })
    }
}

impl Store for MySql {
    fn urls(&self) -> Vec<String> {
        let through = [self.server.addr(), self.proxy.addr()];
        through
            .map(|addr| self.settings.with_keys(&self.server.url_via(addr)))
            .map(|url| url + &self.server.key_setting())
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
            StoreFault::new("session killed", |lane| {
                self.kill_sessions(lane, |lane, all| {
                    lane.pick(&all).cloned().into_iter().collect()
                })
            }),
            StoreFault::new("all sessions killed", |lane| {
                self.kill_sessions(lane, |_, all| all)
            }),
        ]
    }

    fn connections(&self) -> io::Result<Vec<String>> {
        let sessions = self.server.sessions()?;
        Ok(sessions.iter().map(|it| format!("{it:?}")).collect())
    }

    fn entries(&self) -> io::Result<Vec<String>> {
        let held = self.server.held()?.into_iter();
        let held = held.map(|(name, session)| format!("{name} is held by session {session}"));
        Ok(held.collect())
    }
}
