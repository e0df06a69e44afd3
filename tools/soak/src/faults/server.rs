//! Faults of the store itself.

use std::io;

use super::{Lane, losses};
use crate::store::{Store, StoreFault};

const PAUSE_MS: std::ops::Range<u64> = 500..5000;

/// Breaks the store until the round is over. Each fault restores what it broke.
pub(crate) fn run(lane: &mut Lane<'_>, store: &dyn Store) -> io::Result<()> {
    let mut faults = store.faults();
    if let Some(url) = store.telling_url() {
        let losses = move |lane: &mut Lane<'_>| losses::run(lane, &url);
        faults.push(StoreFault::new("losses in a row", losses));
    }
    while lane.pause(PAUSE_MS) {
        let Some(fault) = lane.pick(&faults) else {
            break;
        };
        lane.fault(fault.kind, |lane| (fault.act)(lane))?;
    }
    Ok(())
}
