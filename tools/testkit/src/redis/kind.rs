//! Kinds of Redis servers.

use crate::find;
use crate::kinds::server_kinds;

server_kinds! {
    /// A kind of Redis server.
    RedisKind {
        /// Redis 6.2, the oldest that is supported. It is not in [`RedisKind::ALL`]: few cases run on it, and it is not to
        /// be had for each machine.
        Redis6 = "redis-6", ["Redis server v=6."];
        /// Redis 7.x, as Debian 12 and Ubuntu 24.04 have it.
        Redis7 = "redis-7", ["Redis server v=7."];
        /// Redis 8.x.
        Redis8 = "redis-8", ["Redis server v=8."];
        /// Valkey 9.x.
        Valkey9 = "valkey-9", ["Valkey server v=9."];
    }
    all: [Redis7, Redis8, Valkey9]; 3
    variables: &["TESTKIT_REDIS_SERVER"];
    unpacked: &["redis-6/redis-server", "redis-8/redis-server", "valkey-9/valkey-server"];
    installed: &["redis-server", "valkey-server"];
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
