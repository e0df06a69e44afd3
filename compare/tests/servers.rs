//! Comparisons on real servers that run already, one kind of server after the other. What they show does not depend on the
//! version of a server.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[path = "servers/cases.rs"]
mod cases;
#[path = "servers/known_for.rs"]
mod known_for;
#[path = "servers/rig.rs"]
mod rig;

use lockkeeper_testkit::{StoreKind, suite};

fn main() -> std::process::ExitCode {
    if std::env::args().nth(1).as_deref() == Some(rig::HOLDER) {
        return rig::hold();
    }
    let trials = StoreKind::servers().into_iter().flat_map(|kind| {
        cases::CASES
            .iter()
            .map(move |case| suite::trial(kind, *case))
    });
    let trials = trials.collect();
    // Not `suite::arguments`: that many cases of a hundred threads at a time would only slow each other.
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials).exit_code()
}
