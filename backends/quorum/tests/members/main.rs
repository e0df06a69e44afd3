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

use lockkeeper_core::{HostInstant, LockName};

const HOUR: Duration = Duration::from_secs(3600);
/// No lease ends by itself while a case runs, however busy the machine is.
const TTL: Duration = HOUR;
/// The longest wait for another thread.
const WAIT: Duration = Duration::from_secs(30);
/// The deadline of requests that are answered, however busy the machine is.
const NEVER: HostInstant = HostInstant::NEVER;

fn name() -> LockName {
    LockName::new("seat:42").expect("the name is valid")
}
