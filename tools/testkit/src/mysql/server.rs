//! A running MySQL or MariaDB.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use super::{MySqlKind, MySqlOptions, data};
use crate::daemon::{Daemon, START};

/// A server that runs until this is dropped. All methods can be called from any thread.
///
/// The server has one database ([`MySqlServer::DATABASE`]) and one user of it, with
/// `caching_sha2_password` on MySQL and `mysql_native_password` on MariaDB. `root` logs in by the unix
/// socket only, without a password.
#[derive(Debug)]
pub struct MySqlServer {
    kind: MySqlKind,
    daemon: Daemon,
}

impl MySqlServer {
    /// The user of [`MySqlServer::url`], with all rights in [`MySqlServer::DATABASE`] and no others.
    pub const USER: &'static str = "keeper";
    /// The user's password.
    pub const PASSWORD: &'static str = "open-sesame";
    /// The database of [`MySqlServer::url`], empty at first.
    pub const DATABASE: &'static str = "shop";

    /// Starts a server and returns when it replies, in a later second than that of its start: the backend
    /// grants no locks before that.
    ///
    /// # Errors
    /// There is no such server on this machine (see [`MySqlKind::ignored`]), or it did not start: its log is in
    /// the error.
    pub fn start(kind: MySqlKind, options: &MySqlOptions) -> io::Result<Self> {
        let mut daemon = Daemon::new(kind.name(), kind.program())?;
        data::fill(kind, daemon.program(), &daemon.folder().join("data"))?;
        daemon.certify(options.tls)?;
        let options = options.clone();
        daemon.start(1, move |daemon| launch(kind, &options, daemon))?;
        let started = second();
        while second() == started {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { kind, daemon })
    }

    /// Returns which server this is.
    #[must_use]
    pub fn kind(&self) -> MySqlKind {
        self.kind
    }

    /// Returns `mysql://USER:PASSWORD@127.0.0.1:PORT/DATABASE`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_via(self.addr())
    }

    /// As [`MySqlServer::url`], but by way of another address, such as a proxy's.
    #[must_use]
    pub fn url_via(&self, addr: SocketAddr) -> String {
        let (user, password, database) = (Self::USER, Self::PASSWORD, Self::DATABASE);
        format!("mysql://{user}:{password}@{addr}/{database}")
    }

    /// Returns `server_key_file=FILE&`, or nothing for MariaDB. Just after its start, MySQL asks for the password, which the
    /// library gives to a known server only.
    #[must_use]
    pub fn key_setting(&self) -> String {
        let key = self.public_key();
        let setting = key.map(|file| format!("server_key_file={}&", file.display()));
        setting.unwrap_or_default()
    }

    /// Returns the PEM file of the server's public key, which MySQL has and MariaDB does not.
    #[must_use]
    pub fn public_key(&self) -> Option<PathBuf> {
        let key = self.folder().join("data/public_key.pem");
        key.is_file().then_some(key)
    }
}

fn launch(kind: MySqlKind, options: &MySqlOptions, daemon: &Daemon) -> io::Result<()> {
    // By the unix socket in the server's own folder, since another process might listen on the TCP
    // port. The server greets after it has opened both.
    let command = command(kind, options, daemon);
    daemon.launch(command, || greeting(&daemon.socket()))?;
    // From then on, MySQL knows the password and does not ask for it. Without TLS, the library does not give it.
    match kind {
        MySqlKind::MariaDb10 => Ok(()),
        MySqlKind::MySql9 => log_in(&daemon.socket(), MySqlServer::USER, MySqlServer::PASSWORD),
    }
}

fn command(kind: MySqlKind, options: &MySqlOptions, daemon: &Daemon) -> Command {
    let mut command = Command::new(daemon.program());
    // MySQL accepts this argument in the first place only.
    command.arg("--no-defaults");
    let folder = daemon.folder();
    let mut files = vec![
        ("datadir", folder.join("data")),
        ("socket", daemon.socket()),
        ("pid-file", folder.join("pid")),
        ("tmpdir", folder.to_owned()),
    ];
    if let Some(certificates) = daemon.certificates() {
        files.extend([
            ("ssl-ca", certificates.authority.clone()),
            ("ssl-cert", certificates.certificate.clone()),
            ("ssl-key", certificates.key.clone()),
        ]);
    }
    for (name, path) in files {
        command.arg(format!("--{name}={}", path.display()));
    }
    command.arg(format!("--port={}", daemon.addr().port()));
    command.args(["--bind-address=127.0.0.1", "--skip-name-resolve"]);
    command.args(match (options.show_locks, kind) {
        (true, MySqlKind::MariaDb10) => LISTING_MARIADB,
        (true, MySqlKind::MySql9) => LISTING_MYSQL,
        (false, _) => &["--performance-schema=OFF"],
    });
    if kind == MySqlKind::MySql9 {
        command.args(["--mysqlx=OFF", "--secure-file-priv=NULL"]);
    }
    command.args(data::own_files(daemon.program()));
    command.args(data::quick(kind));
    command.args(&options.args);
    command
}

impl Deref for MySqlServer {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

/// Returns the current second, which servers base their numbers on.
fn second() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Makes MariaDB list the named locks.
const LISTING_MARIADB: &[&str] = &[
    "--performance-schema=OFF",
    "--plugin-load-add=metadata_lock_info",
];

/// Makes MySQL list the named locks and nothing else; the whole performance schema takes 200 MB.
const LISTING_MYSQL: &[&str] = &[
    "--performance-schema=ON",
    "--performance-schema-instrument=%=OFF",
    "--performance-schema-instrument=wait/lock/metadata/sql/mdl=ON",
    "--performance-schema-accounts-size=0",
    "--performance-schema-digests-size=0",
    "--performance-schema-error-size=0",
    "--performance-schema-events-stages-history-long-size=0",
    "--performance-schema-events-statements-history-long-size=0",
    "--performance-schema-events-transactions-history-long-size=0",
    "--performance-schema-events-waits-history-long-size=0",
    "--performance-schema-max-memory-classes=0",
    "--performance-schema-max-stage-classes=0",
    "--performance-schema-max-statement-classes=0",
];

/// Reads the greeting that the server sends to each client.
fn greeting(socket: &Path) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(START))?;
    let packet = read_packet(&mut stream)?;
    match packet.first() {
        Some(10) => Ok(()),
        // 255, and why not.
        _ => Err(said(&packet)),
    }
}

/// Logs in with `caching_sha2_password`: a proof that the server does not take, and then the password itself.
fn log_in(socket: &Path, user: &str, password: &str) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(START))?;
    read_packet(&mut stream)?;
    // CLIENT_PROTOCOL_41, CLIENT_SECURE_CONNECTION and CLIENT_PLUGIN_AUTH, 1 MiB, utf8mb4, and room.
    let mut login = [0x0008_8200_u32, 1 << 20].map(u32::to_le_bytes).concat();
    login.push(45);
    login.extend([0; 23]);
    login.extend([user.as_bytes(), &[0, 32], &[1; 32]].concat());
    login.extend(b"caching_sha2_password\0");
    write_packet(&mut stream, 1, &login)?;
    let reply = read_packet(&mut stream)?;
    if reply != [1, 4] {
        return Err(said(&reply));
    }
    write_packet(&mut stream, 3, &[password.as_bytes(), &[0]].concat())?;
    let reply = read_packet(&mut stream)?;
    match reply.first() {
        Some(0) => Ok(()),
        _ => Err(said(&reply)),
    }
}

/// Reads a packet: three bytes of length and one of sequence, then the content.
fn read_packet(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let [a, b, c, _] = head;
    let mut packet = vec![0; usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16];
    stream.read_exact(&mut packet)?;
    Ok(packet)
}

fn write_packet(stream: &mut UnixStream, sequence: u8, content: &[u8]) -> io::Result<()> {
    let length = u16::try_from(content.len()).map_err(io::Error::other)?;
    let [a, b] = length.to_le_bytes();
    stream.write_all(&[&[a, b, 0, sequence], content].concat())
}

fn said(packet: &[u8]) -> io::Error {
    io::Error::other(String::from_utf8_lossy(packet).into_owned())
}
