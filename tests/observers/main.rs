//! The observers for the application's own tracing and metrics.

#![allow(clippy::unwrap_used)]

mod metrics;
mod tracing;
mod unanswering_store;
