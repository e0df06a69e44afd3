//! `lockkeeper run`, `who`, `unlock` and `doctor`: the real binary, on a SQLite file, and all verbs once on each kind of
//! server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod claims;
mod configs;
mod crowd;
mod doctor;
mod exits;
mod limits;
mod loss;
#[cfg(target_os = "linux")]
mod mode_claims;
mod modes;
mod opening;
mod operate;
mod rig;
mod scripts;
mod servers;
mod several;
mod signals;
mod store_loss;
#[cfg(target_os = "linux")]
mod surroundings;
mod terminal;
mod tickets;
mod watch;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = claims::role() {
        return code;
    }
    let cases = [
        #[cfg(target_os = "linux")]
        claims::CASES,
        configs::CASES,
        crowd::CASES,
        doctor::CASES,
        exits::CASES,
        limits::CASES,
        loss::CASES,
        #[cfg(target_os = "linux")]
        mode_claims::CASES,
        modes::CASES,
        opening::CASES,
        operate::CASES,
        scripts::CASES,
        several::CASES,
        signals::CASES,
        store_loss::CASES,
        #[cfg(target_os = "linux")]
        surroundings::CASES,
        terminal::CASES,
        tickets::CASES,
        watch::CASES,
    ];
    let on_redis = [
        doctor::ON_REDIS,
        opening::ON_REDIS,
        store_loss::ON_REDIS,
        #[cfg(target_os = "linux")]
        surroundings::ON_REDIS,
        tickets::ON_REDIS,
        watch::ON_REDIS,
    ];
    rig::main(&cases.concat(), &on_redis.concat(), servers::trials())
}
