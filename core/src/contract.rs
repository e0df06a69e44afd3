//! What a store implements, and what the engine calls: requests, answers, capabilities and SQL.

pub(crate) mod admin;
pub(crate) mod backend;
pub(crate) mod batch;
pub(crate) mod provider;
pub(crate) mod sql;
pub(crate) mod verifier;
