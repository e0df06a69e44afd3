//! Connections to a Redis or Valkey server, with the settings of the backend's URL.

use std::time::Duration;

use lockkeeper::redis::RedisOptions;
use lockkeeper::{Config, OpenContext, StoreUrl};
use redis::{Client, Connection, ConnectionAddr, IntoConnectionInfo, TlsCertificates};

use crate::error::Error;

/// Far longer than the server needs for a command, also with 10,000 threads in a queue.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How to connect to a server.
#[derive(Clone)]
pub(crate) struct RedisConfig {
    url: StoreUrl,
    ca_file: Option<String>,
    user: Option<String>,
    password: Option<String>,
    database: i64,
    connect_timeout: Duration,
}

impl RedisConfig {
    /// Reads the settings that the backend was opened with.
    pub(crate) fn from_context(context: &OpenContext<'_>) -> Result<Self, lockkeeper::Error> {
        let url = context.url().clone();
        let key = |name| context.get(name).map(str::to_owned);
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
                None => context.parse("db", "a number from 0")?.unwrap_or_default(),
            },
            connect_timeout: context.duration("connect_timeout")?.unwrap_or(TIMEOUT),
            url,
        })
    }

    /// Describes a server on this machine, which need not run.
    pub(crate) fn local(port: u16) -> Result<Self, Error> {
        let config = Config::from_url(&format!("redis://127.0.0.1:{port}"))?;
        Ok(Self {
            url: config.url().clone(),
            ca_file: None,
            user: None,
            password: None,
            database: 0,
            connect_timeout: TIMEOUT,
        })
    }

    /// Opens a connection.
    pub(crate) fn connect(&self) -> Result<Connection, Error> {
        let client = self.client()?;
        let connection = client.get_connection_with_timeout(self.connect_timeout)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        Ok(connection)
    }

    fn client(&self) -> Result<Client, Error> {
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
        let root_cert =
            root_cert.map_err(|error| Error::failed(format!("cannot read `ca_file`: {error}")))?;
        let certificates = TlsCertificates {
            client_tls: None,
            root_cert,
        };
        Ok(Client::build_with_tls(info, certificates)?)
    }

    fn address(&self) -> Result<ConnectionAddr, Error> {
        if self.url.scheme() == "unix" {
            return Ok(ConnectionAddr::Unix(self.url.path()?.into()));
        }
        // A URL has brackets around an IPv6 address.
        let host = self.url.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = host.to_owned();
        let port = self.url.port().unwrap_or(RedisOptions::DEFAULT_PORT);
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
