//! Kinds of ZooKeeper servers.

use crate::kinds::server_kinds;

server_kinds! {
    /// A kind of ZooKeeper server.
    ZooKeeperKind {
        /// ZooKeeper 3.8.x, as Debian 12 has it.
        ZooKeeper3_8 = "zookeeper-3.8", ["ZooKeeper, version 3.8."];
    }
    all: [ZooKeeper3_8]; 1
    variables: &["TESTKIT_ZOOKEEPER"];
    unpacked: &["zookeeper/zookeeper"];
    installed: &[];
}
