//! The requests of sessions, as statements.

use std::fmt::{self, Display};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::Mode;
use lockkeeper_remote::sessions::{
    Attempt, Attempted, Holders, Replies, Requests, SessionConnection, SessionName, Taken, repeat,
};
use lockkeeper_remote::{Failure, senseless};

use crate::BACKEND;
use crate::connection::{Connection, Row, SessionId, Values};
use crate::failure::ServerError;
use crate::names::LockKey;
use crate::statements::{self, Verbs, steps};

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
    const LONGEST_WAIT: Duration = LONGEST;

    fn idle(ttl: Duration) -> Duration {
        Duration::from_millis(millis(ttl))
    }

    fn shares_statements(mode: Mode) -> bool {
        !mode.is_permit()
    }

    fn session(&self) -> SessionId {
        Connection::session(self)
    }

    /// Returns whether both are one session. A session that ends may lose its mark before the lock in question. Transactions
    /// of applications have no mark, but another process number.
    fn is_session(known: SessionId, seen: SessionId) -> bool {
        known.pid == seen.pid && (seen.mark == 0 || known.mark == seen.mark)
    }

    fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    fn has_ended(&self) -> bool {
        Connection::has_ended(self)
    }

    fn check_start(&self) -> Result<(), Failure> {
        Connection::check_start(self)
    }

    fn canceller(&self) -> impl Fn() + Send + Sync + 'static {
        let socket = Arc::clone(self.socket());
        move || {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn set_idle(&mut self, idle: Duration) -> Result<(), Failure> {
        Connection::set_idle(self, idle)
    }

    fn ask(&mut self, requests: &Requests<LockKey>) -> Result<Replies<LockKey>, Failure> {
        if let [attempt] = requests.attempts.as_slice()
            && let Mode::Permit { limit } = attempt.mode
        {
            return Ok(Replies::attempt(self.try_permit(&attempt.name, limit)?));
        }
        self.shown
            .add(requests.attempts.iter().map(|it| &it.name.shown));
        let before = self.shared.last_epoch.get();
        let mut numbers = self.release_and_try(requests)?.into_iter();
        self.shown
            .remove(requests.releases.iter().map(|name| &name.shown));
        let released = numbers.by_ref().take(requests.releases.len());
        let released = released.map(|number| number == 1).collect();
        let attempted = requests.attempts.iter().zip(numbers);
        let attempted: Vec<_> = attempted
            .map(|(attempt, epoch)| match epoch {
                0 => Ok(None),
                epoch => self.taken(attempt.name.clone(), before, epoch, 0),
            })
            .collect();
        let missed = requests.attempts.iter().zip(&attempted);
        let missed = missed.filter(|(_, attempted)| !matches!(attempted, Ok(Some(_))));
        self.shown.remove(missed.map(|(it, _)| &it.name.shown));
        Ok(Replies {
            released,
            attempted,
            // A session that replies holds all that it took.
            held: vec![true; requests.checks.len()],
        })
    }

    fn wait(
        &mut self,
        wanted: &Attempt<LockKey>,
        wait: Duration,
        grace: Duration,
    ) -> Attempted<LockKey> {
        let name = &wanted.name;
        self.showing(name, |it| it.wait_for(name, wait, grace))
    }

    fn holders(&mut self, wanted: &Attempt<LockKey>) -> Result<Holders<Self>, Failure> {
        let statement = match wanted.mode.is_permit() {
            true => &statements::HOLDERS_AKIN,
            false => &statements::HOLDERS,
        };
        let rows = self.execute(statement, &[&wanted.name.number()])?;
        let holder = |row: &Row| {
            let key = LockKey::of_halves([row.number(0)?, row.number(1)?]);
            let (pid, mark) = (row.number(2)?, row.number::<u32>(3)?.cast_signed());
            Some((key, SessionId { pid, mark }))
        };
        Ok(rows.iter().filter_map(holder).collect())
    }

    fn end_holder(&mut self, name: &LockKey, session: SessionId) -> Result<(), Failure> {
        let SessionId { pid, mark } = session;
        let mark = mark.cast_unsigned();
        self.query(&statements::END_HOLDER, &[&name.number(), &pid, &mark, &0])
            .map(drop)
    }

    fn try_permit_or_pause(
        &mut self,
        gate: &LockKey,
        limit: u32,
        pause: Duration,
    ) -> Attempted<LockKey> {
        let sql = &statements::TRY_PERMIT_OR_PAUSE;
        self.showing(gate, |it| it.take_permit(sql, gate, limit, pause))
    }

    fn undo(&mut self, attempt: &Attempt<LockKey>, keep: &[LockKey]) -> Result<(), Failure> {
        let keep = Array(keep.iter().map(LockKey::number).collect());
        self.execute(&statements::UNDO_PERMIT, &[&attempt.name.number(), &keep])
            .map(drop)
    }

    fn leave_gate(&mut self, gate: &LockKey) -> Result<(), Failure> {
        self.shown.remove([&gate.shown]);
        let bell = gate.bell().number();
        self.execute(&statements::RELEASE_IF_HELD, &[&bell])
            .map(drop)
    }
}

impl Connection {
    /// Shows a name to operators during an attempt, and from then on if that takes it.
    pub(crate) fn showing(
        &mut self,
        name: &LockKey,
        attempt: impl FnOnce(&mut Self) -> Attempted<LockKey>,
    ) -> Attempted<LockKey> {
        self.shown.add([&name.shown]);
        let attempted = attempt(self);
        if !matches!(attempted, Ok(Some(_))) {
            self.shown.remove([&name.shown]);
        }
        attempted
    }

    /// Returns what an attempt took, if its epoch grows.
    pub(crate) fn taken(
        &self,
        name: LockKey,
        before: u64,
        epoch: u64,
        slot: u32,
    ) -> Attempted<LockKey> {
        let epoch = self.shared.last_epoch.accept(before, epoch)?;
        Ok(Some(Taken { name, epoch, slot }))
    }

    fn wait_for(&mut self, name: &LockKey, wait: Duration, grace: Duration) -> Attempted<LockKey> {
        let before = self.shared.last_epoch.get();
        self.limit = wait + grace;
        let values: Values<'_> = &[&name.number(), &millis(wait)];
        let replies = self.pipeline(&[(&Verbs::of(name).wait, values)]);
        self.limit = grace;
        match replies?.pop().ok_or_else(unreadable)? {
            Ok(rows) => {
                let epoch = rows.first().and_then(|row| row.number(2));
                self.taken(name.clone(), before, epoch.ok_or_else(unreadable)?, 0)
            }
            Err(error) if error.state == ServerError::LOCK_TIMEOUT => {
                // The lock may have been granted just before the statement was ended.
                self.execute(&statements::RELEASE_IF_HELD, &[&name.number()])?;
                Ok(None)
            }
            Err(error) => Err(error.into_failure(&self.shared.server)),
        }
    }

    /// Returns a number for each lock to release and to try.
    fn release_and_try(&mut self, requests: &Requests<LockKey>) -> Result<Vec<u64>, Failure> {
        let Requests {
            releases, attempts, ..
        } = requests;
        let rows = match (releases.as_slice(), attempts.as_slice()) {
            ([], []) => {
                return self.execute("", &[]).map(|_| Vec::new());
            }
            ([name], []) => {
                let sql = match name.is_of_semaphore() {
                    true => &*statements::RELEASE_PERMIT,
                    false => &Verbs::of(name).release,
                };
                self.execute(sql, &[&name.number()])
            }
            ([], [attempt]) => {
                let name = &attempt.name;
                self.execute(&Verbs::of(name).attempt, &[&name.number()])
            }
            _ => {
                let release = |name| (steps(name)[0], LockKey::number(name));
                let attempt = |it: &Attempt<_>| (steps(&it.name)[1], it.name.number());
                let all = releases.iter().map(release);
                let (steps, keys) = all.chain(attempts.iter().map(attempt)).unzip();
                let sql = match releases.iter().any(LockKey::is_of_semaphore) {
                    true => &*statements::SEVERAL_AND_NOTIFY,
                    false => &*statements::SEVERAL,
                };
                self.execute(sql, &[&Array(steps), &Array(keys)])
            }
        };
        let rows = match rows {
            // A notification that came late has ended it. Only the session itself releases what it held.
            Err(Failure::Refused(_)) if attempts.is_empty() => {
                self.release_again(releases)?;
                return Ok(vec![1; releases.len()]);
            }
            rows => rows?,
        };
        let numbers: Option<Vec<_>> = rows.iter().map(|row| row.number(0)).collect();
        let numbers = numbers.filter(|all| all.len() == releases.len() + attempts.len());
        numbers.ok_or_else(unreadable)
    }

    /// Releases those of the locks that are still held.
    fn release_again(&mut self, names: &[LockKey]) -> Result<(), Failure> {
        for name in names {
            let key: Values<'_> = &[&name.number()];
            repeat(self, |it| it.execute(&statements::RELEASE_IF_HELD, key))?;
            if name.is_of_semaphore()
                && let Err(failure) = repeat(self, |it| it.execute(&statements::NOTIFY, key))
                // The pause that is not ended ends by itself.
                && !matches!(failure, Failure::Refused(_))
            {
                return Err(failure);
            }
        }
        Ok(())
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
