//! Permits, requested on a connection.

use lockkeeper_core::limit_mismatch;
use lockkeeper_remote::sessions::{Attempted, SessionName, Taken};
use lockkeeper_remote::{Failure, unavailable};
use mysql::Row;

use crate::connection::{Connection, number};
use crate::locks::DISTURBED;
use crate::names::EncodedName;
use crate::permits::{Permits, Slot};
use crate::statements::{self, EPOCH_BITS};

impl Connection {
    /// Tries to take a permit. An attempt that the server refused may have taken a part of it.
    pub(crate) fn attempt_permit(
        &mut self,
        permits: &Permits,
    ) -> Result<Attempted<EncodedName>, Failure> {
        let template = permits.attempt();
        let attempted = match self.execute(&template.sql, &template.names) {
            Ok(row) => self.permit(permits, &row),
            Err(failure) => Err(failure),
        };
        match attempted {
            Err(failure @ (Failure::Closed(_) | Failure::Unanswered(_))) => Err(failure),
            attempted => Ok(attempted),
        }
    }

    /// Ends the pause of the session that waits for a permit.
    pub(crate) fn notify(&mut self, lease: &EncodedName, waiter: u64) -> Result<(), Failure> {
        let Some((permits, _)) = Permits::of_lease(lease) else {
            return Ok(());
        };
        match self.run(&statements::end_pause(&permits.gate.bell(), waiter)) {
            // It waits no more, or is another user's: then its pause ends by itself.
            Err(Failure::Refused(_)) => Ok(()),
            result => result,
        }
    }

    /// Returns what became of an attempt to take a permit.
    pub(crate) fn permit(&mut self, permits: &Permits, row: &Row) -> Attempted<EncodedName> {
        let disturbed = || Failure::Refused(unavailable(DISTURBED));
        let (taken, epoch) = number(row, 0).zip(number(row, 1)).ok_or_else(disturbed)?;
        match Permits::taken(taken) {
            Slot::Taken(slot) => Ok(Some(Taken {
                name: permits.lease(slot),
                epoch: epoch & EPOCH_BITS,
                slot,
            })),
            Slot::None => Ok(None),
            Slot::Unknown => {
                let other = self.holders_of(&Permits::all_leases(&permits.gate))?;
                let other = other.iter().find_map(|(lease, _)| {
                    let limit = Permits::of_lease(lease)?.0.limit;
                    (limit != permits.limit).then_some(limit)
                });
                match other {
                    Some(held) => Err(Failure::NotSent(limit_mismatch(permits.limit, held))),
                    // Another session waits, or the permit's has ended meanwhile.
                    None => Ok(None),
                }
            }
        }
    }
}
