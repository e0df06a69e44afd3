//! The state of `redis:`, `rediss:` and `unix:`: keys of their own on the server with the locks,
//! under a prefix that no other run has.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::redis::RedisDriver;
use lockkeeper::{Driver, Error, FencingToken, LockProvider, StoreUrl, Target};
use redis::{
    Client, Cmd, Connection, ConnectionAddr, FromRedisValue, IntoConnectionInfo, RedisResult,
    TlsCertificates, cmd,
};

use super::State;
use crate::failure::Failure;

/// As for SQLite: not one for each of 10,000 threads, and more than one, so that the server sees
/// several writers.
const CONNECTIONS: usize = 4;
/// Far above what the server needs for a key, also with 10,000 threads behind each other.
const PATIENCE: Duration = Duration::from_secs(10);
/// Removes what a run that was killed left behind. Every write starts it anew.
const TTL_SECONDS: u32 = 3_600;
/// Tokens are compared as text: the server's numbers are not exact to the last digit.
const WRITE_FENCED: &str = "local last, new = redis.call('GET', KEYS[2]) or '', ARGV[2]
if #last > #new or (#last == #new and last > new) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
redis.call('SET', KEYS[2], new, 'EX', ARGV[3])
return 1";

/// Opens locks as [`RedisDriver`] does, and remembers where: the state is to be beside them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noting {
    noted: Arc<Mutex<Option<Door>>>,
}

impl Noting {
    /// Where the last store was that could be opened.
    pub(crate) fn door(&self) -> Option<Door> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.clone()
    }
}

impl Driver for Noting {
    fn schemes(&self) -> &'static [&'static str] {
        RedisDriver.schemes()
    }

    fn keys(&self) -> &'static [&'static str] {
        RedisDriver.keys()
    }

    fn open(&self, target: &Target<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        // First, since it says what is wrong with the settings.
        let provider = RedisDriver.open(target)?;
        let door = Door::of(target)?;
        *self.noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(door);
        Ok(provider)
    }
}

/// How to reach a server.
#[derive(Clone)]
pub(crate) struct Door {
    url: StoreUrl,
    ca_file: Option<String>,
    user: Option<String>,
    password: Option<String>,
    database: i64,
    connect_timeout: Duration,
}

impl Door {
    fn of(target: &Target<'_>) -> Result<Self, Error> {
        let url = target.url().clone();
        let key = |name| target.get(name).map(str::to_owned);
        let in_path = match url.scheme() {
            "unix" => None,
            _ => url.path()?.trim_start_matches('/').parse().ok(),
        };
        Ok(Self {
            ca_file: key("ca_file"),
            user: url.username()?.or_else(|| key("user")),
            password: url.password()?.or_else(|| key("password")),
            database: match in_path {
                Some(number) => number,
                None => target.parse("db", "a number from 0")?.unwrap_or_default(),
            },
            connect_timeout: target.duration("connect_timeout")?.unwrap_or(PATIENCE),
            url,
        })
    }

    fn client(&self) -> Result<Client, Failure> {
        let address = self.address()?;
        let info = address.into_connection_info()?;
        let mut settings = info.redis_settings().clone().set_db(self.database);
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        if self.url.scheme() != "rediss" {
            return Ok(Client::open(info)?);
        }
        let root_cert = self.ca_file.as_ref().map(std::fs::read).transpose();
        let root_cert = root_cert
            .map_err(|error| Failure::Failed(format!("`ca_file` cannot be read: {error}")))?;
        let certificates = TlsCertificates {
            client_tls: None,
            root_cert,
        };
        Ok(Client::build_with_tls(info, certificates)?)
    }

    fn address(&self) -> Result<ConnectionAddr, Failure> {
        if self.url.scheme() == "unix" {
            return Ok(ConnectionAddr::Unix(self.url.path()?.into()));
        }
        // An IPv6 address is in brackets there.
        let host = self.url.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = host.to_owned();
        let port = self
            .url
            .port()
            .unwrap_or(lockkeeper::redis::RedisOptions::DEFAULT_PORT);
        Ok(match self.url.scheme() {
            "rediss" => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            },
            _ => ConnectionAddr::Tcp(host, port),
        })
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// Keys, reached over a few connections that the threads take in turn, for a command at a time.
pub(crate) struct Keys {
    connections: Vec<Mutex<Connection>>,
    turn: AtomicUsize,
    number: String,
    token: String,
    users: String,
}

impl Keys {
    /// Connects. `folder` and `number` tell these keys from all others.
    pub(crate) fn create(door: &Door, folder: &Path, number: usize) -> Result<Self, Failure> {
        let client = door.client()?;
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let connection = client.get_connection_with_timeout(door.connect_timeout)?;
            connection.set_read_timeout(Some(PATIENCE))?;
            connection.set_write_timeout(Some(PATIENCE))?;
            connections.push(Mutex::new(connection));
        }
        // The folder's name is unique on this machine only.
        let run = folder.file_name().unwrap_or_default().to_string_lossy();
        let salt = tempfile::Builder::new()
            .rand_bytes(16)
            .prefix("")
            .tempdir_in(folder)
            .map_err(|error| Failure::Failed(format!("no folder to take a name from: {error}")))?;
        let salt = salt
            .path()
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let key = |what| format!("{{{run}-{salt}-{number}}}:{what}");
        Ok(Self {
            connections,
            turn: AtomicUsize::new(0),
            number: key("number"),
            token: key("token"),
            users: key("users"),
        })
    }

    /// Runs one command on the connection whose turn it is.
    fn with<T>(
        &self,
        command: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> Result<T, Failure> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % CONNECTIONS;
        let connection = self
            .connections
            .get(turn)
            .ok_or_else(|| Failure::Failed("there is no connection to the state".to_owned()))?;
        let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(command(&mut connection)?)
    }

    fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Failure> {
        self.with(|connection| command.query(connection))
    }

    fn remove(&self) -> Result<(), Failure> {
        let keys = [&self.number, &self.token, &self.users];
        self.ask(cmd("DEL").arg(&keys))
    }
}

impl State for Keys {
    fn reset(&self, value: i64) -> Result<(), Failure> {
        self.remove()?;
        self.write(value)
    }

    fn read(&self) -> Result<i64, Failure> {
        self.ask(cmd("GET").arg(&self.number))
    }

    fn write(&self, value: i64) -> Result<(), Failure> {
        let mut set = cmd("SET");
        self.ask(set.arg(&self.number).arg(value).arg("EX").arg(TTL_SECONDS))
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Failure> {
        let mut eval = cmd("EVAL");
        eval.arg(WRITE_FENCED).arg(2);
        eval.arg(&self.number).arg(&self.token);
        self.ask(eval.arg(value).arg(token.as_i64()).arg(TTL_SECONDS))
    }

    fn record(&self, user: u32) -> Result<(), Failure> {
        let mut both = redis::pipe();
        both.atomic();
        both.cmd("RPUSH").arg(&self.users).arg(user).ignore();
        both.cmd("EXPIRE").arg(&self.users).arg(TTL_SECONDS);
        let both = both.ignore();
        self.with(|connection| both.query(connection))
    }

    fn recorded(&self) -> Result<i64, Failure> {
        self.ask(cmd("LLEN").arg(&self.users))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // Where the server is gone, their time to live removes them.
        let _ = self.remove();
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
