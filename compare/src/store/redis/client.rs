//! Connections to a Redis or Valkey server, with the settings of the backend's URL.

use std::fs;
use std::ops::RangeInclusive;
use std::time::Duration;

use lockkeeper::backend::OpenContext;
use lockkeeper::backends::redis::{RedisDriver, RedisOptions};
use lockkeeper::backends::remote;
use redis::{
    Client, Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisResult,
    TlsCertificates,
};

use crate::error::Error;
use crate::store::pool::Pool;

/// Far longer than the server needs for a command, also with 10,000 threads in a queue.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How to connect to a server.
#[derive(Clone)]
pub(crate) struct RedisConfig {
    client: Client,
    connect_timeout: Duration,
}

impl RedisConfig {
    /// Reads the settings that the backend was opened with.
    pub(crate) fn from_context(context: &OpenContext<'_>) -> Result<Self, Error> {
        let url = context.url();
        let (scheme, path) = (url.scheme(), url.path());
        let host = url.host().unwrap_or_default().to_owned();
        let port = url.port().unwrap_or(RedisOptions::DEFAULT_PORT);
        let address = match scheme {
            "unix" => ConnectionAddr::Unix(path.into()),
            "rediss" => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        let in_path = path.trim_start_matches('/').parse().ok();
        let database = match in_path.filter(|_| scheme != "unix") {
            Some(number) => number,
            None => context.value(&RedisDriver::DB)?.unwrap_or_default().into(),
        };
        let info = without_delay(address)?;
        let mut settings = info.redis_settings().clone().set_db(database);
        let user = context.value(&remote::USER)?;
        if let Some(user) = url.username().or(user.as_deref()) {
            settings = settings.set_username(user);
        }
        let password = context.value(&remote::PASSWORD)?;
        if let Some(password) = url.password().or(password.as_deref()) {
            settings = settings.set_password(password);
        }
        let info = info.set_redis_settings(settings);
        let client = if scheme == "rediss" {
            let root_cert = context.value(&remote::CA_FILE)?.map(fs::read).transpose();
            let root_cert = root_cert
                .map_err(|error| Error::failed(format!("cannot read `ca_file`: {error}")))?;
            let certificates = TlsCertificates {
                client_tls: None,
                root_cert,
            };
            Client::build_with_tls(info, certificates)?
        } else {
            Client::open(info)?
        };
        Ok(Self {
            client,
            connect_timeout: context.value(&remote::CONNECT_TIMEOUT)?.unwrap_or(TIMEOUT),
        })
    }

    /// Describes a server on this machine, which need not run.
    pub(crate) fn local(port: u16) -> Result<Self, Error> {
        let address = ConnectionAddr::Tcp("127.0.0.1".to_owned(), port);
        Ok(Self {
            client: Client::open(without_delay(address)?)?,
            connect_timeout: TIMEOUT,
        })
    }

    pub(crate) fn connect(&self) -> Result<Connection, Error> {
        let connection = self
            .client
            .get_connection_with_timeout(self.connect_timeout)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        Ok(connection)
    }

    /// Opens an application's pool.
    pub(crate) fn pool(&self, size: RangeInclusive<u32>) -> Result<Pool<Connection>, Error> {
        let config = self.clone();
        Pool::open(size, move || config.connect())
    }
}

/// Describes connections to `address` that send each command at once.
fn without_delay(address: ConnectionAddr) -> RedisResult<ConnectionInfo> {
    let info = address.into_connection_info()?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    Ok(info.set_tcp_settings(tcp))
}
