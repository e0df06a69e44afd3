//! One round of tasks: a read, the decisions, and a write.

use std::collections::{BTreeMap, HashMap, btree_map};
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind, Grant, HostInstant, Renewal, limit_mismatch};

use crate::decide::{self, Answer, Attempt, Kind};
use crate::entry::Contents;
use crate::key::Key;
use crate::lease::RegisterLease;
use crate::register::Register;
use crate::sessions::Session;
use crate::store::{Call, Read, RegisterStore, SessionId, Version, View, Write};
use crate::task::{
    Answered, Answers, LOCKED_AFTER, Others, Position, RoundEnd, Task, Verb, unexpected,
};

pub(crate) struct Round<'r, S: RegisterStore> {
    register: &'r Register<S>,
    call: Call<'r>,
    is_first: bool,
    conflicts: u32,
    /// When it began.
    asked_at: HostInstant,
    /// The current sessions.
    sessions: BTreeMap<Duration, Session>,
    view: View,
    floor: Option<(Version, u64)>,
    /// The sessions of which the read has told, if they have ended.
    checked: &'r Others,
    /// The sessions that the next read is to check.
    unchecked: Others,
}

/// An entry that may be written.
#[derive(Default)]
struct Change {
    seen: Option<Version>,
    found: Option<Contents>,
    /// Whether the entry need not be read.
    is_known: bool,
    next: Option<Contents>,
    /// The session that must live, if a lease or a place is added.
    session: Option<SessionId>,
    /// What the tasks are answered once it is written.
    then: Vec<(usize, Then)>,
}

/// The answer to a task once its entry is written.
enum Then {
    Granted {
        owner: String,
        session: Session,
        slot: u32,
        is_queued: bool,
    },
    Waits {
        ahead: usize,
        is_queued: bool,
    },
    Mismatch(Error),
    Moved,
    Removed(bool),
}

impl<'r, S: RegisterStore> Round<'r, S> {
    /// Carries out a round of the tasks without an answer.
    pub(crate) fn carry_out(
        register: &'r Register<S>,
        tasks: &mut [Task<'_>],
        answers: &mut Answers,
        others: &mut Others,
        (is_first, conflicts): (bool, u32),
        call: Call<'r>,
    ) -> Result<RoundEnd, Error> {
        let mut round = Round {
            register,
            call,
            is_first,
            conflicts,
            asked_at: register.now(),
            sessions: BTreeMap::new(),
            view: View::default(),
            floor: None,
            checked: &others.clone(),
            unchecked: Others::new(),
        };
        let mut changes = round.read(tasks, answers)?;
        // A name that is released is free for the others.
        for removes in [true, false] {
            for (index, (task, answer)) in tasks.iter_mut().zip(answers.iter_mut()).enumerate() {
                let is_remove = matches!(task.verb, Verb::Remove { .. });
                if is_remove == removes
                    && answer.is_none()
                    && let Some(change) = changes.get_mut(task.key)
                {
                    *answer = round.decide(index, task, change);
                }
            }
        }
        others.append(&mut round.unchecked);
        round.write(changes, answers)
    }

    /// Opens the sessions that are missing, and reads the entries.
    fn read<'k>(
        &mut self,
        tasks: &[Task<'k>],
        answers: &mut Answers,
    ) -> Result<BTreeMap<&'k Key, Change>, Error> {
        let mut changes: BTreeMap<&'k Key, Change> = BTreeMap::new();
        let mut keep: HashMap<SessionId, Duration> = HashMap::new();
        let mut check = self.checked.clone();
        let mut needs_floor = false;
        for task in open(tasks, answers) {
            let known = match &task.verb {
                Verb::Attempt {
                    attempt,
                    ttl,
                    place_ttl,
                } => {
                    let session = self.session(*ttl)?;
                    let is_kept = !session.is_fresh(self.asked_at);
                    // A write that was refused may have met the end of a session.
                    match (is_kept, self.conflicts) {
                        (true, _) => drop(keep.insert(session.id, *ttl)),
                        (false, 0) => {}
                        (false, _) => drop(check.insert(session.id)),
                    }
                    if attempt.kind == Kind::Queues {
                        let place = self.session(*place_ttl)?;
                        match (place.is_kept(self.asked_at), self.conflicts) {
                            (false, _) => drop(keep.insert(place.id, *place_ttl)),
                            (true, 0) => {}
                            (true, _) => drop(check.insert(place.id)),
                        }
                    }
                    // What is known is only used by a write, which proves it.
                    let is_known = self.is_first && !is_kept && attempt.kind != Kind::Resumes;
                    let free = self.register.freed.get(task.key).filter(|_| is_known);
                    needs_floor |= free.is_none();
                    free.map(|(version, last)| (version, Contents::free(task.key, last)))
                }
                Verb::Renew { lease, ttl } => {
                    let kept = keep.entry(lease.session.clone()).or_default();
                    *kept = (*kept).max(lease.ttl).max(*ttl);
                    None
                }
                Verb::Move { .. } => None,
                Verb::Remove {
                    epoch,
                    alone_at,
                    settles,
                    ..
                } => {
                    needs_floor |= settles;
                    let alone = alone_at.filter(|_| self.is_first).zip(*epoch);
                    alone.map(|(at, epoch)| (at, Contents::alone(task.key, task.owner, epoch)))
                }
            };
            match changes.entry(task.key) {
                btree_map::Entry::Vacant(vacant) => {
                    vacant.insert(known.map_or_else(Change::default, Change::known));
                }
                // Another task has other knowledge of the entry.
                btree_map::Entry::Occupied(mut occupied) => occupied.get_mut().is_known = false,
            }
        }
        self.asked_at = self.register.now();
        let keep: Vec<_> = keep.iter().map(|(id, ttl)| (id.as_str(), *ttl)).collect();
        let unread = changes.iter().filter(|it| !it.1.is_known);
        let mut keys: Vec<&Key> = unread.map(|(key, _)| *key).collect();
        if keep.is_empty() && keys.is_empty() {
            return Ok(changes);
        }
        if needs_floor {
            keys.push(&self.register.floor);
        }
        let check: Vec<_> = check.iter().map(String::as_str).collect();
        let read = Read {
            keep: &keep,
            keys: &keys,
            check: &check,
        };
        let (register, call) = (self.register, self.call);
        let view = register.store.read(&read, call);
        self.view = view.or_else(|error| match error.kind() {
            // A renewal survives one lost message.
            ErrorKind::Unknown if register.now() < call.deadline => register
                .store
                .read(&read, call)
                .map_err(|again| match again.kind() {
                    ErrorKind::Unavailable => error,
                    _ => again,
                }),
            _ => Err(error),
        })?;
        let ended = register.sessions.note(&keep, &self.view, self.asked_at);
        if ended
            .iter()
            .any(|it| register.ends.sessions().contains(&it.id))
        {
            // Guards that do not ask now are lost, too.
            register.verifiers.verify_all();
        }
        for (id, _) in &keep {
            let kept = self.sessions.values_mut().filter(|it| it.id == *id);
            kept.for_each(|session| session.kept_at = self.asked_at);
        }
        let ended = &self.view.ended;
        self.sessions
            .retain(|_, session| !ended.contains(&session.id));
        if self.view.entries.len() != keys.len() {
            return Err(unexpected());
        }
        for (key, entry) in keys.into_iter().zip(&self.view.entries) {
            let Some(entry) = entry else {
                if let Some(change) = changes.get_mut(key) {
                    (change.seen, change.found) = (None, None);
                }
                continue;
            };
            match (Contents::read(&entry.value), changes.get_mut(key)) {
                (Ok(contents), Some(change)) => {
                    (change.seen, change.found) = (Some(entry.version), Some(contents));
                }
                (Ok(contents), None) => self.floor = Some((entry.version, contents.last)),
                (Err(error), _) => {
                    for (task, answer) in tasks.iter().zip(answers.iter_mut()) {
                        if task.key == key && answer.is_none() {
                            *answer = Some(Err(error.clone()));
                        }
                    }
                }
            }
        }
        Ok(changes)
    }

    /// Returns the current session for a ttl, which is opened if there is none.
    fn session(&mut self, ttl: Duration) -> Result<Session, Error> {
        if let Some(session) = self.sessions.get(&ttl) {
            return Ok(session.clone());
        }
        let Register {
            sessions, store, ..
        } = self.register;
        let session = loop {
            if let Some(session) = sessions.current(ttl) {
                break session;
            }
            let kept_at = self.register.now();
            let id = store.open_session(ttl, self.call)?;
            let opened = Session { id, ttl, kept_at };
            if !sessions.add(opened.clone()) {
                // Another thread was faster. If this fails, it ends by itself.
                let _ = store.end_sessions(&[&opened.id], self.call);
            }
        };
        self.sessions.insert(ttl, session.clone());
        Ok(session)
    }

    /// Decides a task. It has no answer yet if its entry has to be written, or read again.
    fn decide(
        &mut self,
        index: usize,
        task: &mut Task<'_>,
        change: &mut Change,
    ) -> Option<Result<Answered, Error>> {
        match &mut task.verb {
            Verb::Attempt {
                attempt,
                ttl,
                place_ttl,
            } => {
                let session = self.sessions.get(ttl)?.clone();
                if attempt.kind == Kind::Queues {
                    attempt.place.clone_from(&self.sessions.get(place_ttl)?.id);
                }
                self.attempt(index, attempt, session, change)
            }
            Verb::Renew { lease, ttl } => {
                let ends = &self.register.ends;
                let found = change.found.as_ref();
                let is_held = found.is_some_and(|it| it.has(task.owner, lease.epoch))
                    && !self.view.ended.contains(&lease.session)
                    && ends.renew(lease, self.asked_at, *ttl);
                Some(Ok(match is_held {
                    true => {
                        let seen = found.zip(change.seen);
                        let alone_at = seen.and_then(|(it, seen)| it.alone_at(task.owner, seen));
                        Answered::Renewed(Renewal::Renewed, alone_at)
                    }
                    false => Answered::Renewed(Renewal::Lost, None),
                }))
            }
            Verb::Move { lease, session } => {
                let moved = change
                    .base()
                    .and_then(|it| decide::move_to(it, lease, session));
                let Some(next) = moved.filter(|_| change.session.is_none()) else {
                    let is_other = change.session.is_some();
                    return (!is_other).then_some(Ok(Answered::Renewed(Renewal::Lost, None)));
                };
                change.next = Some(next);
                change.session = Some(session.clone());
                change.then.push((index, Then::Moved));
                None
            }
            Verb::Remove {
                epoch,
                settles,
                settling,
                ..
            } => {
                *settles &= self.is_first || *settling == change.seen;
                *settling = change.seen;
                let base = change.base();
                let removed = base.and_then(|it| decide::remove(it, task.owner, *epoch));
                let is_there = removed.is_some();
                let settled = || match base {
                    Some(base) => base.clone(),
                    None => Contents::free(task.key, self.least_epoch()),
                };
                let settled = settles.then(settled);
                match removed.or(settled) {
                    Some(next) => {
                        change.next = Some(next);
                        change.then.push((index, Then::Removed(is_there)));
                        None
                    }
                    None => Some(Ok(Answered::Removed(false))),
                }
            }
        }
    }

    fn attempt(
        &mut self,
        index: usize,
        attempt: &mut Attempt<'_>,
        session: Session,
        change: &mut Change,
    ) -> Option<Result<Answered, Error>> {
        if change.session.as_ref().is_some_and(|it| *it != session.id) {
            // One write has one session.
            return None;
        }
        attempt.lease.session.clone_from(&session.id);
        attempt.least_epoch = self.least_epoch();
        let owner = attempt.lease.owner.as_str();
        let base = change.base();
        let has_ended = |id: &SessionId| self.view.ended.contains(id);
        let (mut next, mut answer) = decide::attempt(base, attempt, has_ended, false);
        let is_unclaimed = matches!(
            answer,
            Answer::Waits {
                is_unclaimed: true,
                ..
            }
        );
        let mut queue = base.into_iter().flat_map(|base| &base.queue);
        let first = queue.find(|it| !has_ended(&it.session));
        let first = first.filter(|_| is_unclaimed);
        if first.is_some_and(|first| self.register.is_overdue(attempt.key, &first.owner)) {
            (next, answer) = decide::attempt(base, attempt, has_ended, true);
        }
        // Who has it, or waits for it, or has granted it to this owner in an earlier session, may have ended.
        let own = base.and_then(|base| base.lease(owner));
        let all = base.filter(|_| !matches!(answer, Answer::Granted { .. }));
        let others = all.into_iter().flat_map(Contents::sessions);
        let others = others.chain(own.map(|own| &own.session));
        let is_current = |id: &str| id == session.id || id == attempt.place;
        let others = others.filter(|id| !is_current(id) && !self.checked.contains(*id));
        let before = self.unchecked.len();
        self.unchecked.extend(others.cloned());
        if self.unchecked.len() > before {
            return None;
        }
        let session = match own.filter(|own| next.is_none() && own.session != session.id) {
            // The engine renews such a grant before it relies on it.
            Some(own) => Session {
                id: own.session.clone(),
                kept_at: HostInstant::default(),
                ..session
            },
            None => session,
        };
        let is_queued = base.is_some_and(|it| it.queue.iter().any(|it| it.owner == owner));
        let then = match answer {
            Answer::Granted { slot, .. } => Then::Granted {
                owner: owner.to_owned(),
                session: session.clone(),
                slot,
                is_queued,
            },
            Answer::Waits { ahead, .. } => Then::Waits { ahead, is_queued },
            Answer::Gone => return Some(Ok(Answered::Gone)),
            Answer::Mismatch { held } => {
                let limit = attempt.lease.mode.limit().unwrap_or_default();
                Then::Mismatch(limit_mismatch(limit, held))
            }
        };
        let Some(next) = next else {
            return Some(self.then(then, attempt.key, base, change.seen));
        };
        if let (Kind::Resumes, Answer::Granted { epoch, .. }) = (attempt.kind, answer) {
            // If no reply comes, nobody else ends what this writes: other leases keep its session.
            let ends = self.asked_at + session.ttl;
            let lease = Some((epoch, session.id.as_str()));
            self.register.ends.enter(attempt.key, owner, lease, ends);
        }
        change.next = Some(next);
        change.session = match then {
            Then::Waits { .. } => Some(attempt.place.clone()),
            _ => Some(session.id),
        };
        change.then.push((index, then));
        None
    }

    /// Writes the entries that change, and answers their tasks.
    fn write(
        &self,
        changes: BTreeMap<&Key, Change>,
        answers: &mut Answers,
    ) -> Result<RoundEnd, Error> {
        let is_made = |change: &Change| change.next.is_some() && change.seen.is_none();
        let texts: Vec<(&Key, Change, String)> = match self.floor {
            // The store is new, or was wiped.
            None if changes.values().any(is_made) => return self.make_floor(),
            _ => {
                let changed = changes.into_iter().filter_map(|(key, change)| {
                    let text = change.next.as_ref()?.text();
                    Some((key, change, text))
                });
                changed.collect()
            }
        };
        if texts.is_empty() {
            return Ok(RoundEnd::Written);
        }
        let floor = self
            .floor
            .map(|(version, _)| (&self.register.floor, version));
        let writes = texts.iter().map(|(key, change, text)| Write {
            key,
            seen: change.seen,
            session: change.session.as_deref(),
            also: floor.filter(|_| change.seen.is_none()),
            value: Some(text),
        });
        let writes: Vec<Write<'_>> = writes.collect();
        let written = self.register.store.write(&writes, self.call)?;
        if written.len() != writes.len() {
            return Err(unexpected());
        }
        let mut ended = RoundEnd::Written;
        for ((key, change, _), version) in texts.into_iter().zip(written) {
            self.register
                .freed
                .note(key, change.next.as_ref(), version, self.asked_at);
            for (index, then) in change.then {
                match version {
                    Some(_) => {
                        let answer = self.then(then, key, change.next.as_ref(), version);
                        if let Some(open) = answers.get_mut(index) {
                            *open = Some(answer);
                        }
                    }
                    // It waits outside of the queue, and asks again later.
                    None if self.conflicts >= LOCKED_AFTER
                        && matches!(then, Then::Waits { .. }) =>
                    {
                        let answer = self.then(then, key, None, change.seen);
                        if let Some(open) = answers.get_mut(index) {
                            *open = Some(answer);
                        }
                    }
                    None if ended != RoundEnd::UrgentConflict => {
                        ended = match then.is_urgent() {
                            true => RoundEnd::UrgentConflict,
                            false => RoundEnd::Conflict,
                        };
                    }
                    None => {}
                }
            }
        }
        Ok(ended)
    }

    /// Makes the entry of the largest epoch that was removed. The tasks are decided again after that.
    fn make_floor(&self) -> Result<RoundEnd, Error> {
        let floor = &self.register.floor;
        let largest = self.register.largest.load(Ordering::Relaxed);
        let text = Contents::free(floor, largest).text();
        let write = Write {
            key: floor,
            seen: None,
            session: None,
            also: None,
            value: Some(&text),
        };
        self.register.store.write(&[write], self.call)?;
        Ok(RoundEnd::Written)
    }

    /// Returns the answer to a task, whose entry has `contents` now.
    fn then(
        &self,
        then: Then,
        key: &Key,
        contents: Option<&Contents>,
        version: Option<Version>,
    ) -> Result<Answered, Error> {
        Ok(match then {
            Then::Removed(done) => Answered::Removed(done),
            Then::Moved => Answered::Renewed(Renewal::Renewed, None),
            Then::Mismatch(error) => return Err(error),
            Then::Waits { ahead, .. } => Answered::Waits(Position { ahead, version }),
            Then::Granted {
                owner,
                session,
                slot,
                ..
            } => {
                let lease = contents.and_then(|it| it.lease(&owner));
                let epoch = lease.ok_or_else(unexpected)?.epoch;
                let (register, ends) = (self.register, self.asked_at + session.ttl);
                if register.largest.fetch_max(epoch, Ordering::Relaxed) == 0 {
                    register.watch.unpark();
                }
                register
                    .ends
                    .enter(key, &owner, Some((epoch, &session.id)), ends);
                let alone_at = contents.zip(version);
                let alone_at = alone_at.and_then(|(it, version)| it.alone_at(&owner, version));
                Answered::Granted(Grant {
                    lease: RegisterLease {
                        key: key.clone(),
                        owner,
                        epoch,
                        session: session.id,
                        ttl: session.ttl,
                        alone_at,
                    },
                    epoch,
                    asked_at: session.kept_at,
                    slot,
                })
            }
        })
    }

    /// Returns the least epoch of a grant.
    fn least_epoch(&self) -> u64 {
        let floor = self.floor.map_or(0, |(_, last)| last);
        self.register.least_epoch().max(floor + 1)
    }
}

impl Change {
    fn known((version, contents): (Version, Contents)) -> Self {
        Self {
            seen: Some(version),
            found: Some(contents),
            is_known: true,
            ..Self::default()
        }
    }

    /// Returns the contents as the tasks so far leave them.
    fn base(&self) -> Option<&Contents> {
        self.next.as_ref().or(self.found.as_ref())
    }
}

impl Then {
    /// Returns whether it is of a holder or of a waiter in the queue.
    fn is_urgent(&self) -> bool {
        match self {
            Then::Granted { is_queued, .. } | Then::Waits { is_queued, .. } => *is_queued,
            Then::Mismatch(_) | Then::Moved | Then::Removed(_) => true,
        }
    }
}

/// Returns the tasks that have no answer yet.
fn open<'t, 'k>(tasks: &'t [Task<'k>], answers: &'t Answers) -> impl Iterator<Item = &'t Task<'k>> {
    let open = tasks.iter().zip(answers).filter(|it| it.1.is_none());
    open.map(|(task, _)| task)
}
