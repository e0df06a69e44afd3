//! The requests of sessions, as statements.

use std::fmt::{self, Display};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_remote::{Failure, senseless};
use lockkeeper_sessions::{Attempted, Replies, Requests, SessionConnection, SessionLink};

use crate::connection::{Connection, Row, Values};
use crate::failure::{ServerError, unavailable};
use crate::names::LockKey;
use crate::options::BACKEND;
use crate::statements::{self, SessionId, Verbs, steps};

/// The longest that a server lets a session be idle, or wait for a lock: it counts milliseconds in 31 bits.
const LONGEST: Duration = Duration::from_millis(i32::MAX.unsigned_abs() as u64);

/// An array of numbers, as PostgreSQL reads it.
struct Array(Vec<i64>);

impl Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = '{';
        for number in &self.0 {
            write!(f, "{before}{number}")?;
            before = ',';
        }
        f.write_str(if self.0.is_empty() { "{}" } else { "}" })
    }
}

impl SessionConnection for Connection {
    type Name = LockKey;
    type Id = SessionId;

    const BACKEND: &'static str = BACKEND;
    const WATCH: &'static str = "lockkeeper-postgres-watch";

    fn idle(ttl: Duration) -> Duration {
        Duration::from_millis(millis(ttl))
    }

    fn session(&self) -> SessionId {
        self.session
    }

    /// Returns whether both are one session. A session that ends may lose its mark before the lock in question. Transactions
    /// of applications have no mark, but another process number.
    fn is_session(known: SessionId, seen: SessionId) -> bool {
        known.pid == seen.pid && (seen.mark == 0 || known.mark == seen.mark)
    }

    fn link(&self) -> &SessionLink<SessionId> {
        &self.link
    }

    fn link_mut(&mut self) -> &mut SessionLink<SessionId> {
        &mut self.link
    }

    /// Refuses a replica, too.
    fn check_start(&self) -> Result<(), Failure> {
        if self.is_replica {
            let server = &self.shared.link.server;
            return Err(Failure::Closed(unavailable(format!(
                "{server} is a replica; if its address does not lead to the primary soon, name that one"
            ))));
        }
        self.link.check_start()
    }

    fn canceller(&self) -> impl Fn() + Send + Sync + 'static {
        let socket = Arc::clone(self.wire.socket());
        move || {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn set_idle(&mut self, idle: Duration) -> Result<(), Failure> {
        if self.link.idle != Some(idle) {
            self.execute(statements::SET_IDLE, &[&idle.as_millis()])?;
            self.link.idle = Some(idle);
        }
        Ok(())
    }

    fn ask(&mut self, requests: &Requests<LockKey>) -> Result<Replies, Failure> {
        self.shown.add(requests.attempts.iter().map(|it| &it.shown));
        let before = self.shared.last_epoch.get();
        let mut numbers = self.release_and_try(requests)?.into_iter();
        let sent = requests.sent.as_ref().map(|_| self.was_released());
        let sent = sent.transpose()?;
        if let (Some(name), Some(Err(failure))) = (&requests.sent, &sent)
            && requests.attempts.contains(name)
        {
            // The session may have the lock twice now.
            return Err(Failure::Unanswered(failure.error().clone()));
        }
        self.shown
            .remove(requests.releases.iter().map(|name| &name.shown));
        let released = numbers.by_ref().take(requests.releases.len());
        let released = released.map(|number| number == 1).collect();
        let attempted: Vec<_> = numbers
            .take(requests.attempts.len())
            .map(|epoch| match epoch {
                0 => Ok(None),
                epoch => self.shared.last_epoch.accept(before, epoch).map(Some),
            })
            .collect();
        let missed = requests.attempts.iter().zip(&attempted);
        let missed = missed.filter(|(_, attempted)| !matches!(attempted, Ok(Some(_))));
        self.shown.remove(missed.map(|(it, _)| &it.shown));
        Ok(Replies {
            sent,
            released,
            attempted,
            // A session that replies holds all that it took.
            held: vec![true; requests.checks.len()],
        })
    }

    fn send_release(&mut self, name: &LockKey) -> Result<bool, Failure> {
        self.shown.remove([&name.shown]);
        self.send(&Verbs::of(name).release, &[&name.number()])
    }

    fn wait(&mut self, name: &LockKey, wait: Duration, grace: Duration) -> Attempted {
        self.shown.add([&name.shown]);
        let attempted = self.wait_for(name, wait, grace);
        if !matches!(attempted, Ok(Some(_))) {
            self.shown.remove([&name.shown]);
        }
        attempted
    }

    fn holders(&mut self, name: &LockKey) -> Result<Vec<SessionId>, Failure> {
        let rows = self.execute(&statements::HOLDERS, &[&name.number()])?;
        let holder = |row: &Row| {
            let (pid, mark) = (row.number(0)?, row.number::<u32>(1)?.cast_signed());
            Some(SessionId { pid, mark })
        };
        Ok(rows.iter().filter_map(holder).collect())
    }

    fn end_holder(&mut self, name: &LockKey, session: SessionId) -> Result<(), Failure> {
        let SessionId { pid, mark } = session;
        let mark = mark.cast_unsigned();
        self.query(&statements::END_HOLDER, &[&name.number(), &pid, &mark])
            .map(drop)
    }
}

impl Connection {
    /// Reads the reply to a release that was sent before.
    fn was_released(&mut self) -> Result<Result<bool, Failure>, Failure> {
        let rows = match self.owed_reply()? {
            Ok(rows) => rows,
            Err(error) => return Ok(Err(error.into_failure(&self.shared.link.server))),
        };
        let released = rows.first().and_then(|row| row.number::<u8>(0));
        released
            .map(|number| Ok(number == 1))
            .ok_or_else(unreadable)
    }

    fn wait_for(&mut self, name: &LockKey, wait: Duration, grace: Duration) -> Attempted {
        let before = self.shared.last_epoch.get();
        self.link.set_limit(wait + grace);
        let values: Values<'_> = &[&name.number(), &millis(wait)];
        let replies = self.pipeline(&[(&Verbs::of(name).wait, values)]);
        match replies?.pop().ok_or_else(unreadable)? {
            Ok(rows) => {
                let epoch = rows.first().and_then(|row| row.number(2));
                let epoch = epoch.ok_or_else(unreadable)?;
                self.shared.last_epoch.accept(before, epoch).map(Some)
            }
            Err(error) if error.state == ServerError::LOCK_TIMEOUT => {
                // The lock may have been granted just before the statement was ended.
                self.execute(&statements::RELEASE_IF_HELD, &[&name.number()])?;
                Ok(None)
            }
            Err(error) => Err(error.into_failure(&self.shared.link.server)),
        }
    }

    /// Returns a number for each lock to release and to try.
    fn release_and_try(&mut self, requests: &Requests<LockKey>) -> Result<Vec<u64>, Failure> {
        let Requests {
            releases, attempts, ..
        } = requests;
        let rows = match (releases.as_slice(), attempts.as_slice()) {
            ([], []) if requests.checks.is_empty() => return Ok(Vec::new()),
            ([], []) => return self.execute("", &[]).map(|_| Vec::new()),
            ([name], []) => self.execute(&Verbs::of(name).release, &[&name.number()]),
            ([], [name]) => self.execute(&Verbs::of(name).attempt, &[&name.number()]),
            _ => {
                let release = |name| (steps(name)[0], LockKey::number(name));
                let attempt = |name| (steps(name)[1], LockKey::number(name));
                let all = releases.iter().map(release);
                let (steps, keys) = all.chain(attempts.iter().map(attempt)).unzip();
                self.execute(&statements::SEVERAL, &[&Array(steps), &Array(keys)])
            }
        };
        let rows = rows?;
        let numbers: Option<Vec<_>> = rows.iter().map(|row| row.number(0)).collect();
        let numbers = numbers.filter(|all| all.len() == releases.len() + attempts.len());
        numbers.ok_or_else(unreadable)
    }
}

/// Returns whole milliseconds from 1 on, rounded up.
fn millis(time: Duration) -> u64 {
    let millis = time.min(LONGEST).as_nanos().div_ceil(1_000_000).max(1);
    u64::try_from(millis).unwrap_or(u64::MAX)
}

fn unreadable() -> Failure {
    Failure::Unanswered(senseless())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_that_loses_its_mark_at_its_end_is_known() {
        let session = |pid, mark| SessionId { pid, mark };
        for (seen, is_known) in [
            (session(7, 42), true),
            (session(7, 0), true),
            (session(7, 43), false),
            (session(8, 42), false),
            (session(8, 0), false),
        ] {
            let found = Connection::is_session(session(7, 42), seen);
            assert_eq!(found, is_known, "{seen:?}");
        }
    }
}
