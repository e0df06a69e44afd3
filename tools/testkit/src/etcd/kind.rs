//! Kinds of etcd servers.

use crate::kinds::server_kinds;

server_kinds! {
    /// A kind of etcd server.
    EtcdKind {
        /// etcd 3.4.x, as Debian 12 has it.
        Etcd3_4 = "etcd-3.4", ["etcd Version: 3.4."];
        /// etcd 3.5.x.
        Etcd3_5 = "etcd-3.5", ["etcd Version: 3.5."];
    }
    all: [Etcd3_4, Etcd3_5]; 2
    variables: &["TESTKIT_ETCD"];
    unpacked: &["etcd-3.5/etcd"];
    installed: &["etcd"];
}
