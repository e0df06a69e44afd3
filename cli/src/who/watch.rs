//! `lockkeeper who --watch`: shows the list until Ctrl-C.
//!
//! At a terminal the list is redrawn in place. Elsewhere it is printed after each change, so a log or a
//! program gets each change once.

use std::time::SystemTime;

use lockkeeper::LockKeeper;

use super::{Entry, Listing, Query};
use crate::failure::{Failure, UNAVAILABLE};
use crate::output;
use crate::settings;

/// Moves the cursor to the first column of the first line.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
/// Makes the terminal cut lines that are too long, so that they take one row.
const WRAP_OFF: &str = "\x1b[?7l";
const WRAP_ON: &str = "\x1b[?7h";

/// Shows the list repeatedly, and returns when the reader of standard output is gone. Ctrl-C ends
/// this process by the signal's default action.
pub(super) fn watch(query: &Query<'_>) -> Result<u8, Failure> {
    let mut keeper = None;
    let mut view = match rows() {
        Some(_) if !query.args.json => View::Screen { is_drawn: false },
        _ => View::Changes(Shown::Nothing),
    };
    loop {
        let answer = ask(query, &mut keeper);
        if answer.is_err() {
            // A new keeper does not depend on what the outage broke.
            keeper = None;
        }
        let has_reader = match answer {
            Err(failure) if failure.code != UNAVAILABLE => return Err(failure),
            answer => view.show(query, &answer)?,
        };
        if !has_reader || !output::pause_while_read(query.args.interval) {
            return Ok(0);
        }
    }
}

fn ask(query: &Query<'_>, keeper: &mut Option<LockKeeper>) -> Result<Listing, Failure> {
    let keeper = match keeper {
        Some(keeper) => keeper,
        None => keeper.insert(settings::open_existing(&query.args.store)?),
    };
    query.ask(keeper)
}

enum View {
    Screen { is_drawn: bool },
    Changes(Shown),
}

/// What was printed last.
#[derive(PartialEq)]
enum Shown {
    Nothing,
    /// The holders, without the remaining time, which always changes.
    Held(Vec<Entry>),
    Outage,
}

impl View {
    /// Shows what the store replied. Returns false if the reader is gone.
    fn show(
        &mut self,
        query: &Query<'_>,
        answer: &Result<Listing, Failure>,
    ) -> Result<bool, Failure> {
        match self {
            Self::Screen { is_drawn } => {
                let start = match std::mem::replace(is_drawn, true) {
                    true => String::new(),
                    // The screen's content scrolls up, so the user can scroll back to it.
                    false => "\n".repeat(rows().unwrap_or_default()),
                };
                output::print_to_reader(&(start + &frame(query, answer)))
            }
            Self::Changes(shown) => {
                let now = Shown::of(answer);
                if *shown == now {
                    return Ok(true);
                }
                *shown = now;
                print_change(query, answer)
            }
        }
    }
}

impl Shown {
    fn of(answer: &Result<Listing, Failure>) -> Self {
        let Ok(listing) = answer else {
            return Self::Outage;
        };
        let mut held = listing.held.clone();
        for (_, held) in &mut held {
            held.remaining = None;
        }
        Self::Held(held)
    }
}

fn outage(failure: &Failure) -> String {
    format!("{failure}; lockkeeper goes on asking")
}

fn time() -> impl std::fmt::Display {
    humantime::format_rfc3339_seconds(SystemTime::now())
}

/// Prints a change: the time and the table, or a line of JSON, or an outage on standard error.
fn print_change(query: &Query<'_>, answer: &Result<Listing, Failure>) -> Result<bool, Failure> {
    let listing = match answer {
        Ok(listing) => listing,
        Err(failure) => {
            output::print_error(&outage(failure));
            return Ok(true);
        }
    };
    if query.args.json {
        let line = output::json(serde_json::to_string(&listing.report()))?;
        return output::print_to_reader(&(line + "\n"));
    }
    let text = listing.text(query);
    output::print_to_reader(&format!("{}\n{text}\n\n", time()))
}

/// Returns the text that redraws the terminal. It is written at once, so that the terminal does not flicker.
fn frame(query: &Query<'_>, answer: &Result<Listing, Failure>) -> String {
    let every = humantime::format_duration(query.args.interval);
    let text = match answer {
        Ok(listing) => listing.text(query),
        Err(failure) => output::wrap("", &outage(failure)).join("\n"),
    };
    let text = format!(
        "Every {every}, last at {}. Ctrl-C ends it.\n\n{text}",
        time()
    );
    // The cursor needs the last line.
    let room = rows().unwrap_or_default().saturating_sub(1);
    let mut frame = format!("{WRAP_OFF}{HOME}");
    for line in cut(&text, room) {
        frame.extend([&line, CLEAR_LINE, "\n"]);
    }
    frame + CLEAR_BELOW + WRAP_ON
}

/// Returns the lines of a text, at most `room`. If lines are missing, the last one says how many.
fn cut(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    if lines.len() > room {
        let left_out = lines.split_off(room.saturating_sub(1)).len();
        lines.push(format!(
            "… {left_out} more lines; all are shown without --watch"
        ));
    }
    lines
}

/// Returns the number of lines of a terminal that can be redrawn, or `None` if standard output is no
/// such terminal.
fn rows() -> Option<usize> {
    let stdout = std::io::stdout();
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    // 0 means that the terminal does not know its size.
    let rows = if size.ws_row == 0 { 24 } else { size.ws_row };
    (!is_dumb).then_some(rows.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_terminal_are_counted() {
        assert_eq!(cut("a\nb\nc", 3), ["a", "b", "c"]);
        let cut = cut("a\nb\nc\nd", 3);
        assert_eq!(
            cut,
            ["a", "b", "… 2 more lines; all are shown without --watch"]
        );
    }
}
