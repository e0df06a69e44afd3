//! Kinds of etcd servers, and where their programs are.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::find::{self, Found};

/// A kind of etcd server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EtcdKind {
    /// etcd 3.4.x, as Debian 12 has it.
    Etcd3_4,
    /// etcd 3.5.x.
    Etcd3_5,
}

impl EtcdKind {
    /// All kinds that `scripts/servers` sets up.
    pub const ALL: [Self; 2] = [Self::Etcd3_4, Self::Etcd3_5];

    /// Returns the name for tests: `etcd-3.4`, `etcd-3.5`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd3_4 => "etcd-3.4",
            Self::Etcd3_5 => "etcd-3.5",
        }
    }

    fn matches(self, version: &str) -> bool {
        version.starts_with(match self {
            Self::Etcd3_4 => "etcd Version: 3.4.",
            Self::Etcd3_5 => "etcd Version: 3.5.",
        })
    }

    /// Returns the program: the first of this kind among `TESTKIT_ETCD`, that which `scripts/servers` unpacked, and
    /// those on PATH. Searched once per process.
    ///
    /// # Errors
    /// There is none: the text says what was found instead, and what to do.
    pub fn program(self) -> Result<PathBuf, String> {
        static FOUND: OnceLock<Found> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let unpacked = [find::servers_folder().join("etcd-3.5/etcd")];
            let named = find::named_by("TESTKIT_ETCD").into_iter();
            Found::search(named.chain(unpacked).chain(find::on_path("etcd")))
        });
        found.choose(self.name(), |version| self.matches(version))
    }

    /// Returns why tests with this server are shown as ignored, `None` when they run. In continuous
    /// integration (`CI` is set) they always run, and fail where the server is missing.
    #[must_use]
    pub fn ignored(self) -> Option<String> {
        find::ignored(|| self.program())
    }
}

impl fmt::Display for EtcdKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
