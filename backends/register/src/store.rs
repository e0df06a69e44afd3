//! What a store has to do so that locks can be kept in it.

use std::time::Duration;

use lockkeeper_core::{CancelToken, Error, Finding, HostInstant, LeaseVerifier, Proof, StoreInfo};
#[cfg(doc)]
use lockkeeper_core::{Capabilities, ErrorKind};

use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::lease::RegisterLease;

/// Identifies one write of an entry. No other write of the entry has the same version, not even one of the same value,
/// nor after the entry was removed and made anew.
pub type Version = u64;

/// Identifies a session, over all processes and times. It is never used again: a session that the store does not know has
/// ended. The text is printable, has no quotation marks, and is short, since each lease contains it.
pub type SessionId = String;

/// A store that reads an entry, and writes it if it has not changed since.
///
/// # Sessions
/// A lease, and a waiter's place, lives as long as the session that it names. A session is what the store ends by
/// itself `ttl` after it was last [kept](Read::keep): not later than the ttl + 1 s, and not before the ttl less
/// [`Capabilities::least_margin`]. A row with the end by the server's clock is one, a Consul session with a key that is
/// deleted at its end, or a ZooKeeper session with an ephemeral node. An ended session never lives again. So one
/// request keeps all leases of a process, and a renewal writes no entry.
///
/// # Description
/// [`StoreInfo`] describes the store alone. The provider adds shared locks and permits to its capabilities, and the
/// interface for operators. A call has at most
/// [`Capabilities::batch`] writes or [`Capabilities::renewals`] keys, and one key more.
///
/// # Errors
/// [`ErrorKind::Unavailable`] if nothing was done; [`ErrorKind::Unknown`] if a write may have been done. Each call
/// returns by its deadline, and soon after a cancel.
pub trait RegisterStore: StoreInfo {
    /// Keeps sessions, reads entries, and finds which sessions have ended, as [`Read`] says. It is one request where the
    /// store can do that. An entry is as it was at some moment of the call.
    ///
    /// # Errors
    /// See [`RegisterStore`]. The sessions may have been kept even so.
    fn read(&self, read: &Read<'_>, call: Call<'_>) -> Result<View, Error>;

    /// Writes entries, each by itself and under its own condition, and returns the new versions in the same order.
    /// `None` is an entry that was not written, since its condition did not hold, or since another transaction has
    /// locked it for the moment. The caller reads again then.
    ///
    /// # Errors
    /// See [`RegisterStore`]. An error concerns all writes.
    fn write(&self, writes: &[Write<'_>], call: Call<'_>) -> Result<Vec<Option<Version>>, Error>;

    /// Opens a session that lives for `ttl`, from before this call, unless it is kept.
    ///
    /// # Errors
    /// See [`RegisterStore`].
    fn open_session(&self, ttl: Duration, call: Call<'_>) -> Result<SessionId, Error>;

    /// Ends sessions that are no longer needed. If it fails, they end by themselves, and so they do by default.
    ///
    /// # Errors
    /// See [`RegisterStore`].
    fn end_sessions(&self, sessions: &[&str], call: Call<'_>) -> Result<(), Error> {
        let _ = (sessions, call);
        Ok(())
    }

    /// Waits until an entry has another version than `seen`, where `None` is an absent entry. It ends at the call's
    /// deadline or with a cancel, which are no errors. It may return early. `None` if the store has no notification:
    /// then the caller polls.
    fn wait(&self, key: &Key, seen: Option<Version>, call: Call<'_>) -> Option<Result<(), Error>> {
        let _ = (key, seen, call);
        None
    }

    /// Lists the entries of the namespace, in any order. Their values contain their keys.
    ///
    /// # Errors
    /// See [`RegisterStore`].
    fn list(&self, call: Call<'_>) -> Result<Vec<Entry>, Error>;

    /// Checks for settings and states that are known to break locks on this kind of store:
    /// [`Admin::examine`](lockkeeper_core::Admin::examine). There is at least one finding. The default counts the entries.
    ///
    /// # Errors
    /// Only if the store could not be asked at all.
    fn examine(&self, call: Call<'_>) -> Result<Vec<Finding>, Error> {
        let count = self.list(call)?.len();
        Ok(vec![Finding::fine(
            "entries",
            format!("the store has {count} entries"),
        )])
    }

    /// Receives the handle by which the store asks a keeper to verify its leases, if it notices that sessions may have
    /// ended: [`Backend::watch_leases`](lockkeeper_core::Backend::watch_leases). The provider itself notices what an
    /// operator takes away, by [`wait`](Self::wait). The default drops the handle.
    fn watch_leases(&self, verifier: LeaseVerifier) {
        drop(verifier);
    }

    /// Returns the SQL that proves a lease in a transaction of the application:
    /// [`Backend::proof`](lockkeeper_core::Backend::proof). `None` if the store has no such SQL.
    fn proof(&self, lease: &RegisterLease) -> Option<Proof> {
        let _ = lease;
        None
    }
}

/// The bounds of a call to a store.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The time by which the call returns.
    pub deadline: HostInstant,
    /// Ends the call early.
    pub cancel: Option<&'a CancelToken>,
}

impl Call<'_> {
    /// Makes the bounds of a call that ends at `deadline`, and by no cancel.
    pub fn until(deadline: HostInstant) -> Self {
        Self {
            deadline,
            cancel: None,
        }
    }
}

/// What a store is to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Read<'a> {
    /// The sessions to keep, before the entries are read: each lives for this ttl from now on, unless it has ended.
    pub keep: &'a [(&'a str, Duration)],
    /// The keys of the entries, which are read in this order.
    pub keys: &'a [&'a Key],
    /// Further sessions, of which the caller wants to know whether they have ended.
    pub check: &'a [&'a str],
}

/// An entry as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The version.
    pub version: Version,
    /// The value: printable text without line breaks, up to 64 KiB.
    pub value: String,
}

/// What a store has read.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The entries, in the order of the keys. `None` is an absent entry.
    pub entries: Vec<Option<Entry>>,
    /// Those of the sessions to keep and to check that have ended.
    pub ended: Vec<SessionId>,
}

/// A write of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The key.
    pub key: &'a Key,
    /// The condition: the version that the entry still has. `None` is an absent entry.
    pub seen: Option<Version>,
    /// A further condition: this session has not ended.
    pub session: Option<&'a str>,
    /// A further condition, of a write that makes an absent entry: this other entry still has this version.
    ///
    /// It is the entry of the namespace with the largest epoch of the entries that were removed. So a write that arrives
    /// late makes no entry that was made and removed meanwhile, and epochs grow. A store whose statement reads the other
    /// entry apart from the write locks it until the write is done.
    pub also: Option<(&'a Key, Version)>,
    /// The new value. `None` removes the entry.
    pub value: Option<&'a str>,
}
