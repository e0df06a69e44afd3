//! Faults of the network between workers and a server: those of a proxy.

use std::io;
use std::time::Duration;

use lockkeeper_testkit::{Fault, Proxy};

use super::Lane;

const PAUSE_MS: std::ops::Range<u64> = 200..2500;

/// Breaks the network until the round is over. Each fault restores what it broke.
///
/// If a lease `ends_with_connection`, the store forgets it when the proxy cuts the connection.
pub(crate) fn run(
    lane: &mut Lane<'_>,
    proxy: &Proxy,
    ends_with_connection: bool,
) -> io::Result<()> {
    let network = Network {
        proxy,
        ends_with_connection,
    };
    while lane.pause(PAUSE_MS) {
        network.break_once(lane)?;
    }
    Ok(())
}

/// The number of the URL that leads through the proxy.
const THROUGH_PROXY: u32 = 1;

/// How long a server may take to notice that a connection was closed, on a busy machine.
const UNNOTICED: Duration = Duration::from_millis(200);

struct Network<'a> {
    proxy: &'a Proxy,
    ends_with_connection: bool,
}

impl Network<'_> {
    fn break_once(&self, lane: &mut Lane<'_>) -> io::Result<()> {
        let delay = lane.millis(1..400);
        let (kind, fault) = match lane.choice(11) {
            0 => {
                return lane.fault("connections cut", |lane| {
                    self.cut(lane, |_| self.proxy.cut())
                });
            }
            1 => {
                return lane.fault("connections refused", |lane| {
                    self.cut(lane, |_| self.proxy.refuse())?;
                    lane.spell();
                    self.proxy.accept()
                });
            }
            2 => ("cut before replies", Fault::CutReplyAfter(0)),
            3 => ("cut within replies", Fault::CutReplyAfter(3)),
            4 => ("network dark", Fault::Dark),
            5 => ("requests delayed", Fault::DelayRequests(delay)),
            6 => ("replies delayed", Fault::DelayReplies(delay)),
            7 => ("requests lost", Fault::DropRequests),
            8 => ("replies in drops", Fault::DripReplies(delay / 8)),
            9 => ("silent within replies", Fault::SilentReplyAfter(3)),
            _ => ("replies lost", Fault::DropReplies),
        };
        let spell = |lane: &mut Lane<'_>| {
            self.proxy.set(fault);
            lane.spell();
            self.proxy.set(Fault::Pass);
        };
        lane.fault(kind, |lane| match fault {
            Fault::CutReplyAfter(_) => self.cut(lane, spell),
            _ => {
                spell(lane);
                Ok(())
            }
        })
    }

    /// Runs what cuts connections.
    fn cut(&self, lane: &mut Lane<'_>, cut: impl FnOnce(&mut Lane<'_>)) -> io::Result<()> {
        if !self.ends_with_connection {
            cut(lane);
            return Ok(());
        }
        lane.journal.forget_of(Some(THROUGH_PROXY), UNNOTICED, || {
            cut(lane);
            Ok(())
        })
    }
}
