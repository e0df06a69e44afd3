//! Servers for the run: started on free ports, in throw-away folders, and stopped at its end.

use lockkeeper::CancelToken;
use lockkeeper_testkit::{
    MySqlKind, MySqlOptions, MySqlServer, RedisKind, RedisOptions, RedisServer,
};

use crate::error::Failure;
use crate::store::{Source, Wanted};

/// As many as Redlock's own description has.
const REDLOCK: usize = 5;
/// That may be dead.
const DEAD: usize = 2;
/// For what is not a thread of a scenario.
const MORE_CONNECTIONS: u32 = 60;

/// Servers that run until this is dropped.
#[derive(Debug)]
pub(crate) struct Servers {
    /// The first is the store; all together are `redlock`'s.
    redis: Vec<RedisServer>,
    mysql: Vec<MySqlServer>,
    missing: Vec<String>,
}

impl Servers {
    /// Starts one of every kind that is installed, and five of Redis. `threads`: connections that
    /// must be possible at once.
    pub(crate) fn start(threads: u32, stop: &CancelToken) -> Result<Self, Failure> {
        let mut servers = Self {
            redis: Vec::new(),
            mysql: Vec::new(),
            missing: Vec::new(),
        };
        let not_started = |error: std::io::Error| {
            Failure::Failed(format!("a server could not be started: {error}"))
        };
        let kinds = RedisKind::ALL.map(|kind| kind.program().map(|_| kind));
        match kinds.iter().find_map(|kind| kind.as_ref().ok()) {
            Some(&kind) => {
                let options = RedisOptions::new();
                for _ in 0..REDLOCK {
                    let server = RedisServer::start(kind, &options).map_err(not_started)?;
                    servers.redis.push(server);
                }
            }
            None => servers
                .missing
                .push("no redis-server or valkey-server on this machine".to_owned()),
        }
        let most = threads.saturating_add(MORE_CONNECTIONS).to_string();
        let options = MySqlOptions::new().config("max-connections", &most);
        for kind in MySqlKind::ALL {
            if stop.is_cancelled() {
                return Err(Failure::Interrupted);
            }
            match kind.program() {
                Ok(_) => {
                    let server = MySqlServer::start(kind, &options).map_err(not_started)?;
                    servers.mysql.push(server);
                }
                Err(why) => servers.missing.push(why),
            }
        }
        Ok(servers)
    }

    /// What is not installed.
    pub(crate) fn missing(&self) -> &[String] {
        &self.missing
    }

    /// The stores that they are.
    pub(crate) fn wanted(&self) -> Vec<Wanted> {
        let mut redis = self.redis.iter();
        let store = redis.next().map(RedisServer::url);
        let beside: Vec<_> = redis.map(|server| server.addr().port()).collect();
        let redis = store.map(|url| (url, beside));
        let mysql = self.mysql.iter().map(|server| (server.url(), Vec::new()));
        let wanted = redis.into_iter().chain(mysql).map(|(url, redlock)| Wanted {
            from: "--servers".to_owned(),
            source: Source::url(&url),
            redlock,
        });
        wanted.collect()
    }

    /// Kills two of the five Redis servers, neither of them the store, until the answer is dropped.
    pub(crate) fn two_dead(&self) -> Dead<'_> {
        let dead: Vec<_> = self.redis.iter().skip(1).take(DEAD).collect();
        for server in &dead {
            server.kill();
        }
        Dead(dead)
    }
}

/// Servers that are started again when this is dropped.
pub(crate) struct Dead<'a>(Vec<&'a RedisServer>);

impl Drop for Dead<'_> {
    fn drop(&mut self) {
        for server in &self.0 {
            // One that does not come back has no vote.
            let _ = server.restart();
        }
    }
}
