//! The conformance suite, on every backend of the workspace.

#![allow(clippy::expect_used, reason = "a fixture that fails, fails its case")]

mod fixtures;

use std::path::Path;
use std::process::ExitCode;

use lockkeeper_conformance::Run;

fn main() -> ExitCode {
    let mut run = Run::new().suite(fixtures::memory::suite());
    #[cfg(feature = "sqlite")]
    {
        run = run.suite(fixtures::sqlite::suite());
    }
    #[cfg(all(feature = "etcd", unix))]
    {
        run = fixtures::etcd::suites().fold(run, Run::suite);
    }
    #[cfg(all(feature = "mysql", unix))]
    {
        run = fixtures::mysql::suites().fold(run, Run::suite);
    }
    #[cfg(all(feature = "postgres", unix))]
    {
        run = fixtures::postgres::suites().fold(run, Run::suite);
    }
    #[cfg(all(feature = "redis", unix))]
    {
        run = fixtures::redis::suites().fold(run, Run::suite);
    }
    #[cfg(feature = "quorum")]
    {
        run = fixtures::quorum::suites().fold(run, Run::suite);
    }
    // Off by default.
    #[cfg(not(feature = "etcd"))]
    {
        run = run.except("lockkeeper-etcd");
    }
    #[cfg(not(feature = "postgres"))]
    {
        run = run.except("lockkeeper-postgres");
    }
    #[cfg(not(feature = "quorum"))]
    {
        run = run.except("lockkeeper-quorum");
    }
    run.every_package_under(Path::new(env!("CARGO_MANIFEST_DIR")).join("backends"))
        .except("lockkeeper-remote")
        .main()
}
