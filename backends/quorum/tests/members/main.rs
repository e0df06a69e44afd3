//! Members that do not agree: three SQLite files, which a test also opens one by one.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "this is a test program"
)]

mod regain;
mod stores;
mod turns;
mod voting;
mod watched;

use std::time::Duration;

use lockkeeper_core::{Clock, HostInstant, LockName, SystemClock};

const TTL: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

fn name() -> LockName {
    LockName::new("seat:42").expect("the name is valid")
}

fn soon() -> HostInstant {
    SystemClock.now() + WAIT
}
