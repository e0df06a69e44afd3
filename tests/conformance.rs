//! The conformance suite, on every backend of the workspace.

#![allow(clippy::expect_used, reason = "a fixture that fails, fails its case")]

mod fixtures;

use std::path::Path;
use std::process::ExitCode;

use lockkeeper_conformance::Run;
use lockkeeper_conformance::Suite;
#[cfg(feature = "consul")]
use lockkeeper_testkit::ConsulKind;
#[cfg(feature = "etcd")]
use lockkeeper_testkit::EtcdKind;
#[cfg(feature = "mysql")]
use lockkeeper_testkit::MySqlKind;
#[cfg(feature = "postgres")]
use lockkeeper_testkit::PostgresKind;
#[cfg(feature = "redis")]
use lockkeeper_testkit::RedisKind;
use lockkeeper_testkit::StoreKind;
#[cfg(feature = "zookeeper")]
use lockkeeper_testkit::ZooKeeperKind;

#[cfg(any(feature = "mysql", feature = "redis"))]
use fixtures::pool;
#[cfg(feature = "quorum")]
use fixtures::quorum;
use fixtures::store;

/// Returns the suites of all stores that the testkit starts.
fn suites() -> Vec<Suite> {
    let mut suites = Vec::new();
    #[cfg(feature = "sqlite")]
    suites.push(store::suite("lockkeeper-local", StoreKind::Sqlite));
    #[cfg(feature = "consul")]
    {
        let package = "lockkeeper-consul";
        suites.extend(ConsulKind::ALL.map(|kind| store::suite(package, StoreKind::Consul(kind))));
    }
    #[cfg(feature = "etcd")]
    suites.extend(EtcdKind::ALL.map(|kind| store::suite("lockkeeper-etcd", StoreKind::Etcd(kind))));
    #[cfg(feature = "mysql")]
    {
        let package = "lockkeeper-mysql";
        let kinds = MySqlKind::ALL;
        let kinds = kinds.map(|kind| [StoreKind::MySql(kind), StoreKind::MySqlTable(kind)]);
        let suite = |kind| store::suite(package, kind);
        suites.extend(kinds.into_iter().flatten().map(suite));
        let kind = StoreKind::MySql(MySqlKind::MariaDb10);
        suites.push(store::suite_by(
            package,
            "mysql-pool",
            kind,
            pool::open_mysql,
        ));
        let kind = StoreKind::MySqlTable(MySqlKind::MariaDb10);
        suites.push(store::suite_by(
            package,
            "mysql-pool-table",
            kind,
            pool::open_mysql_table,
        ));
    }
    #[cfg(feature = "postgres")]
    {
        // The SQL of a table is the same for all versions; the functions of advisory locks are the server's.
        let kinds = PostgresKind::ALL.map(StoreKind::Postgres);
        let table = StoreKind::PostgresTable(PostgresKind::Postgres15);
        let suite = |kind| store::suite("lockkeeper-postgres", kind);
        suites.extend(kinds.into_iter().chain([table]).map(suite));
    }
    #[cfg(feature = "redis")]
    {
        let (package, kind) = ("lockkeeper-redis", RedisKind::Redis7);
        suites.extend(RedisKind::ALL.map(|kind| store::suite(package, StoreKind::Redis(kind))));
        suites.push(store::suite(package, StoreKind::RedisSentinel(kind)));
        suites.push(store::suite(package, StoreKind::RedisCluster(kind)));
        let kind = StoreKind::Redis(kind);
        suites.push(store::suite_by(
            package,
            "redis-pool",
            kind,
            pool::open_redis,
        ));
    }
    #[cfg(feature = "zookeeper")]
    suites.extend(
        ZooKeeperKind::ALL
            .map(|kind| store::suite("lockkeeper-zookeeper", StoreKind::ZooKeeper(kind))),
    );
    #[cfg(all(feature = "quorum", feature = "sqlite"))]
    suites.push(quorum::suite("quorum-sqlite", StoreKind::Sqlite));
    #[cfg(all(feature = "quorum", feature = "redis"))]
    suites.push(quorum::suite(
        "quorum-redis",
        StoreKind::Redis(RedisKind::Redis7),
    ));
    suites
}

fn main() -> ExitCode {
    let mut run = Run::new().suite(fixtures::memory::suite());
    {
        run = suites().into_iter().fold(run, Run::suite);
    }
    // Off by default.
    #[cfg(not(feature = "consul"))]
    {
        run = run.except("lockkeeper-consul");
    }
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
    #[cfg(not(feature = "zookeeper"))]
    {
        run = run.except("lockkeeper-zookeeper");
    }
    run.every_package_under(Path::new(env!("CARGO_MANIFEST_DIR")).join("backends"))
        .except("lockkeeper-register")
        .except("lockkeeper-remote")
        .except("lockkeeper-sessions")
        .main()
}
