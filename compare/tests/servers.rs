//! Comparisons on real servers that run already, one kind of server after the other.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
#[path = "servers/cases.rs"]
mod cases;
#[cfg(unix)]
#[path = "servers/known_for.rs"]
mod known_for;
#[cfg(unix)]
#[path = "servers/rig.rs"]
mod rig;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    use libtest_mimic::{Arguments, Completion, Trial};
    use lockkeeper_testkit::StoreKind;

    if std::env::args().nth(1).as_deref() == Some(rig::HOLDER) {
        return rig::hold();
    }
    // Not `suite::arguments`: that many cases of a hundred threads at a time would only slow each other.
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for kind in StoreKind::servers() {
        for (name, case) in cases::CASES {
            let run = move || match kind.ignored() {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => {
                    case(kind);
                    Ok(Completion::Completed)
                }
            };
            trials.push(Trial::ignorable_test(format!("{kind}::{name}"), run));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

#[cfg(not(unix))]
fn main() {}
