//! How to get to a Redis or Valkey server, as the backend does.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::redis::RedisDriver;
use lockkeeper::{Config, Driver, Error, LockProvider, StoreUrl, Target};
use redis::{Client, Connection, ConnectionAddr, IntoConnectionInfo, TlsCertificates};

use crate::error::Failure;

/// Far above what the server needs for a key, also with 10,000 threads behind each other.
const PATIENCE: Duration = Duration::from_secs(10);

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

    /// A server of this run's own, whether it answers or not.
    pub(crate) fn local(port: u16) -> Result<Self, Failure> {
        let config = Config::from_url(&format!("redis://127.0.0.1:{port}"))?;
        Ok(Self {
            url: config.url().clone(),
            ca_file: None,
            user: None,
            password: None,
            database: 0,
            connect_timeout: PATIENCE,
        })
    }

    /// A connection of its own.
    pub(crate) fn connect(&self) -> Result<Connection, Failure> {
        let client = self.client()?;
        let connection = client.get_connection_with_timeout(self.connect_timeout)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(connection)
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
