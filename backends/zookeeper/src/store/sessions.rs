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

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_register::SessionId;
use lockkeeper_remote::{Failure, host_name, no_time, nothing_granted, senseless};
use parking_lot::Mutex;

use crate::connection::Connection;
use crate::connection::connector::{Connector, Session};
use crate::wire::paths::Paths;
use crate::wire::{Code, Request};

/// A session, and the connection on which it was kept last.
struct Kept {
    session: Session,
    connection: Connection,
    at: Instant,
}

impl Kept {
    /// Returns whether the server has ended the session, since nobody has kept it for so long.
    fn is_over(&self) -> bool {
        self.at.elapsed() > 2 * self.session.timeout
    }
}

/// The open sessions of a provider.
pub(super) struct Sessions {
    connector: Arc<Connector>,
    open: Mutex<HashMap<SessionId, Arc<Mutex<Kept>>>>,
}

impl Sessions {
    pub(super) fn new(connector: Arc<Connector>) -> Self {
        Self {
            connector,
            open: Mutex::default(),
        }
    }

    /// Opens a session with this time-out, within `limit`. If it fails, what may have been opened ends by itself.
    pub(super) fn open(
        &self,
        paths: &Paths,
        ttl: Duration,
        limit: Duration,
    ) -> Result<SessionId, Error> {
        let began = Instant::now();
        let left = || limit.saturating_sub(began.elapsed());
        let opened = self.connector.connect(None, ttl, limit)?;
        let (mut connection, session) = opened.ok_or_else(senseless)?;
        let made = check_timeout(&session, ttl).and_then(|()| {
            // The server numbers sessions by its clock, which may be set.
            let id = format!("{:x}-{:08x}", session.id, fastrand::u32(..));
            let node =
                Request::create(&paths.session(&id), host_name(), self.connector.acl(), true);
            let replies = connection.ask(&[node], left());
            let replies = replies.map_err(Failure::into_error)?;
            let created = replies.first().ok_or_else(senseless)?;
            created.done().map_err(Code::error)?;
            Ok(id)
        });
        if made.is_err() {
            let _ = connection.ask(&[Request::close()], left());
        }
        let id = made?;
        let kept = Kept {
            session,
            connection,
            at: began,
        };
        let mut open = self.open.lock();
        // Those of detached leases, which other processes have taken over, and of a ttl that is no longer used.
        open.retain(|_, kept| kept.try_lock().is_none_or(|kept| !kept.is_over()));
        open.insert(id.clone(), Arc::new(Mutex::new(kept)));
        drop(open);
        Ok(id)
    }

    /// Keeps a session, within `limit`, and returns whether it has not ended.
    pub(super) fn keep(
        &self,
        id: &str,
        node: &str,
        ttl: Duration,
        limit: Duration,
    ) -> Result<bool, Error> {
        let began = Instant::now();
        let left = || limit.saturating_sub(began.elapsed());
        let Some(kept) = self.open.lock().get(id).cloned() else {
            return Ok(false);
        };
        // Two connections of one session would end each other.
        let Some(mut kept) = kept.try_lock_for(left()) else {
            return Err(no_time().into_error());
        };
        kept.connection.uncount();
        let limit = left().min(self.connector.response_timeout);
        let opened = self.connector.connect(Some(&kept.session), ttl, limit)?;
        let is_kept = match opened {
            None => false,
            Some((connection, session)) => {
                check_timeout(&session, ttl)?;
                (kept.connection, kept.at) = (connection, began);
                let write = Request::set(node, host_name(), -1);
                let limit = left().min(self.connector.response_timeout);
                let replies = kept
                    .connection
                    .ask(&[write], limit)
                    .map_err(nothing_granted)?;
                match replies.first().ok_or_else(senseless)?.done() {
                    Ok(()) => true,
                    Err(Code::NO_NODE) => false,
                    Err(code) => return Err(code.error()),
                }
            }
        };
        if !is_kept {
            self.open.lock().remove(id);
        }
        Ok(is_kept)
    }

    /// Ends a session of this process, within `limit`. Returns false if it may not have ended.
    pub(super) fn end(&self, id: &str, limit: Duration) -> bool {
        let Some(kept) = self.open.lock().remove(id) else {
            return false;
        };
        let Some(mut kept) = kept.try_lock_for(limit) else {
            return false;
        };
        let limit = limit.min(self.connector.response_timeout);
        kept.connection.ask(&[Request::close()], limit).is_ok()
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
