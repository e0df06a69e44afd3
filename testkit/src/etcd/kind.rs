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
}

impl EtcdKind {
    /// All kinds that `scripts/servers` sets up.
    pub const ALL: [Self; 1] = [Self::Etcd3_4];

    /// Returns the name for tests: `etcd-3.4`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd3_4 => "etcd-3.4",
        }
    }

    /// Returns the program: the first of this kind among `TESTKIT_ETCD` and those on PATH. Searched once per
    /// process.
    ///
    /// # Errors
    /// There is none: the text says what was found instead, and what to do.
    pub fn program(self) -> Result<PathBuf, String> {
        static FOUND: OnceLock<Found> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let named = find::named_by("TESTKIT_ETCD").into_iter();
            Found::search(named.chain(find::on_path("etcd")))
        });
        found.choose(self.name(), |version| {
            version.starts_with("etcd Version: 3.4.")
        })
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
