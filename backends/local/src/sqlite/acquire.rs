//! Asking for a name, and waiting for it in line with other processes.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, CancelRegistration, Error, ErrorKind, HostInstant};

use super::db::{Patience, Session};
use super::line::{self, Ask, Held, Key, Next};
use super::process::Process;
use super::store::Store;
use super::wake::{Bell, Watch, Woken};

/// A waiter looks after this long at the latest, whether it was woken or not.
const LOOK: Duration = Duration::from_secs(1);
/// The second in line looks after the first: it may be stopped or dead.
const RUNNER_UP: Duration = Duration::from_millis(100);

/// How long a waiter leaves a store in peace that does not work.
const OUTAGE: Duration = Duration::from_millis(500);

/// A grant, and a moment before it was asked for.
pub(super) struct Won {
    pub(super) epoch: u64,
    pub(super) asked_at: HostInstant,
}

/// What a look found.
enum Sight {
    Won(Won),
    /// Somebody else has it, or comes first.
    Busy {
        next: Next,
        until: HostInstant,
        holder: Option<Process>,
        before: u32,
    },
}

pub(super) fn acquire(store: &Store, request: &AcquireRequest<'_>) -> Result<Option<Won>, Error> {
    let answer = try_or_wait(store, request);
    match answer {
        // It gave up on the database because it was told to.
        Err(_) if request.is_cancelled() => Ok(None),
        answer => answer,
    }
}

fn try_or_wait(store: &Store, request: &AcquireRequest<'_>) -> Result<Option<Won>, Error> {
    let mut ask = Ask {
        key: store.key(request.name()),
        owner: request.owner(),
        ttl: request.ttl(),
        recover: false,
    };
    let is_cancelled = || request.is_cancelled();
    let patience = |deadline| Patience {
        is_cancelled: &is_cancelled,
        ..Patience::new(request.clock(), deadline)
    };
    let taken = store.db.run(&patience(request.deadline()), |session| {
        let asked_at = request.now();
        let epoch = line::take_free(session, &ask, asked_at)?;
        Ok(epoch.map(|epoch| Won { epoch, asked_at }))
    });
    ask.recover = match taken {
        Ok(Some(won)) => return Ok(Some(won)),
        Ok(None) => false,
        // It may have been granted: the look finds this owner's own grant.
        Err(error) if error.kind() == ErrorKind::Unknown => true,
        Err(error) => return Err(error),
    };
    let Some(deadline) = request.deadline() else {
        let patience = patience(None);
        let sight = store.db.transact(&patience, |session| {
            look(session, &ask, None, request.now())
        })?;
        return Ok(match sight {
            Sight::Won(won) => Some(won),
            Sight::Busy { next, .. } => {
                store.ring(ask.key, next, &patience);
                request.contended();
                None
            }
        });
    };
    let mut waiter = Waiter::new(store, request, ask.key);
    let mut watch: Option<Watch> = None;
    // A holder that the system says has ended while its row says it lives: not watched twice.
    let mut spent: Option<Process> = None;
    loop {
        let patience = patience(Some(deadline));
        if !waiter.bell.is_there() {
            waiter = Waiter::new(store, request, ask.key);
        }
        waiter.bell.drain();
        let mut place = waiter.id;
        let sight = store.db.transact(&patience, |session| {
            // A try that failed was undone, and its place with it.
            place = waiter.id;
            let line = Some((&mut place, &*waiter.bell));
            look(session, &ask, line, request.now())
        });
        let sight = match sight {
            Ok(sight) => sight,
            // The place is what it was.
            Err(error) if waiter.id.is_some() && may_pass(&error) => {
                let left = deadline.saturating_since(request.now());
                if left.is_zero() || is_cancelled() {
                    return Err(error);
                }
                ask.recover |= error.kind() == ErrorKind::Unknown;
                waiter.bell.wait(None, OUTAGE.min(left));
                continue;
            }
            Err(error) => return Err(error),
        };
        waiter.id = place;
        let (next, until, holder, before) = match sight {
            Sight::Won(won) => return Ok(Some(won)),
            Sight::Busy {
                next,
                until,
                holder,
                before,
            } => (next, until, holder, before),
        };
        store.ring(ask.key, next, &patience);
        request.contended();
        let now = request.now();
        if now >= deadline || request.is_cancelled() {
            return Ok(None);
        }
        // Only the first in line: the others would all come at once.
        let holder = holder.filter(|holder| before == 0 && spent.as_ref() != Some(holder));
        if watch.as_ref().map(|watch| &watch.process) != holder.as_ref() {
            watch = holder.as_ref().and_then(Watch::new);
            if holder.as_ref().is_some_and(Process::is_dead) {
                // Between the look and the watch.
                continue;
            }
        }
        let unwatched = holder.is_some_and(|holder| watch.is_none() && &holder != Process::own());
        let until = until.min(now + next_look(before, unwatched)).min(deadline);
        let woken = waiter
            .bell
            .wait(watch.as_ref(), until.saturating_since(now));
        if woken == Woken::HolderEnded {
            spent = watch.take().map(|watch| watch.process);
        }
    }
}

/// Whether it may be over before a wait is: a full disk, for one.
fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown)
}

/// How long a waiter sleeps where nothing wakes it; never the same for two of them.
fn next_look(before: u32, unwatched: bool) -> Duration {
    let longest = if before == 1 || unwatched {
        RUNNER_UP
    } else {
        LOOK
    };
    longest.mul_f64(0.8 + fastrand::f64() / 5.0)
}

/// One look at a name, in a write transaction: takes it where this one may. With `line`, a waiter
/// that may not take it stands in line afterwards.
fn look(
    session: &Session<'_>,
    ask: &Ask<'_>,
    line: Option<(&mut Option<i64>, &Bell)>,
    now: HostInstant,
) -> rusqlite::Result<Sight> {
    let key = ask.key;
    let mut id = line.as_ref().and_then(|(id, _)| **id);
    if let Some(here) = id
        && !line::show_up(session, here)?
    {
        id = None;
    }
    let held = line::read(session, key)?;
    let next = match &held {
        None => Next::Me,
        Some(held) if ask.recover && held.is_of(&ask.owner) && held.is_live(now) => {
            // The answer to an earlier try got lost.
            drop_out(session, line, id)?;
            return Ok(Sight::Won(Won {
                epoch: held.epoch,
                asked_at: held.asked,
            }));
        }
        Some(held) => turn(session, ask, held, id, now)?,
    };
    if let Next::Me = next {
        drop_out(session, line, id)?;
        let epoch = line::take(session, ask, now)?;
        return Ok(Sight::Won(Won {
            epoch,
            asked_at: now,
        }));
    }
    let contended = held.as_ref().is_some_and(|held| held.contended);
    let before = match line {
        None => 0,
        Some((place, bell)) => {
            let here = match id {
                Some(here) => here,
                None => line::join(session, key, bell.address())?,
            };
            *place = Some(here);
            if !contended {
                line::contend(session, key)?;
            }
            line::before(session, key, here)?
        }
    };
    let (until, holder) = match (&next, held) {
        // The row as it was, still true.
        (Next::Nobody, Some(held)) => (held.expires, (held.epoch != 0).then_some(held.by)),
        _ => (now + line::GRACE, None),
    };
    Ok(Sight::Busy {
        next,
        until,
        holder,
        before,
    })
}

/// Whose turn it is: [`Next::Nobody`] leaves the name with who has it, or for whom it is kept.
fn turn(
    session: &Session<'_>,
    ask: &Ask<'_>,
    held: &Held,
    id: Option<i64>,
    now: HostInstant,
) -> rusqlite::Result<Next> {
    let is_kept = held.epoch == 0;
    if is_kept && id == Some(held.reserved) {
        return Ok(Next::Me);
    }
    if held.is_live(now) && (!is_kept || line::is_in_line(session, held.reserved)?) {
        return Ok(Next::Nobody);
    }
    if is_kept {
        line::pass_over(session, held.reserved)?;
    }
    Ok(match line::next(session, ask.key, id, now)? {
        Next::Kept { id, wake } => Next::Kept { id, wake },
        Next::Me | Next::Nobody | Next::Late { .. } => Next::Me,
    })
}

/// Takes a waiter that gets the name out of the line.
fn drop_out(
    session: &Session<'_>,
    line: Option<(&mut Option<i64>, &Bell)>,
    id: Option<i64>,
) -> rusqlite::Result<()> {
    if let Some((place, _)) = line {
        *place = None;
    }
    id.map_or(Ok(()), |id| line::leave(session, id))
}

/// A place in line, given up on every way out.
struct Waiter<'a> {
    store: &'a Store,
    key: Key<'a>,
    bell: Arc<Bell>,
    id: Option<i64>,
    _wake: Option<CancelRegistration>,
}

impl<'a> Waiter<'a> {
    fn new(store: &'a Store, request: &AcquireRequest<'_>, key: Key<'a>) -> Self {
        let bell = store.bells.take();
        let rings = Arc::clone(&bell);
        let cancel = request.cancel();
        Self {
            store,
            key,
            bell,
            id: None,
            _wake: cancel.map(|cancel| cancel.on_cancel(move || rings.poke())),
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let left = match self.id {
            None => true,
            Some(id) => {
                let patience = self.store.briefly();
                self.store.leave(self.key, id, &patience).is_ok()
            }
        };
        // A row that could not be removed names a bell that nobody hears: who rings it removes it.
        if left {
            self.store.bells.keep(Arc::clone(&self.bell));
        }
    }
}
