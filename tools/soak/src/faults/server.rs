//! Faults of the store itself.

use std::io;

use super::{Lane, losses};
use crate::store::{Store, StoreFault};

const PAUSE_MS: std::ops::Range<u64> = 500..5000;

/// Breaks the store until the round is over. Each fault restores what it broke.
pub(crate) fn run(lane: &mut Lane<'_>, store: &Store) -> io::Result<()> {
    let losses = store.telling_url.as_ref().map(|url| {
        let url = url.clone();
        StoreFault::new("losses in a row", move |lane| losses::run(lane, &url))
    });
    let faults: Vec<_> = store.faults.iter().chain(&losses).collect();
    while lane.pause(PAUSE_MS) {
        let Some(fault) = lane.pick(&faults) else {
            break;
        };
        lane.fault(fault.kind, |lane| (fault.act)(lane))?;
    }
    Ok(())
}
