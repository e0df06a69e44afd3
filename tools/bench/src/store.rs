//! The stores that rows run on.

use std::cell::RefCell;
use std::error::Error;
use std::fmt;

use lockkeeper::LockKeeper;
use lockkeeper_testkit::{
    ConsulKind, ConsulOptions, ConsulServer, EtcdKind, EtcdOptions, EtcdServer, MySqlClient,
    MySqlKind, MySqlOptions, MySqlServer, PostgresKind, PostgresOptions, PostgresServer, RedisKind,
    RedisOptions, RedisServer, TestServer, ZooKeeperKind, ZooKeeperOptions, ZooKeeperServer,
};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::raw::consul::RawConsul;
use crate::raw::etcd::RawEtcd;
use crate::raw::mysql::RawMySql;
use crate::raw::postgres::RawPostgres;
use crate::raw::redis::RawRedis;
use crate::raw::sqlite::{self, RawSqlite};
use crate::raw::zookeeper::RawZooKeeper;
use crate::raw::{Done, Raw};

/// The commands that a client sends for a lock. Redis also counts those that scripts run, which have other names.
const SENT: [&str; 11] = [
    "evalsha",
    "eval",
    "script|load",
    "hello",
    "client|tracking",
    "subscribe",
    "unsubscribe",
    "ping",
    "auth",
    "select",
    "wait",
];

/// More connections than many processes open, each with a pool of its own.
const CONNECTIONS: &str = "400";

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Redis,
    MariaDb,
    MySql,
    Postgres,
    Etcd,
    Consul,
    ZooKeeper,
}

impl Kind {
    /// Returns the word by which groups of rows are chosen.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::MariaDb => "mariadb",
            Self::MySql => "mysql",
            Self::Postgres => "postgres",
            Self::Etcd => "etcd",
            Self::Consul => "consul",
            Self::ZooKeeper => "zookeeper",
        }
    }

    /// Returns the name in rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MariaDb => MySqlKind::MariaDb10.name(),
            Self::MySql => MySqlKind::MySql9.name(),
            Self::Postgres => PostgresKind::Postgres15.name(),
            _ => self.word(),
        }
    }

    /// Returns how many pairs take long enough to be measured.
    pub(crate) fn pairs(self) -> u32 {
        match self {
            Self::Memory => 20_000,
            Self::Sqlite => 500,
            Self::Etcd | Self::Consul | Self::ZooKeeper => 20,
            _ => 100,
        }
    }

    /// Returns what rows call a request to the store.
    pub(crate) fn request(self) -> &'static str {
        match self {
            Self::Redis => "commands",
            Self::Etcd | Self::Consul | Self::ZooKeeper => "requests",
            _ => "statements",
        }
    }
}

/// The error when this machine has no server of a kind.
#[derive(Debug)]
pub(crate) struct Missing(String);

impl Missing {
    /// Makes the error from the text that is printed instead of a row.
    pub(crate) fn new(why: String) -> Self {
        Self(why)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Missing {}

/// A store that this program has started.
pub(crate) struct Store {
    pub(crate) kind: Kind,
    pub(crate) server: Server,
}

/// What the store is kept by.
pub(crate) enum Server {
    Memory,
    /// The file `locks.db` in a folder, and beside it a file for a raw connection.
    Sqlite(TempDir, Connection),
    Redis(RedisServer),
    MySql(MySqlServer, Questions),
    Postgres(PostgresServer),
    Etcd(EtcdServer),
    Consul(ConsulServer),
    ZooKeeper(ZooKeeperServer),
}

impl Store {
    /// Starts a store of a kind.
    pub(crate) fn start(kind: Kind) -> Done<Self> {
        Self::start_with(kind, MySqlOptions::new())
    }

    /// Starts a store that can tell which locks are held. On MySQL that costs time.
    pub(crate) fn start_to_list(kind: Kind) -> Done<Self> {
        Self::start_with(kind, MySqlOptions::new().show_locks())
    }

    fn start_with(kind: Kind, options: MySqlOptions) -> Done<Self> {
        let server = match kind {
            Kind::Memory => Server::Memory,
            Kind::Sqlite => {
                let folder = tempfile::tempdir()?;
                let raw = sqlite::create(&folder.path().join("raw.db"))?;
                Server::Sqlite(folder, raw)
            }
            Kind::Redis => Server::Redis(start_redis()?),
            Kind::MariaDb | Kind::MySql => {
                let kind = match kind {
                    Kind::MariaDb => MySqlKind::MariaDb10,
                    _ => MySqlKind::MySql9,
                };
                kind.program().map_err(Missing::new)?;
                let options = options.config("max-connections", CONNECTIONS);
                let server = MySqlServer::start(kind, &options)?;
                let questions = Questions::of(&server)?;
                Server::MySql(server, questions)
            }
            Kind::Postgres => {
                let kind = PostgresKind::Postgres15;
                kind.program().map_err(Missing::new)?;
                // The raw client knows no password.
                let options = PostgresOptions::new().login("trust");
                let options = options.config("max_connections", CONNECTIONS);
                Server::Postgres(PostgresServer::start(kind, &options)?)
            }
            Kind::Etcd => {
                let kind = EtcdKind::Etcd3_4;
                kind.program().map_err(Missing::new)?;
                // Its data are in memory, so no row waits for a disk.
                Server::Etcd(EtcdServer::start(kind, &EtcdOptions::new())?)
            }
            Kind::Consul => {
                let kind = ConsulKind::Consul1_8;
                kind.program().map_err(Missing::new)?;
                Server::Consul(ConsulServer::start(kind, &ConsulOptions::new())?)
            }
            Kind::ZooKeeper => {
                let kind = ZooKeeperKind::ZooKeeper3_8;
                kind.program().map_err(Missing::new)?;
                Server::ZooKeeper(ZooKeeperServer::start(kind, &ZooKeeperOptions::new())?)
            }
        };
        Ok(Self { kind, server })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Returns the server, if there is one.
    pub(crate) fn test_server(&self) -> Option<&dyn TestServer> {
        Some(match &self.server {
            Server::Memory | Server::Sqlite(..) => return None,
            Server::Redis(server) => server,
            Server::MySql(server, _) => server,
            Server::Postgres(server) => server,
            Server::Etcd(server) => server,
            Server::Consul(server) => server,
            Server::ZooKeeper(server) => server,
        })
    }

    /// Returns the server's process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.test_server()?.processes().first()?.pid()
    }

    /// Returns the URL with these keys.
    pub(crate) fn url(&self, keys: &str) -> String {
        let url = match &self.server {
            Server::Sqlite(folder, _) => {
                format!("sqlite:{}?", folder.path().join("locks.db").display())
            }
            _ => match self.test_server() {
                Some(server) => server.url(),
                None => "memory:bench?".to_owned(),
            },
        };
        url + keys
    }

    /// Opens a keeper with these keys.
    pub(crate) fn open(&self, keys: &str) -> Result<LockKeeper, lockkeeper::Error> {
        lockkeeper::open(&self.url(keys))
    }

    /// Opens a raw connection, by TCP like that of a keeper.
    pub(crate) fn raw(&self) -> Done<Box<dyn Raw + '_>> {
        Ok(match &self.server {
            Server::Memory => return Err("there is no raw connection to memory".into()),
            Server::Sqlite(_, raw) => Box::new(RawSqlite::new(raw)?),
            Server::Redis(server) => Box::new(RawRedis::new(connect_redis(server)?)?),
            Server::MySql(server, _) => Box::new(RawMySql::new(connect_mysql(server)?)?),
            Server::Postgres(server) => Box::new(RawPostgres::open(server)?),
            Server::Etcd(server) => Box::new(RawEtcd::connect(server.addr())?),
            Server::Consul(server) => Box::new(RawConsul::connect(server.addr())?),
            Server::ZooKeeper(server) => Box::new(RawZooKeeper::connect(server.addr())?),
        })
    }

    /// Returns how many requests for locks were sent to the store so far. The store counts them if its counter has
    /// no delay, else the keeper, if it has a counter.
    pub(crate) fn sent(&self, keeper: &LockKeeper) -> Done<Option<u64>> {
        match &self.server {
            Server::Redis(server) => Ok(Some(sent_to_redis(server)?)),
            Server::MySql(_, questions) => Ok(Some(questions.sent()?)),
            _ => Ok(keeper.usage().map(|usage| usage.commands)),
        }
    }
}

/// Returns the first kind of Redis server that this machine has.
pub(crate) fn redis_kind() -> Result<RedisKind, Missing> {
    let mut missing = Vec::new();
    for kind in RedisKind::ALL {
        match kind.program() {
            Ok(_) => return Ok(kind),
            Err(why) => missing.push(why),
        }
    }
    Err(Missing::new(missing.join("; ")))
}

/// Starts a Redis server.
pub(crate) fn start_redis() -> Done<RedisServer> {
    Ok(RedisServer::start(redis_kind()?, &RedisOptions::new())?)
}

pub(crate) fn connect_redis(server: &RedisServer) -> redis::RedisResult<redis::Connection> {
    redis::Client::open(server.url())?.get_connection()
}

pub(crate) fn connect_mysql(server: &MySqlServer) -> Done<mysql::Conn> {
    let options = mysql::OptsBuilder::from_opts(mysql::Opts::from_url(&server.url())?);
    let options = options.prefer_socket(false).tcp_nodelay(true);
    Ok(mysql::Conn::new(options)?)
}

/// Returns how many commands for locks the server was sent so far, by its own count.
pub(crate) fn sent_to_redis(server: &RedisServer) -> Done<u64> {
    let calls = server.calls()?;
    Ok(SENT.iter().filter_map(|name| calls.get(*name)).sum())
}

/// Returns the bytes that the server uses, by its own count.
pub(crate) fn memory_of_redis(server: &RedisServer) -> Done<f64> {
    let memory = server.info("memory")?;
    let used = memory.get("used_memory").ok_or("no used_memory")?;
    Ok(used.parse()?)
}

/// A MySQL server's own count of statements, without those that read it.
pub(crate) struct Questions(RefCell<(MySqlClient, u64)>);

impl Questions {
    fn of(server: &MySqlServer) -> Done<Self> {
        Ok(Self(RefCell::new((server.client()?, 0))))
    }

    fn sent(&self) -> Done<u64> {
        let (client, own) = &mut *self.0.borrow_mut();
        *own += 1;
        Ok(client.status("Questions")? - *own)
    }
}
