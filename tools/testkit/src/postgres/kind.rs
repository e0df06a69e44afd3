//! Kinds of PostgreSQL servers.

use crate::kinds::server_kinds;

server_kinds! {
    /// A kind of PostgreSQL server.
    PostgresKind {
        /// PostgreSQL 15, as Debian 12 has it.
        Postgres15 = "postgres-15", ["(PostgreSQL) 15."];
        /// PostgreSQL 18.
        Postgres18 = "postgres-18", ["(PostgreSQL) 18."];
    }
    all: [Postgres15, Postgres18]; 2
    variables: &["TESTKIT_POSTGRES"];
    unpacked: &["postgres-18/postgres"];
    installed: &["postgres"];
}
