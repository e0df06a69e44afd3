//! The read of a round: it opens and keeps the sessions of the tasks, and reads their entries.

use std::collections::{HashMap, btree_map};
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind};

use super::{Change, Changes, Round};
use crate::decide::Kind;
use crate::entry::Contents;
use crate::key::Key;
use crate::register::Register;
use crate::sessions::Session;
use crate::store::{Entry, Read, SessionId, Version, View};
use crate::task::{Answers, Others, Task, Verb, unexpected};

/// What is to be read beside the entries of the tasks.
struct Beside {
    keep: HashMap<SessionId, Duration>,
    check: Others,
    floor: bool,
}

impl Round<'_> {
    /// Opens the sessions that are missing, keeps those that are old, and reads the entries that are not known.
    pub(super) fn read<'k>(
        &mut self,
        tasks: &[Task<'k>],
        answers: &mut Answers,
    ) -> Result<Changes<'k>, Error> {
        let mut changes = Changes::new();
        let mut beside = Beside {
            keep: HashMap::new(),
            check: self.checked.clone(),
            floor: false,
        };
        let open = tasks.iter().zip(answers.iter_mut());
        for (task, answer) in open.filter(|it| it.1.is_none()) {
            let known = match self.prepare(task, &mut beside) {
                // The store opens no session for this ttl. Others may have another one, or renew.
                Err(error) if !error.is_retryable() => {
                    *answer = Some(Err(error));
                    continue;
                }
                known => known?,
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
        let unread = changes.iter().filter(|it| !it.1.is_known);
        let mut keys: Vec<&Key> = unread.map(|(key, _)| *key).collect();
        if beside.keep.is_empty() && keys.is_empty() {
            return Ok(changes);
        }
        if beside.floor {
            keys.push(&self.register.floor);
        }
        let keep: Vec<_> = beside.keep.iter().map(|(id, ttl)| (&**id, *ttl)).collect();
        let check: Vec<_> = beside.check.iter().map(String::as_str).collect();
        let view = self.ask(&Read {
            keep: &keep,
            keys: &keys,
            check: &check,
        })?;
        if view.entries.len() != keys.len() {
            return Err(unexpected());
        }
        self.note_sessions(&keep, &view);
        self.ended = view.ended;
        for (key, entry) in keys.into_iter().zip(view.entries) {
            if let Err(error) = self.take_in(entry, changes.get_mut(key)) {
                let open = tasks.iter().zip(answers.iter_mut());
                let open = open.filter(|(task, answer)| task.key == key && answer.is_none());
                open.for_each(|(_, answer)| *answer = Some(Err(error.clone())));
            }
        }
        Ok(changes)
    }

    /// Notes what a task needs to be read, and returns the version and the contents of its entry if they are known. What is
    /// known is only used by a write, which proves it.
    fn prepare(
        &mut self,
        task: &Task<'_>,
        beside: &mut Beside,
    ) -> Result<Option<(Version, Contents)>, Error> {
        match &task.verb {
            Verb::Attempt {
                attempt,
                ttl,
                place_ttl,
            } => {
                let session = self.session(*ttl)?;
                let is_fresh = session.is_fresh(self.asked_at);
                self.keep_or_check(session, is_fresh, beside);
                if attempt.kind == Kind::Queues {
                    let place = self.session(*place_ttl)?;
                    let is_kept = place.is_kept(self.asked_at);
                    self.keep_or_check(place, is_kept, beside);
                }
                let may_be_known = self.is_first && is_fresh && attempt.kind != Kind::Resumes;
                let free = self.register.freed.get(task.key).filter(|_| may_be_known);
                beside.floor |= free.is_none();
                Ok(free.map(|(version, last)| (version, Contents::free(task.key, last))))
            }
            Verb::Renew { lease, ttl } => {
                let kept = beside.keep.entry(lease.session.clone()).or_default();
                *kept = (*kept).max(lease.ttl).max(*ttl);
                Ok(None)
            }
            Verb::Move { .. } => Ok(None),
            Verb::Remove {
                epoch,
                alone_at,
                settles,
                ..
            } => {
                beside.floor |= settles;
                let alone = alone_at.filter(|_| self.is_first).zip(*epoch);
                Ok(alone.map(|(at, epoch)| (at, Contents::alone(task.key, task.owner, epoch))))
            }
        }
    }

    /// Schedules a session to be kept, unless it `is_recent`. A write that was refused may have met the end of the session.
    fn keep_or_check(&self, session: Session, is_recent: bool, beside: &mut Beside) {
        if !is_recent {
            beside.keep.insert(session.id, session.ttl);
        } else if self.conflicts > 0 {
            beside.check.insert(session.id);
        }
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

    /// Reads, and again after a reply that was lost: a renewal survives one lost message.
    fn ask(&self, read: &Read<'_>) -> Result<View, Error> {
        let (register, call) = (self.register, self.call);
        let error = match register.store.read(read, call) {
            Err(error) if error.kind() == ErrorKind::Unknown => error,
            done => return done,
        };
        if register.now() >= call.deadline {
            return Err(error);
        }
        let again = register.store.read(read, call);
        again.map_err(|again| match again.kind() {
            ErrorKind::Unavailable => error,
            _ => again,
        })
    }

    /// Notes which sessions were kept, and which have ended.
    fn note_sessions(&mut self, keep: &[(&str, Duration)], view: &View) {
        let register = self.register;
        let ended = register.sessions.note(keep, view, self.asked_at);
        let is_in_use = |it: &Session| register.ends.sessions().contains(&it.id);
        if ended.iter().any(is_in_use) {
            // Guards that do not ask now are lost, too.
            register.verifiers.verify_all();
        }
        self.sessions.retain(|_, it| !view.ended.contains(&it.id));
        for session in self.sessions.values_mut() {
            if keep.iter().any(|(id, _)| *id == session.id) {
                session.kept_at = self.asked_at;
            }
        }
    }

    /// Takes what was read of an entry, or of the floor.
    fn take_in(&mut self, entry: Option<Entry>, change: Option<&mut Change>) -> Result<(), Error> {
        let version = entry.as_ref().map(|entry| entry.version);
        let contents = entry.map(|entry| Contents::read(&entry.value));
        let contents = contents.transpose();
        match change {
            Some(change) => (change.seen, change.found) = (version, contents?),
            None => self.floor = contents.map(|it| version.zip(it.map(|it| it.last))),
        }
        Ok(())
    }
}
