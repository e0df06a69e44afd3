//! The requests of sessions, as statements.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_remote::{Failure, senseless, unavailable};
use lockkeeper_sessions::{Attempted, Replies, Requests, SessionConnection, SessionLink};

use crate::connection::Connection;
use crate::names::EncodedName;
use crate::options::BACKEND;
use crate::statements::run::SessionId;
use crate::statements::{self, EPOCH_BITS, number};

/// The longest that a server lets a session be idle: a year.
const LONGEST_IDLE: u64 = 31_536_000;

/// The text of the error of an attempt without a result.
const DISTURBED: &str =
    "the server was disturbed while it was asked for the lock, by a KILL or by an error of its own";

impl SessionConnection for Connection {
    type Name = EncodedName;
    type Id = SessionId;

    const BACKEND: &'static str = BACKEND;
    const WATCH: &'static str = "lockkeeper-mysql-watch";

    fn idle(ttl: Duration) -> Duration {
        let part = u64::from(ttl.subsec_nanos() > 0);
        let seconds = ttl.as_secs().saturating_add(part);
        Duration::from_secs(seconds.clamp(1, LONGEST_IDLE))
    }

    fn session(&self) -> SessionId {
        self.id()
    }

    fn is_session(known: SessionId, seen: SessionId) -> bool {
        known.is(seen)
    }

    fn link(&self) -> &SessionLink<SessionId> {
        &self.link
    }

    fn link_mut(&mut self) -> &mut SessionLink<SessionId> {
        &mut self.link
    }

    fn check_start(&self) -> Result<(), Failure> {
        self.check_server_start()
    }

    fn canceller(&self) -> impl Fn() + Send + Sync + 'static {
        let wire = Arc::clone(&self.wire);
        move || wire.close()
    }

    fn set_idle(&mut self, idle: Duration) -> Result<(), Failure> {
        if self.link.idle != Some(idle) {
            self.run(&self.dialect.set_idle(idle.as_secs()))?;
            self.link.idle = Some(idle);
        }
        Ok(())
    }

    fn ask(&mut self, requests: &Requests<EncodedName>) -> Result<Replies, Failure> {
        let Requests {
            releases,
            attempts,
            checks,
            ..
        } = requests;
        let row = match (releases.as_slice(), attempts.as_slice(), checks.as_slice()) {
            ([name], [], []) => self.execute(statements::RELEASE, name),
            ([], [name], []) => self.execute(statements::TRY, name),
            _ => self.query(&statements::several(requests)),
        }?;
        let seconds = if checks.is_empty() { 0 } else { 2 };
        if row.len() != requests.count() + seconds {
            return Err(Failure::Unanswered(senseless()));
        }
        let mut columns = (0..row.len()).map(|at| number(&row, at));
        let released = columns.by_ref().take(releases.len());
        let released = released.map(|number| number == Some(1)).collect();
        let attempted = columns.by_ref().take(attempts.len()).map(epoch).collect();
        let held = columns.by_ref().take(checks.len());
        let held = held.map(|number| number == Some(1)).collect();
        if let (Some(Some(last)), Some(Some(clock))) = (columns.next(), columns.next()) {
            self.note_seconds(last, clock);
        }
        Ok(Replies {
            released,
            attempted,
            held,
            ..Replies::default()
        })
    }

    fn wait(&mut self, name: &EncodedName, wait: Duration, grace: Duration) -> Attempted {
        self.link.set_limit(wait + grace);
        let row = self.query_until(&self.dialect.wait(name, wait))?;
        let Some(row) = row else {
            // The lock may have been granted just before the statement was ended.
            self.execute(statements::RELEASE, name)?;
            return Ok(None);
        };
        epoch(number(&row, 0))
    }

    fn holders(&mut self, name: &EncodedName) -> Result<Vec<SessionId>, Failure> {
        let row = self.execute(statements::HOLDER, name)?;
        Ok(number(&row, 0)
            .map(|id| self.id_of(id))
            .into_iter()
            .collect())
    }

    fn end_holder(&mut self, name: &EncodedName, session: SessionId) -> Result<(), Failure> {
        if !session.run.is(self.id_of(session.id).run) {
            return Err(Failure::Refused(unavailable(
                "the server was started again after the session was seen",
            )));
        }
        self.run(&statements::end_holder(name, session.id))
    }
}

/// Returns what the reply to an attempt means.
fn epoch(reply: Option<u64>) -> Attempted {
    match reply {
        Some(0) => Ok(None),
        Some(number) => Ok(Some(number & EPOCH_BITS)),
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
