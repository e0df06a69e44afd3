//! What an operator sees who has no rights but to lock.

use lockkeeper_core::{Clock as _, LockKeeper, LockName, SystemClock};
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer};

use crate::rig::{Case, PATIENCE, open, start};

pub(crate) const CASES: &[Case] = &[(
    "the_holders_process_is_known_to_its_own_user",
    the_holders_process_is_known_to_its_own_user,
)];

fn holder(keeper: &LockKeeper, name: &str) -> Option<u32> {
    let name = LockName::new(name).unwrap();
    let operator = keeper.operator().unwrap();
    let deadline = SystemClock.now() + PATIENCE;
    let held = operator.held(Some(&name), deadline).unwrap();
    assert_eq!(held.len(), 1, "{held:?}");
    held[0].holder.pid
}

fn the_holders_process_is_known_to_its_own_user(kind: MySqlKind) {
    // As a server comes out of its box; at first MariaDB's is off.
    let server = match kind {
        MySqlKind::MySql9 => start(kind),
        MySqlKind::MariaDb10 => {
            let options = MySqlOptions::new().config("performance-schema", "ON");
            MySqlServer::start(kind, &options).unwrap()
        }
    };
    let (holding, asking) = (open(&server, ""), open(&server, ""));
    let _guard = holding.lock("a").unwrap();
    assert_eq!(holder(&asking, "a"), Some(std::process::id()));
}
