//! The text of a mode, in commands to child processes and in histories.

use lockkeeper_core::Mode;

/// Returns one word for a mode, with the limit of a permit.
pub(crate) fn text(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Permit { limit } => format!("permit:{limit}"),
    }
}

/// Parses what [`text`] returned.
pub(crate) fn parse(text: &str) -> Option<Mode> {
    match text {
        "exclusive" => Some(Mode::Exclusive),
        "shared" => Some(Mode::Shared),
        _ => {
            let limit = text.strip_prefix("permit:")?.parse().ok()?;
            Some(Mode::Permit { limit })
        }
    }
}
