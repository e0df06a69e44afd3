//! Kinds of PostgreSQL servers, and where their programs are.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::find::{self, Found};

/// A kind of PostgreSQL server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PostgresKind {
    /// PostgreSQL 15, as Debian 12 has it.
    Postgres15,
    /// PostgreSQL 18.
    Postgres18,
}

impl PostgresKind {
    /// All kinds that `scripts/servers` sets up.
    pub const ALL: [Self; 2] = [Self::Postgres15, Self::Postgres18];

    /// Returns the name for tests: `postgres-15`, `postgres-18`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres15 => "postgres-15",
            Self::Postgres18 => "postgres-18",
        }
    }

    fn matches(self, version: &str) -> bool {
        version.contains(match self {
            Self::Postgres15 => "(PostgreSQL) 15.",
            Self::Postgres18 => "(PostgreSQL) 18.",
        })
    }

    /// Returns the program: the first of this kind among `TESTKIT_POSTGRES`, those that `scripts/servers`
    /// unpacked, those of Debian's packages, and those on PATH. Searched once per process.
    ///
    /// # Errors
    /// There is none: the text says what was found instead, and what to do.
    pub fn program(self) -> Result<PathBuf, String> {
        static FOUND: OnceLock<Found> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let unpacked = [find::servers_folder().join("postgres-18/postgres")];
            let packages = versions(Path::new("/usr/lib/postgresql"));
            Found::search(
                find::named_by("TESTKIT_POSTGRES")
                    .into_iter()
                    .chain(unpacked)
                    .chain(packages)
                    .chain(find::on_path("postgres")),
            )
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

/// Returns the programs of Debian's packages, which have a folder for each version.
fn versions(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|version| version.path().join("bin/postgres"))
        .filter(|program| program.is_file())
        .collect()
}

impl fmt::Display for PostgresKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
