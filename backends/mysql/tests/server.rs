//! What is this backend's own, on real servers: sessions that names share, what a lock costs, what
//! an operator sees, and what is said of a server that cannot be used.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
#[path = "server/admin.rs"]
mod admin;
#[cfg(unix)]
#[path = "server/opening.rs"]
mod opening;
#[cfg(unix)]
#[path = "server/proof.rs"]
mod proof;
#[cfg(unix)]
#[path = "server/reuse.rs"]
mod reuse;
#[cfg(unix)]
#[path = "server/rig.rs"]
mod rig;
#[cfg(unix)]
#[path = "server/sessions.rs"]
mod sessions;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    let cases = [
        sessions::CASES,
        opening::CASES,
        admin::CASES,
        proof::CASES,
        reuse::CASES,
    ];
    rig::main(cases.into_iter().flatten())
}

#[cfg(not(unix))]
fn main() {}
