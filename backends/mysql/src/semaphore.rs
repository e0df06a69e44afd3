//! Permits, requested and waited for on a connection.

use std::time::Duration;

use lockkeeper_core::{ErrorKind, limit_mismatch};
use lockkeeper_remote::Failure;
use mysql::Row;

use crate::connection::{Connection, DISTURBED, number};
use crate::failure::unavailable;
use crate::names::EncodedName;
use crate::permits::{MAX_PERMITS, Permits, Slot};
use crate::requests::{Attempted, Taken};
use crate::statements::{self, EPOCH_BITS};

impl Connection {
    /// Tries to take a permit. An attempt that the server refused may have taken a part of it.
    pub(crate) fn attempt_permit(&mut self, permits: &Permits) -> Result<Attempted, Failure> {
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
        match self.run(&statements::end_pause(&permits.bell(), waiter)) {
            // It waits no more, or is another user's: then its pause ends by itself.
            Err(Failure::Refused(_)) => Ok(()),
            result => result,
        }
    }

    /// Returns what became of an attempt to take a permit.
    fn permit(&mut self, permits: &Permits, row: &Row) -> Attempted {
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
                let other = self.holders(&Permits::all_leases(&permits.gate))?;
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

    /// Waits for a permit in the server for `wait`, first come, first served; a reply may take `grace` longer.
    /// `pause` is called before each pause, and returns how long it may be, or `None` if the wait is over.
    ///
    /// After a failure, the connection may hold names of the semaphore.
    pub(crate) fn wait_for_permit(
        &mut self,
        permits: &Permits,
        wait: Duration,
        grace: Duration,
        mut pause: impl FnMut() -> Option<Duration>,
    ) -> Attempted {
        let bell = permits.bell();
        if self.wait(&bell, wait, grace)?.is_none() {
            return Ok(None);
        }
        let taken = loop {
            let Some(span) = pause() else {
                break Ok(None);
            };
            self.limit = span + grace;
            let template = permits.attempt_or_pause(span.as_secs_f64());
            let row = self.query(&template.pasted());
            self.limit = grace;
            match row {
                Ok(row) => match self.permit(permits, &row) {
                    Ok(None) => {}
                    taken => break taken,
                },
                // The end of the pause.
                Err(Failure::Refused(_)) => {
                    let names = permits.taken_by_attempt();
                    let others = names.into_iter().filter(|name| **name != *bell);
                    let names: Vec<_> = others.collect();
                    self.repeat(|it| it.release_all(&names))?;
                }
                Err(failure) => return Err(failure),
            }
        };
        self.repeat(|it| it.release_all(&[bell.clone(), permits.gate.clone()]))?;
        taken
    }

    /// Repeats a statement that was ended by a session that released a permit: several may do so at once.
    pub(crate) fn repeat<T>(
        &mut self,
        mut statement: impl FnMut(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        for _ in 0..MAX_PERMITS {
            match statement(self) {
                Err(Failure::Refused(error)) if error.kind() == ErrorKind::Unavailable => {}
                result => return result,
            }
        }
        statement(self)
    }
}
