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
#[path = "run/claims.rs"]
mod claims;
#[cfg(unix)]
#[path = "run/configs.rs"]
mod configs;
#[cfg(unix)]
#[path = "run/crowd.rs"]
mod crowd;
#[cfg(unix)]
#[path = "run/doctor.rs"]
mod doctor;
#[cfg(unix)]
#[path = "run/exits.rs"]
mod exits;
#[cfg(unix)]
#[path = "run/loss.rs"]
mod loss;
#[cfg(target_os = "linux")]
#[path = "run/mode_claims.rs"]
mod mode_claims;
#[cfg(unix)]
#[path = "run/modes.rs"]
mod modes;
#[cfg(unix)]
#[path = "run/opening.rs"]
mod opening;
#[cfg(unix)]
#[path = "run/operate.rs"]
mod operate;
#[cfg(unix)]
#[path = "run/rig.rs"]
mod rig;
#[cfg(unix)]
#[path = "run/scripts.rs"]
mod scripts;
#[cfg(unix)]
#[path = "run/servers.rs"]
mod servers;
#[cfg(unix)]
#[path = "run/several.rs"]
mod several;
#[cfg(unix)]
#[path = "run/signals.rs"]
mod signals;
#[cfg(unix)]
#[path = "run/store_loss.rs"]
mod store_loss;
#[cfg(target_os = "linux")]
#[path = "run/surroundings.rs"]
mod surroundings;
#[cfg(unix)]
#[path = "run/terminal.rs"]
mod terminal;
#[cfg(unix)]
#[path = "run/watch.rs"]
mod watch;

#[cfg(unix)]
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
        watch::CASES,
    ];
    let on_redis = [
        doctor::ON_REDIS,
        opening::ON_REDIS,
        store_loss::ON_REDIS,
        #[cfg(target_os = "linux")]
        surroundings::ON_REDIS,
        watch::ON_REDIS,
    ];
    rig::main(&cases.concat(), &on_redis.concat(), servers::trials())
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
