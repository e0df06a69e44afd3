//! Kinds of etcd servers, and where their programs are.

use std::path::PathBuf;

use crate::find;
use crate::kinds::server_kinds;

server_kinds! {
    /// A kind of etcd server.
    EtcdKind {
        /// etcd 3.4.x, as Debian 12 has it.
        Etcd3_4 = "etcd-3.4",
        /// etcd 3.5.x.
        Etcd3_5 = "etcd-3.5",
    }
    all: [Etcd3_4, Etcd3_5]; 2
}

impl EtcdKind {
    fn matches(self, version: &str) -> bool {
        version.starts_with(match self {
            Self::Etcd3_4 => "etcd Version: 3.4.",
            Self::Etcd3_5 => "etcd Version: 3.5.",
        })
    }

    fn candidates() -> Vec<PathBuf> {
        let mut programs = Vec::from_iter(find::named_by("TESTKIT_ETCD"));
        programs.push(find::servers_folder().join("etcd-3.5/etcd"));
        programs.extend(find::on_path("etcd"));
        programs
    }
}
