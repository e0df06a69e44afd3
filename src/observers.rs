//! Observers that report to an application's own tracing and metrics.
//!
//! Each is behind a feature. Add it to the [`Config`](crate::Config) of the keeper, beside observers of your
//! own:
//!
//! ```
//! # #[cfg(all(feature = "metrics", feature = "tracing"))] {
//! use std::sync::Arc;
//! use lockkeeper::Config;
//! use lockkeeper::observers::{MetricsObserver, TracingObserver};
//!
//! let config = Config::from_url("memory:")?
//!     .observer(Arc::new(TracingObserver::new()))
//!     .observer(Arc::new(MetricsObserver::new().group_prefixes(["seat:", "order:"])));
//! let keeper = lockkeeper::open_config(&config)?;
//! # }
//! # Ok::<(), lockkeeper::Error>(())
//! ```
//!
//! The page `docs/observing.md` says what to alert on, and `docs/grafana.json` is a dashboard.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "metrics")]
pub use metrics::MetricsObserver;
#[cfg(feature = "tracing")]
pub use tracing::TracingObserver;

use crate::{Error, ErrorKind};

/// Returns the outcome of an acquisition that ended without the lock.
fn outcome(error: Option<&Error>) -> &'static str {
    match error.map(Error::kind) {
        None => "busy",
        Some(ErrorKind::Cancelled) => "cancelled",
        Some(ErrorKind::Unavailable) => "unavailable",
        Some(ErrorKind::Unknown) => "unknown",
        Some(ErrorKind::PoolExhausted) => "pool_exhausted",
        Some(_) => "error",
    }
}
