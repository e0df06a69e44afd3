//! Kinds of Redis servers, and where their programs are.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::find::{self, Found};

/// A kind of Redis server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RedisKind {
    /// Redis 6.2, the oldest that is supported. It is not in [`RedisKind::ALL`]: few cases run on it.
    Redis6,
    /// Redis 7.x, as Debian 12 and Ubuntu 24.04 have it.
    Redis7,
    /// Redis 8.x.
    Redis8,
    /// Valkey 9.x.
    Valkey9,
}

impl RedisKind {
    /// The kinds that all cases run on.
    pub const ALL: [Self; 3] = [Self::Redis7, Self::Redis8, Self::Valkey9];

    /// Returns the name for tests: `redis-6`, `redis-7`, `redis-8`, `valkey-9`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis6 => "redis-6",
            Self::Redis7 => "redis-7",
            Self::Redis8 => "redis-8",
            Self::Valkey9 => "valkey-9",
        }
    }

    /// Returns how the output of `--version` begins.
    fn banner(self) -> &'static str {
        match self {
            Self::Redis6 => "Redis server v=6.",
            Self::Redis7 => "Redis server v=7.",
            Self::Redis8 => "Redis server v=8.",
            Self::Valkey9 => "Valkey server v=9.",
        }
    }

    /// Returns the program: the first of this kind among `TESTKIT_REDIS_SERVER`, those that
    /// `scripts/servers` unpacked, and those on PATH. Searched once per process.
    ///
    /// # Errors
    /// There is none: the text says what was found instead, and what to do.
    pub fn program(self) -> Result<PathBuf, String> {
        static FOUND: OnceLock<Found> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let folder = find::servers_folder();
            Found::search(
                find::named_by("TESTKIT_REDIS_SERVER")
                    .into_iter()
                    .chain([
                        folder.join("redis-6/redis-server"),
                        folder.join("redis-8/redis-server"),
                        folder.join("valkey-9/valkey-server"),
                    ])
                    .chain(find::on_path("redis-server"))
                    .chain(find::on_path("valkey-server")),
            )
        });
        found.choose(self.name(), |version| version.starts_with(self.banner()))
    }

    /// Returns why tests with this server are shown as ignored, `None` when they run. In continuous
    /// integration (`CI` is set) they always run, and fail where the server is missing; but for Redis 6.2, which is
    /// not to be had for each machine.
    #[must_use]
    pub fn ignored(self) -> Option<String> {
        match self {
            Self::Redis6 => self.program().err(),
            _ => find::ignored(|| self.program()),
        }
    }
}

impl RedisKind {
    /// Returns why tests that set the server's clock are shown as ignored, `None` when they run. Builds with an allocator of
    /// their own do not run with libfaketime, so only Redis 7 of the distribution does.
    #[must_use]
    pub fn clock_ignored(self) -> Option<String> {
        match self {
            Self::Redis7 => self.ignored().or_else(|| find::faketime().err()),
            _ => Some(format!(
                "libfaketime does not run with this build of {self}"
            )),
        }
    }
}

impl fmt::Display for RedisKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
