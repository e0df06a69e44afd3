//! Kinds of Consul servers.

use crate::kinds::server_kinds;

server_kinds! {
    /// A kind of Consul server.
    ConsulKind {
        /// Consul 1.8.x, as Debian 11 has it.
        Consul1_8 = "consul-1.8", ["Consul v1.8."];
    }
    all: [Consul1_8]; 1
    variables: &["TESTKIT_CONSUL"];
    unpacked: &["consul/consul"];
    installed: &["consul"];
}
