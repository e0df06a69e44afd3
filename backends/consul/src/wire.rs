//! What is said to the server: keys, transactions, and sessions.

mod keys;
mod txn;

pub(crate) use keys::Keys;
pub(crate) use txn::{Pairs, Txn, VERBS, pairs};
