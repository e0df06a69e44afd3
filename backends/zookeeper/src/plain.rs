//! A session without locks of this library, for the programs of this project that compare and measure.
//!
//! Hidden, and not part of the interface: it has what those programs need, and nothing else. It is in this package
//! because it connects as a URL says, with members, TLS and login: a client of its own would repeat that.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{CancelToken, Error, SystemClock, Usage};
use lockkeeper_register::Call;
use lockkeeper_remote::{Failure, senseless};

use crate::connection::Notices;
use crate::connection::connector::Connector;
use crate::connection::link::Link;
use crate::options::ZooKeeperOptions;
use crate::wire::{Code, Reply, Request};

/// Longer than a member needs to be replaced by another one.
const LIMIT: Duration = Duration::from_secs(60);

/// A client, which all threads of a program use at once. Its first request opens the session, and dropping it ends that.
pub struct PlainClient {
    link: Link,
    chroot: String,
}

/// A change of a node. Paths begin below that of the URL.
#[derive(Clone, Copy, Debug)]
pub enum PlainWrite<'a> {
    /// Makes a node with a value, which stays after the session.
    Create(&'a str, &'a str),
    /// Sets the value of a node that has this version.
    Set(&'a str, &'a str, i32),
    /// Deletes a node.
    Delete(&'a str),
}

impl PlainClient {
    /// Makes a client whose session lives for `session` after its last request. An idle client pings the server.
    ///
    /// # Errors
    /// Options out of bounds, or a certificate that cannot be read.
    pub fn new(options: &ZooKeeperOptions, session: Duration) -> Result<Self, Error> {
        options.check()?;
        let connector = Arc::new(Connector::new(options)?);
        let notices = Notices::new("no leases");
        Ok(Self {
            link: Link::new(connector, notices, Arc::new(SystemClock), session),
            chroot: options.chroot.clone(),
        })
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.chroot)
    }

    fn ask(&self, request: Request) -> Result<Reply, Error> {
        let call = Call::until(self.link.clock.now() + LIMIT);
        let replies = self.link.call(&[request], call);
        let mut replies = replies.map_err(Failure::into_error)?;
        replies.pop().ok_or_else(senseless)
    }

    /// Returns the value and the version of a node, if it exists.
    ///
    /// # Errors
    /// The server's own error, or the connection has failed.
    pub fn get(&self, path: &str) -> Result<Option<(String, i32)>, Error> {
        let found = self.ask(Request::get(&self.path(path), false))?.data()?;
        Ok(found.map(|(value, stat)| (value, stat.version)))
    }

    /// Returns the names of a node's children; none if there is no such node.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn children(&self, path: &str) -> Result<Vec<String>, Error> {
        let children = self.ask(Request::children(&self.path(path)))?.children()?;
        Ok(children.unwrap_or_default())
    }

    /// Writes all or nothing. Returns whether it was written: each node was there, or absent, and had the version.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn write(&self, writes: &[PlainWrite<'_>]) -> Result<bool, Error> {
        let acl = self.link.connector.acl();
        let request = |write: &PlainWrite<'_>| match *write {
            PlainWrite::Create(path, value) => Request::create(&self.path(path), value, acl, false),
            PlainWrite::Set(path, value, version) => Request::set(&self.path(path), value, version),
            PlainWrite::Delete(path) => Request::delete(&self.path(path), -1),
        };
        let parts: Vec<_> = writes.iter().map(request).collect();
        match self.ask(Request::multi(&parts))?.transaction()? {
            Ok(()) => Ok(true),
            Err(Code::NO_NODE | Code::BAD_VERSION | Code::NODE_EXISTS) => Ok(false),
            Err(code) => Err(code.error()),
        }
    }

    /// Makes a node that lives as long as the session, and returns its path: `path` with the next number of its folder.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn create_numbered(&self, path: &str) -> Result<String, Error> {
        let acl = self.link.connector.acl();
        let made = self.ask(Request::create_numbered(&self.path(path), acl))?;
        let made = made.created()?;
        let below = made.strip_prefix(&self.chroot).ok_or_else(senseless)?;
        Ok(below.to_owned())
    }

    /// Waits until a node changes or is deleted, for at most `limit`. Returns at once if there is no such node.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn wait_for_change(
        &self,
        path: &str,
        limit: Duration,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        let path = self.path(path);
        let waiter = self.link.notices.enter(&path);
        if self.ask(Request::exists(&path, true))?.stat()?.is_some() {
            waiter.wait(limit, Some(cancel));
        }
        Ok(())
    }

    /// Returns what the client has cost so far.
    pub fn usage(&self) -> Usage {
        self.link.connector.learned.counts.usage()
    }
}
