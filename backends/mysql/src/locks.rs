//! The requests of sessions, as statements.

use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{ErrorKind, Mode};
use lockkeeper_remote::sessions::{
    Attempt, Attempted, Replies, Requests, SessionConnection, SessionName, Taken, repeat,
};
use lockkeeper_remote::{Failure, senseless, unavailable};

use crate::BACKEND;
use crate::connection::{Connection, number};
use crate::dialect;
use crate::names::EncodedName;
use crate::permits::Permits;
use crate::readers::Readers;
use crate::statements::{self, EPOCH_BITS, SessionId};
use crate::wire;

/// The longest that a server lets a session be idle: a year.
const LONGEST_IDLE: u64 = 31_536_000;

/// The text of the error of an attempt without a result.
pub(crate) const DISTURBED: &str =
    "the server was disturbed while it was asked for the lock, by a KILL or by an error of its own";

impl SessionConnection for Connection {
    type Name = EncodedName;
    type Id = SessionId;

    const BACKEND: &'static str = BACKEND;
    const LONGEST_WAIT: Duration = if cfg!(unix) {
        dialect::LONGEST_WAIT
    } else {
        wire::LONGEST_CALL
    };

    fn idle(ttl: Duration) -> Duration {
        let part = u64::from(ttl.subsec_nanos() > 0);
        let seconds = ttl.as_secs().saturating_add(part);
        Duration::from_secs(seconds.clamp(1, LONGEST_IDLE))
    }

    fn shares_statements(mode: Mode) -> bool {
        mode == Mode::Exclusive
    }

    fn session(&self) -> SessionId {
        self.id()
    }

    fn is_session(known: SessionId, seen: SessionId) -> bool {
        known.is(seen)
    }

    fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    fn has_ended(&self) -> bool {
        self.was_closed()
    }

    fn check_start(&self) -> Result<(), Failure> {
        self.check_server_start()
    }

    fn canceller(&self) -> impl Fn() + Send + Sync + 'static {
        let wire = Arc::clone(&self.wire);
        move || wire.close()
    }

    fn set_idle(&mut self, idle: Duration) -> Result<(), Failure> {
        self.set_idle_seconds(idle.as_secs())
    }

    fn ask(&mut self, requests: &Requests<EncodedName>) -> Result<Replies<EncodedName>, Failure> {
        let releases = &requests.releases;
        match self.ask_once(requests) {
            // A notification that came late has ended it. Only the session itself releases what it held.
            Err(Failure::Refused(error))
                if error.kind() == ErrorKind::Unavailable && releases.len() == requests.count() =>
            {
                let names: Vec<_> = releases.iter().flat_map(Permits::names_of).collect();
                repeat(self, |it| it.release_all(&names))?;
                Ok(Replies {
                    released: vec![true; releases.len()],
                    ..Replies::default()
                })
            }
            result => result,
        }
    }

    fn wait(
        &mut self,
        wanted: &Attempt<EncodedName>,
        wait: Duration,
        grace: Duration,
    ) -> Attempted<EncodedName> {
        let (name, flag, began) = (&wanted.name, self.flag(), Instant::now());
        if wanted.mode == Mode::Shared {
            return self.wait_shared(name, wait, grace);
        }
        self.limit = wait + grace;
        let row = self.query_until(&self.dialect.timed(wait).wait(name, &flag.name))?;
        self.limit = grace;
        let Some(row) = row else {
            // The lock may have been granted just before the statement was ended.
            self.execute(statements::RELEASE, slice::from_ref(name))?;
            return Ok(None);
        };
        let taken = epoch(name, number(&row, 0))?;
        let is_read = number(&row, 1) != Some(1);
        flag.note(is_read);
        if taken.is_none() || !is_read || name.semaphore_part().is_some() {
            return Ok(taken);
        }
        let left = wait.saturating_sub(began.elapsed());
        let has_it = self.outlast_readers(name, left, grace)?;
        Ok(taken.filter(|_| has_it))
    }

    fn holders(
        &mut self,
        wanted: &Attempt<EncodedName>,
    ) -> Result<Vec<(EncodedName, SessionId)>, Failure> {
        let mut names = Permits::excluding(&wanted.name);
        if wanted.mode == Mode::Exclusive {
            names.extend(Readers::of(&wanted.name).slots());
        }
        self.holders_of(&names)
    }

    fn end_holder(&mut self, name: &EncodedName, session: SessionId) -> Result<(), Failure> {
        if !session.run.is(self.id_of(session.id).run) {
            return Err(Failure::Refused(unavailable(
                "the server was started again after the session was seen",
            )));
        }
        self.run(&statements::end_holder(name, session.id))
    }

    fn try_permit_or_pause(
        &mut self,
        gate: &EncodedName,
        limit: u32,
        pause: Duration,
    ) -> Attempted<EncodedName> {
        let gate = gate.clone();
        let permits = Permits { gate, limit };
        let template = permits.attempt_or_pause(pause.as_secs_f64());
        let row = self.query(&template.pasted())?;
        self.permit(&permits, &row)
    }

    fn undo(
        &mut self,
        attempt: &Attempt<EncodedName>,
        keep: &[EncodedName],
    ) -> Result<(), Failure> {
        let gate = attempt.name.clone();
        let mut names = match attempt.mode {
            Mode::Permit { limit } => Permits { gate, limit }.taken_by_attempt(),
            _ => Readers::of(&gate).taken_by_attempt(),
        };
        let keep: Vec<_> = keep.iter().flat_map(Permits::names_of).collect();
        names.retain(|name| !keep.contains(name));
        self.release_all(&names)
    }

    fn leave_gate(&mut self, gate: &EncodedName) -> Result<(), Failure> {
        self.release_all(&[gate.bell(), gate.clone()])
    }
}

impl Connection {
    fn ask_once(
        &mut self,
        requests: &Requests<EncodedName>,
    ) -> Result<Replies<EncodedName>, Failure> {
        let Requests {
            releases,
            attempts,
            checks,
            ..
        } = requests;
        let flag = self.flag();
        let is_read = flag.is_used() && !attempts.is_empty();
        let row = match (releases.as_slice(), attempts.as_slice(), checks.as_slice()) {
            ([name], [], []) => match Permits::of_lease(name) {
                None => self.execute(statements::RELEASE, slice::from_ref(name)),
                Some((permits, slot)) => {
                    let column = permits.release(slot);
                    self.execute(&format!("SELECT {}", column.sql), &column.names)
                }
            },
            ([], [Attempt { name, mode }], []) => match *mode {
                Mode::Permit { limit } => {
                    let gate = name.clone();
                    let permits = Permits { gate, limit };
                    return Ok(Replies::attempt(self.attempt_permit(&permits)?));
                }
                Mode::Shared => return Ok(Replies::attempt(self.attempt_shared(name)?)),
                _ if is_read => {
                    let template = Readers::of(name).try_exclusive(&flag.name);
                    self.execute(&template.sql, &template.names)
                }
                _ => self.execute(statements::TRY, &[name.clone(), flag.name.clone()]),
            },
            _ => self.query(&statements::several(requests, &flag.name, is_read)),
        };
        if is_read && matches!(row, Err(Failure::Refused(_))) {
            let gates = attempts.iter().map(|it| Readers::of(&it.name).gate());
            let gates: Vec<_> = gates.collect();
            repeat(self, |it| it.release_all(&gates))?;
        }
        let row = row?;
        let more = match (attempts.len(), is_read) {
            (0, _) => 0,
            (_, false) => 1,
            (count, true) => count + 1,
        };
        let more = if checks.is_empty() { more } else { more + 2 };
        if row.len() != requests.count() + more {
            return Err(Failure::Unanswered(senseless()));
        }
        let mut columns = (0..row.len()).map(|at| number(&row, at));
        let mut released = Vec::with_capacity(releases.len());
        for (name, column) in releases.iter().zip(columns.by_ref()) {
            // Of a permit, the rest is the number of a session that waits.
            let column = column.unwrap_or(0);
            released.push(column % 2 == 1);
            if column > 1 {
                self.notify(name, column / 2)?;
            }
        }
        let mut attempted = Vec::with_capacity(attempts.len());
        for attempt in attempts {
            attempted.push(epoch(&attempt.name, columns.next().flatten()));
            if is_read {
                columns.next();
            }
        }
        let held = columns.by_ref().take(checks.len());
        let held = held.map(|number| number == Some(1)).collect();
        if !checks.is_empty() {
            let mut next = || columns.next().flatten();
            if let Some((last, clock)) = next().zip(next()) {
                self.note_seconds(last, clock);
            }
        }
        if let Some(is_free) = columns.next() {
            flag.note(is_free != Some(1));
            if flag.is_used() && !is_read {
                self.make_way_for_readers(attempts, &mut attempted)?;
            }
        }
        Ok(Replies {
            released,
            attempted,
            held,
        })
    }

    /// Releases those of the names that the session holds.
    pub(crate) fn release_all(&mut self, names: &[EncodedName]) -> Result<(), Failure> {
        self.query(&statements::each("RELEASE_LOCK", names))
            .map(drop)
    }

    /// Returns the sessions that hold the names.
    pub(crate) fn holders_of(
        &mut self,
        names: &[EncodedName],
    ) -> Result<Vec<(EncodedName, SessionId)>, Failure> {
        let row = self.query(&statements::each("IS_USED_LOCK", names))?;
        let holder =
            |(at, name): (usize, &EncodedName)| Some((name.clone(), self.id_of(number(&row, at)?)));
        Ok(names.iter().enumerate().filter_map(holder).collect())
    }

    /// Returns the session that holds the name.
    pub(crate) fn holder(&mut self, name: &EncodedName) -> Result<Option<SessionId>, Failure> {
        let row = self.execute(statements::HOLDER, slice::from_ref(name))?;
        Ok(number(&row, 0).map(|id| self.id_of(id)))
    }
}

/// Returns what the reply to an attempt means.
fn epoch(name: &EncodedName, reply: Option<u64>) -> Attempted<EncodedName> {
    match reply {
        Some(0) => Ok(None),
        Some(number) => Ok(Some(Taken {
            name: name.clone(),
            epoch: number & EPOCH_BITS,
            slot: 0,
        })),
        None => Err(Failure::Refused(unavailable(DISTURBED))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_is_never_shorter_than_its_ttl() {
        for (millis, seconds) in [(100, 1), (1_000, 1), (1_001, 2), (30_000, 30)] {
            let idle = Connection::idle(Duration::from_millis(millis));
            assert_eq!(idle, Duration::from_secs(seconds));
        }
        let longest = Connection::idle(Duration::MAX);
        assert_eq!(longest, Duration::from_secs(LONGEST_IDLE));
    }
}
