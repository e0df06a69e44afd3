//! Printing, for all commands: results to standard output, messages to standard error.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::failure::{Failure, SYSTEM};

/// The columns of the narrowest usual terminal.
pub(crate) const WIDTH: u16 = 80;

/// Prints to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    check_printed(writeln!(io::stdout().lock(), "{text}"))
}

/// Converts the result of printing. A reader that closed the pipe early is no error.
pub(crate) fn check_printed(result: io::Result<()>) -> Result<(), Failure> {
    is_read(result).map(drop)
}

/// Prints to standard output, and returns whether a reader is left.
pub(crate) fn print_to_reader(text: &str) -> Result<bool, Failure> {
    is_read(io::stdout().lock().write_all(text.as_bytes()))
}

/// Pauses for `limit`, or until the reader of standard output is gone. Returns whether there is still a
/// reader.
pub(crate) fn pause_while_read(limit: Duration) -> bool {
    {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let stdout = io::stdout();
        // Without a flag, the kernel reports only a closed end.
        let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
        let time = Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // It fails if a signal interrupts it.
        if let Ok(closed) = poll(&mut polled, Some(&time)) {
            return closed == 0;
        }
    }
    std::thread::sleep(limit);
    true
}

fn is_read(result: io::Result<()>) -> Result<bool, Failure> {
    match result.and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            let text = format!("cannot print: {error}; is the disk full?");
            Err(Failure::new(SYSTEM, text))
        }
    }
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    print(&json(serde_json::to_string_pretty(value))?)
}

/// Returns a JSON text in which each character that a terminal does not show as it is, is escaped. Examples are C1
/// controls and changes of direction. Such characters occur only in strings.
pub(crate) fn json(text: serde_json::Result<String>) -> Result<String, Failure> {
    let text = text.map_err(|error| Failure::system("write JSON", &error))?;
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if char != '\u{7f}' && (char.is_ascii() || char.escape_debug().len() == 1) {
            shown.push(char);
            continue;
        }
        for unit in char.encode_utf16(&mut [0; 2]) {
            shown.push_str(&format!("\\u{unit:04x}"));
        }
    }
    Ok(shown)
}

/// Prints one line to standard error.
pub(crate) fn print_error(text: &str) {
    // If standard error is closed, the exit status still shows the failure.
    let _ = writeln!(io::stderr().lock(), "lockkeeper: {text}");
}

/// Returns the exit status of a command, and prints its error.
pub(crate) fn exit_code(result: Result<u8, Failure>) -> ExitCode {
    ExitCode::from(result.unwrap_or_else(|failure| {
        print_error(&failure.to_string());
        failure.code
    }))
}

/// Formats a duration in its largest units: `250ms`, `9s`, `2m 5s`, `3h 20m`.
pub(crate) fn format_span(span: Duration) -> String {
    let whole = span.as_secs();
    match whole {
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{whole}s"),
        60..3_600 => format!("{}m {}s", whole / 60, whole % 60),
        3_600..86_400 => format!("{}h {}m", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{}d {}h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

/// Breaks a text into lines that fit the terminal, with `start` before the first one and as many
/// spaces before the others.
pub(crate) fn wrap(start: &str, text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let fits =
            |line: &String| line.chars().count() + 1 + word.chars().count() <= usize::from(WIDTH);
        match lines.last_mut() {
            None => lines.push(format!("{start}{word}")),
            Some(line) if fits(line) => line.extend([" ", word]),
            Some(_) => lines.push(format!("{:1$}{word}", "", start.len())),
        }
    }
    lines
}

/// Returns the milliseconds since 1970.
pub(crate) fn unix_millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (millis, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (59_900, "59s"),
            (125_000, "2m 5s"),
            (12_000_000, "3h 20m"),
            (180_000_000, "2d 2h"),
        ] {
            assert_eq!(format_span(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn json_has_no_character_that_a_terminal_obeys() {
        let text = "a\u{9b}31m \u{202e}\u{2066} e\u{301} \u{e0001} 자리 \u{7f}\n";
        let shown = json(serde_json::to_string(text)).unwrap();
        assert_eq!(
            shown,
            r#""a\u009b31m \u202e\u2066 e\u0301 \udb40\udc01 자리 \u007f\n""#
        );
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
    }

    #[test]
    fn text_is_wrapped_between_words() {
        let text = "word ".repeat(60);
        let lines = wrap("warning   ", &text);
        assert!(lines.len() > 3);
        for (index, line) in lines.iter().enumerate() {
            assert!(line.len() <= 80, "{line}");
            assert_eq!(line.starts_with("warning   word"), index == 0);
            assert!(line.ends_with("word"));
        }
        assert!(wrap("x", "").is_empty());
    }
}
