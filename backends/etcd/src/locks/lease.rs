//! What a lock is in etcd.

use crate::wire::Seen;
use crate::wire::entry::start;
use crate::wire::txn::{Txn, begins_with};

/// A lock as etcd keeps it: its key, and the lease to which the key is bound.
#[derive(Clone, Debug)]
pub struct EtcdLease {
    pub(crate) key: String,
    pub(crate) seen: Seen,
    pub(crate) lease: i64,
    /// The value of the key.
    pub(crate) value: String,
    /// The revision before the lease was resumed; 0 if it was not. Another holder has another one.
    pub(crate) resumed: i64,
}

impl EtcdLease {
    /// Returns the transaction that deletes the key if it is still this holder's.
    pub(crate) fn delete(&self) -> Txn {
        delete(&self.key, self.seen.created, self.resumed)
    }
}

/// Returns the transaction that deletes a key if it was created at this revision, and is still of the holder that
/// resumed it.
pub(super) fn delete(key: &str, created: i64, resumed: i64) -> Txn {
    let mut delete = Txn::delete(key, created);
    if resumed > 0 {
        delete.compare.extend(begins_with(key, &start(resumed)));
    }
    delete
}
