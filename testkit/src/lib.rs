//! Real servers and a proxy that misbehaves, for the tests of lockkeeper's backends.
//!
//! `scripts/servers` installs the servers; [`RedisServer`] starts one as a child process on a free port
//! of 127.0.0.1 in a throw-away folder, and it ends with its owner: at drop, while panicking, and also
//! when the test process is killed.
//!
//! ```no_run
//! # #[cfg(unix)] fn run() -> std::io::Result<()> {
//! use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisOptions, RedisServer};
//!
//! let server = RedisServer::start(RedisKind::Redis8, &RedisOptions::new())?;
//! let proxy = Proxy::new(server.addr())?;
//! let url = format!("redis://{}", proxy.addr());
//! proxy.once("EVALSHA", Fault::DropReplies); // the next script runs, and nobody hears of it
//! # let _ = url;
//! # Ok(()) }
//! ```

#[cfg(unix)]
mod find;
#[cfg(unix)]
mod process;
mod proxy;
#[cfg(unix)]
mod redis;
#[cfg(unix)]
mod resp;
#[cfg(unix)]
mod tls;

pub use proxy::{Counts, Fault, Proxy};
#[cfg(unix)]
pub use redis::{RedisKind, RedisOptions, RedisServer};
#[cfg(unix)]
pub use resp::{RedisClient, Reply};
#[cfg(unix)]
pub use tls::Certificates;
