//! What each technique is known for, as the rows show it.

use lockkeeper_compare::{Row, Scenario, Strategy, Verdict};
use lockkeeper_testkit::{RedisServer, StoreKind};

use crate::rig::{gather, of, rows};

/// Asserts that the rows of a comparison with 20 threads show it.
pub(crate) fn assert_known(kind: StoreKind, rows: &[Row]) {
    let gather = |strategy| of(rows, Scenario::Gather, strategy);
    let commands = |strategy| gather(strategy).commands_per_grant.unwrap();
    let faults = |scenario, strategy| of(rows, scenario, strategy).faults.join("\n");
    match kind {
        StoreKind::Redis(_) => {
            assert_eq!((rows.len(), &*rows[0].store), (60, "redis"));
            for peer in [Strategy::SetnxSpin, Strategy::Pubsub] {
                // A busy machine ends the bounds of hand-overs sooner.
                assert!(commands(peer) > commands(Strategy::Lockkeeper).max(2.0));
            }
            assert!(gather(Strategy::Optimistic).connections > Some(5));
            assert_eq!(gather(Strategy::SetnxSpin).connections, Some(1));
            assert_eq!(gather(Strategy::Pubsub).connections, Some(2));
            for (scenario, strategy, fault) in [
                (Scenario::Slow, Strategy::SetnxUnsafe, "a third was let in"),
                (
                    Scenario::Slow,
                    Strategy::Pubsub,
                    "the late write was let through",
                ),
                (Scenario::Crash, Strategy::SetnxUnsafe, "still locked"),
                (Scenario::Limit, Strategy::IncrDecr, "only 3 of 5 permits"),
                (Scenario::Catalog, Strategy::ReaderCounter, "starved"),
            ] {
                let faults = faults(scenario, strategy);
                assert!(faults.contains(fault), "{strategy}: {faults}");
            }
            let once = faults(Scenario::Slow, Strategy::SetnxOnce);
            assert!(!once.contains("a third was let in"), "{once}");
        }
        StoreKind::MySql(_) | StoreKind::Postgres(_) => {
            let named = gather(Strategy::NamedLock);
            let shared = gather(Strategy::NamedLockSharedPool);
            let ours = gather(Strategy::Lockkeeper);
            assert!(named.connections > Some(1), "{named:?}");
            assert!(shared.faults.join("\n").contains("requests failed"));
            assert_eq!(ours.connections, Some(1), "{ours:?}");
            assert!(
                ours.commands_per_grant < named.commands_per_grant,
                "{ours:?}"
            );
            if let StoreKind::Postgres(_) = kind {
                assert_eq!((rows.len(), &*rows[0].store), (53, "postgres"));
                assert!(gather(Strategy::RowLock).connections > Some(1));
                assert_eq!(named.commands_per_grant, Some(2.0));
            } else {
                assert_eq!(rows.len(), 45);
                assert_eq!(shared.connections, Some(10), "{shared:?}");
            }
            let polled = gather(Strategy::InsertDelete);
            assert!(polled.commands_per_grant > Some(2.0), "{polled:?}");
            let left = faults(Scenario::Crash, Strategy::InsertDelete);
            assert!(left.contains("still locked"), "{left}");
            for row in rows.iter().filter(|row| row.scenario == Scenario::Seat) {
                assert_eq!(row.admitted == 1, row.verdict == Verdict::Right, "{row:?}");
            }
        }
        _ => {
            let (store, peer) = match kind {
                StoreKind::Consul(_) => ("consul", Strategy::ConsulLock),
                StoreKind::ZooKeeper(_) => ("zookeeper", Strategy::SequentialNode),
                _ => ("etcd", Strategy::EtcdctlLock),
            };
            assert_eq!((rows.len(), &*rows[0].store), (33, store));
            // All threads use the client of the program there.
            let is_one = matches!(kind, StoreKind::ZooKeeper(_));
            assert_eq!(gather(peer).connections == Some(1), is_one);
            assert!(commands(peer) >= 3.0);
            assert!(commands(Strategy::Optimistic) > 2.0);
            let nested = faults(Scenario::Nested, peer);
            assert!(nested.contains("waited 500ms for itself"), "{nested}");
        }
    }
}

/// Asserts that the report shows what the server counted.
pub(crate) fn assert_counted(server: &RedisServer) {
    let before = server.calls().unwrap();
    // The other strategies run scripts, too.
    let only = gather().strategies([Strategy::None, Strategy::Lockkeeper]);
    let rows = rows(&only, &server.url());
    let calls = server.calls().unwrap();
    let ours = of(&rows, Scenario::Gather, Strategy::Lockkeeper);
    assert_eq!((ours.admitted, ours.turned_away), (5, 95), "{ours:?}");
    // The second one listens for what ends leases, once the first grant is some time ago.
    assert!(matches!(ours.connections, Some(1 | 2)), "{ours:?}");
    let shown = ours.commands_per_grant.unwrap() * 100.0;
    // The data needs no EVALSHA.
    let evalsha = calls["evalsha"] - before.get("evalsha").copied().unwrap_or(0);
    let evalsha = f64::from(u32::try_from(evalsha).unwrap());
    // Beside it, each of four scripts that the server does not know yet is sent whole, and four commands
    // begin to listen.
    assert!(
        shown >= evalsha - 0.1 && shown <= evalsha + 8.1,
        "{shown} shown, {evalsha} counted"
    );
}
