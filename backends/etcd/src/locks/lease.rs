//! What a lock is in etcd.

use crate::wire::Seen;

/// A lock as etcd keeps it: its key, and the lease to which the key is bound.
#[derive(Clone, Debug)]
pub struct EtcdLease {
    pub(crate) key: String,
    pub(crate) seen: Seen,
    pub(crate) lease: i64,
    /// The value of the key.
    pub(crate) value: String,
}
