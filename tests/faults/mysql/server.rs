//! A server that takes no writes.

use lockkeeper::Released;
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer};

use super::Case;
use crate::common::Keepers as _;

pub(super) const CASES: &[Case] = &[("read_only", read_only)];

/// Locks are not data, so a replica can grant them, too.
fn read_only(kind: MySqlKind) {
    let options = MySqlOptions::new().show_locks().config("read-only", "ON");
    let server = MySqlServer::start(kind, &options).unwrap();
    let [keeper, rival] = [(); 2].map(|()| server.open("ttl=3s&wait=20s"));
    let held = keeper.lock("a").unwrap();
    assert!(rival.try_lock("a").unwrap().is_none());
    server.execute("SET GLOBAL read_only = OFF").unwrap();
    held.renew().unwrap();
    server.execute("SET GLOBAL read_only = ON").unwrap();
    held.renew().unwrap();
    let token = held.token();
    assert_eq!(held.release().unwrap(), Released::Done);
    let next = rival.lock("a").unwrap();
    assert!(next.token() > token);
    drop((next, keeper, rival));
    server.assert_clean();
}
