//! etcd servers as the common cases see them, and what is in them.

use std::io;
use std::net::SocketAddr;

use libtest_mimic::Trial;
use lockkeeper_testkit::suite::trial;
use lockkeeper_testkit::{Daemon, EtcdKind, EtcdOptions, EtcdServer, until};

use super::cluster;
use crate::faults::{FaultServer, Memory};

impl FaultServer for EtcdServer {
    type Kind = EtcdKind;

    /// `lockkeeper/default/l/` in base64.
    const LOCK_REQUEST: &'static str = "bG9ja2tlZXBlci9kZWZhdWx0L2wv";
    const MID_REPLY: usize = 2;
    const LEASE_OUTLIVES_CONNECTION: bool = true;
    const RESTARTED: Memory = Memory::Kept;
    const MIN_TTL: u64 = 2;
    // The request for a lease comes before that for the lock, and each is repeated on a new connection.
    const CONNECTIONS_TO_FIND_OUTAGE: u64 = 5;

    fn start(kind: EtcdKind) -> Self {
        Self::start(kind, &EtcdOptions::new()).unwrap()
    }

    fn addr(&self) -> SocketAddr {
        Self::addr(self)
    }

    fn daemon(&self) -> &Daemon {
        self
    }

    fn restart(&self) -> io::Result<()> {
        Self::restart(self)
    }

    fn base_url(&self, addr: SocketAddr) -> String {
        format!("etcd://{addr}/?")
    }

    fn urls_of(addr: &str) -> [String; 2] {
        ["etcd", "etcds"].map(|scheme| format!("{scheme}://{addr}/?"))
    }

    fn queue_length(&self, name: &str) -> usize {
        let keys = self.keys(&format!("lockkeeper/default/l/{name}/"));
        let waits = |value: &str| value.contains(r#""held":false"#);
        keys.unwrap().iter().filter(|it| waits(&it.value)).count()
    }

    fn assert_clean(&self) {
        until("no key is left", || keys_left(self).is_empty());
    }

    /// Elections take most of the time of the suite, and are the same on all kinds.
    fn further() -> Vec<Trial> {
        let cases = cluster::CASES.iter();
        cases.map(|case| trial(EtcdKind::Etcd3_4, *case)).collect()
    }
}

/// Returns all keys but those that a namespace has once.
pub(crate) fn keys_left(server: &EtcdServer) -> Vec<String> {
    let keys = server.keys("lockkeeper/").unwrap().into_iter();
    let keys = keys.map(|it| it.key);
    keys.filter(|key| key.matches('/').count() > 2).collect()
}
