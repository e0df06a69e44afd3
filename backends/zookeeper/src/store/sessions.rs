//! The sessions of this process. Each has its own connection, and a node that the server deletes when the session ends.
//!
//! Requests on a session's connection restart its time, but only where they are answered: a follower tells the leader of
//! them every half a tick, and a member that is cut off tells nobody. A connection that is opened again within the session
//! makes the leader itself restart the time. A write on it proves that this is still the leader: its successor counts
//! each session's time from its own election, which came later. So the session lives for its whole time-out from before
//! the connection was opened.
//!
//! The former connection stays open until the server closes it, since the server logs each other end of one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{CancelToken, Error, ErrorKind, host_name};
use lockkeeper_register::SessionId;
use lockkeeper_remote::{
    Failure, Pool, cancelled, connect_until_cancelled, no_time, nothing_granted, senseless,
};
use parking_lot::Mutex;

use crate::connection::Connection;
use crate::connection::connector::{Connector, Session};
use crate::wire::paths::Paths;
use crate::wire::{Code, Request};

/// How many sessions are opened at a time. After a cancel, each keeps a thread.
const MOST_OPENING: u32 = 16;

/// A session, and the connection on which it was kept last.
struct Kept {
    session: Session,
    connection: Connection,
    at: Instant,
}

/// The open sessions of a provider. After a cancel, a thread finishes what it does with a session.
pub(super) struct Sessions {
    connector: Arc<Connector>,
    /// One thread at a time uses a session: two connections of one session would end each other.
    open: Mutex<HashMap<SessionId, Pool<Kept>>>,
    opening: Pool<()>,
}

impl Sessions {
    pub(super) fn new(connector: Arc<Connector>) -> Self {
        Self {
            connector,
            open: Mutex::default(),
            opening: Pool::new(MOST_OPENING),
        }
    }

    /// Opens a session with this time-out, within `limit` and before a cancel. If it fails, what may have been opened ends
    /// by itself.
    pub(super) fn open(
        &self,
        paths: &Paths,
        ttl: Duration,
        limit: Duration,
        cancel: Option<&CancelToken>,
    ) -> Result<SessionId, Error> {
        let began = Instant::now();
        let slot = self.opening.checkout(limit, cancel);
        let slot = slot.ok_or_else(|| no_time().into_error())?;
        let left = limit.saturating_sub(began.elapsed());
        let (connector, paths) = (Arc::clone(&self.connector), paths.clone());
        let of_caller = cancel.cloned();
        let open = move || {
            let _slot = slot;
            Kept::open(&connector, &paths, ttl, left, of_caller.as_ref())
        };
        let (id, kept) = connect_until_cancelled(left, cancel, open)?;
        let session = Pool::new(1);
        if let Some(mut slot) = session.try_checkout() {
            slot.connection = Some(kept);
        }
        let mut open = self.open.lock();
        // Those of detached leases, which other processes have taken over, and of a ttl that is no longer used.
        open.retain(|_, session| {
            let slot = session.try_checkout();
            slot.is_none_or(|it| it.connection.as_ref().is_some_and(|it| !it.is_over()))
        });
        open.insert(id.clone(), session);
        drop(open);
        Ok(id)
    }

    /// Keeps a session, within `limit` and before a cancel, and returns whether it has not ended.
    pub(super) fn keep(
        &self,
        id: &str,
        node: String,
        ttl: Duration,
        limit: Duration,
        cancel: Option<&CancelToken>,
    ) -> Result<bool, Error> {
        let began = Instant::now();
        let Some(session) = self.open.lock().get(id).cloned() else {
            return Ok(false);
        };
        let slot = session.checkout(limit, cancel);
        let mut slot = slot.ok_or_else(|| no_time().into_error())?;
        let left = limit.saturating_sub(began.elapsed());
        let connector = Arc::clone(&self.connector);
        let keep = move || {
            let kept = slot.connection.as_mut().ok_or_else(senseless)?;
            kept.keep(&connector, &node, ttl, left)
        };
        let is_kept = connect_until_cancelled(left, cancel, keep)?;
        if !is_kept {
            self.open.lock().remove(id);
        }
        Ok(is_kept)
    }

    /// Ends a session of this process, within `limit` and before a cancel. Returns false if it may not have ended.
    pub(super) fn end(&self, id: &str, limit: Duration, cancel: Option<&CancelToken>) -> bool {
        let Some(session) = self.open.lock().remove(id) else {
            return false;
        };
        let Some(mut slot) = session.checkout(limit, cancel) else {
            return false;
        };
        let limit = limit.min(self.connector.response_timeout);
        let end = move || {
            let kept = slot.connection.as_mut().ok_or_else(senseless)?;
            let ended = kept.connection.ask(&[Request::close()], limit);
            ended.map_err(Failure::into_error)
        };
        connect_until_cancelled(limit, cancel, end).is_ok()
    }
}

impl Kept {
    /// Opens a session, and closes it if the caller was cancelled meanwhile.
    fn open(
        connector: &Connector,
        paths: &Paths,
        ttl: Duration,
        limit: Duration,
        cancel: Option<&CancelToken>,
    ) -> Result<(SessionId, Self), Error> {
        let at = Instant::now();
        let left = || {
            limit
                .saturating_sub(at.elapsed())
                .min(connector.response_timeout)
        };
        let opened = connector.connect(None, ttl, limit)?;
        let (mut connection, session) = opened.ok_or_else(senseless)?;
        let made = check_timeout(&session, ttl).and_then(|()| {
            // The server numbers sessions by its clock, which may be set.
            let id = format!("{:x}-{:08x}", session.id, fastrand::u32(..));
            let node = Request::create(&paths.session(&id), host_name(), connector.acl(), true);
            let replies = connection.ask(&[node], left());
            let replies = replies.map_err(Failure::into_error)?;
            let created = replies.first().ok_or_else(senseless)?;
            created.done().map_err(Code::error)?;
            match cancel.is_some_and(CancelToken::is_cancelled) {
                true => Err(nothing_granted(cancelled())),
                false => Ok(id),
            }
        });
        if made.is_err() {
            let _ = connection.ask(&[Request::close()], left());
        }
        let kept = Self {
            session,
            connection,
            at,
        };
        Ok((made?, kept))
    }

    /// Keeps the session, within `limit`, and returns whether it has not ended.
    fn keep(
        &mut self,
        connector: &Connector,
        node: &str,
        ttl: Duration,
        limit: Duration,
    ) -> Result<bool, Error> {
        let began = Instant::now();
        let left = || {
            limit
                .saturating_sub(began.elapsed())
                .min(connector.response_timeout)
        };
        self.connection.uncount();
        let Some((connection, session)) = connector.connect(Some(&self.session), ttl, left())?
        else {
            return Ok(false);
        };
        check_timeout(&session, ttl)?;
        (self.connection, self.at) = (connection, began);
        let replies = self
            .connection
            .ask(&[Request::set(node, host_name(), -1)], left());
        let replies = replies.map_err(nothing_granted)?;
        match replies.first().ok_or_else(senseless)?.done() {
            Ok(()) => Ok(true),
            Err(Code::NO_NODE) => Ok(false),
            Err(code) => Err(code.error()),
        }
    }

    /// Returns whether the server has ended the session, since nobody has kept it for so long.
    fn is_over(&self) -> bool {
        self.at.elapsed() > 2 * self.session.timeout
    }
}

/// Checks that the server has taken the time-out that it was asked for.
fn check_timeout(session: &Session, ttl: Duration) -> Result<(), Error> {
    let timeout = session.timeout;
    let (limit, advice) = match timeout.cmp(&ttl) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => ("maxSessionTimeout", "shorter"),
        std::cmp::Ordering::Greater => ("minSessionTimeout", "longer"),
    };
    let text = format!(
        "the server makes {timeout:?} of a session's time-out of {ttl:?}; use a {advice} `ttl`, or change {limit} on the servers"
    );
    let kind = match timeout < ttl {
        true => ErrorKind::InvalidTtl,
        false => ErrorKind::TtlTooShort,
    };
    Err(Error::new(kind, text))
}
