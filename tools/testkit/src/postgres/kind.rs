//! Kinds of PostgreSQL servers, and where their programs are.

use std::fs;
use std::path::{Path, PathBuf};

use crate::find;
use crate::kinds::server_kinds;

server_kinds! {
    /// A kind of PostgreSQL server.
    PostgresKind {
        /// PostgreSQL 15, as Debian 12 has it.
        Postgres15 = "postgres-15",
        /// PostgreSQL 18.
        Postgres18 = "postgres-18",
    }
    all: [Postgres15, Postgres18]; 2
}

impl PostgresKind {
    fn matches(self, version: &str) -> bool {
        version.contains(match self {
            Self::Postgres15 => "(PostgreSQL) 15.",
            Self::Postgres18 => "(PostgreSQL) 18.",
        })
    }

    fn candidates() -> Vec<PathBuf> {
        let mut programs = Vec::from_iter(find::named_by("TESTKIT_POSTGRES"));
        programs.push(find::servers_folder().join("postgres-18/postgres"));
        // Debian's packages have a folder for each version.
        let packages = fs::read_dir(Path::new("/usr/lib/postgresql"));
        let packages = packages.into_iter().flatten().flatten();
        let packages = packages.map(|version| version.path().join("bin/postgres"));
        programs.extend(packages.filter(|program| program.is_file()));
        programs.extend(find::on_path("postgres"));
        programs
    }
}
