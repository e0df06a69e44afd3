//! A primary with two replicas behind proxies, and three sentinels. The sentinels reach the servers by the proxies, too,
//! so a network that is broken at random would start a fail-over at random.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::{Fault, SentinelSet, TestServer};

use super::{REDIS, ServerSettings, Store, StoreFault};
use crate::faults::Lane;

const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
/// A primary that was silent for this long is replaced.
const DOWN_AFTER: Duration = Duration::from_secs(1);

pub(super) fn start(settings: &ServerSettings) -> io::Result<Store> {
    let set = SentinelSet::start(REDIS, REPLICAS, SENTINELS, DOWN_AFTER)?;
    let url = settings.with_keys(&TestServer::url(&set));
    let set = Arc::new(set);
    let sentinels = Arc::clone(&set);
    let faults = vec![
        break_primary("primary stopped", &set, |set, lane, primary| {
            set.server(primary).stop()?;
            lane.spell();
            set.server(primary).cont()
        }),
        break_primary("primary killed", &set, |set, _, primary| {
            set.server(primary).kill();
            set.wait_for_fail_over(primary)?;
            set.server(primary).restart()
        }),
        break_primary("primary cut off", &set, |set, _, primary| {
            let proxy = set.proxy(primary);
            proxy.set(Fault::Dark);
            set.wait_for_fail_over(primary)?;
            proxy.set(Fault::Pass);
            Ok(())
        }),
        StoreFault::new("sentinel stopped", move |lane| {
            let sentinel = sentinels.sentinel(SENTINELS - 1);
            sentinel.stop()?;
            lane.spell();
            sentinel.cont()
        }),
        StoreFault::wiped("all keys flushed", &set),
    ];
    Ok(Store {
        faults,
        ..Store::new(vec![url], vec![set])
    })
}

/// Breaks the primary, and waits until all servers are in touch again. A replica that takes over may not have heard
/// of a grant, and a primary that was replaced may grant until it hears of that.
fn break_primary(
    kind: &'static str,
    set: &Arc<SentinelSet>,
    act: fn(&SentinelSet, &mut Lane<'_>, usize) -> io::Result<()>,
) -> StoreFault {
    let set = Arc::clone(set);
    StoreFault::new(kind, move |lane| {
        let named = set.named_by(set.sentinel(0))?;
        let primary = named.ok_or_else(|| io::Error::other("the sentinel names no primary"))?;
        let journal = lane.journal;
        journal.forget(|| {
            act(&set, lane, primary)?;
            set.wait_until_healthy()
        })
    })
}
