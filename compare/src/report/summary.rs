//! What the table says, in sentences.

use super::row::{Report, Row};
use crate::scenario::Scenario;
use crate::scenario::limit::{KILLED, LIMIT};
use crate::scenario::slow::LATE_WRITE;
use crate::settings::Settings;
use crate::strategy::Strategy;
use crate::verdict::Verdict;

/// Columns that fit a terminal beside an editor, and a README.
pub(super) const WIDTH: u16 = 100;

/// Returns a sentence for each scenario, one for each row that does not have its expected verdict,
/// and what was left out.
pub(super) fn of(report: &Report) -> String {
    let complaints = report.rows.iter().filter_map(complaint);
    let lines = sentences(report).into_iter();
    let lines = lines.chain(complaints).chain(left_out(report));
    let lines: Vec<_> = lines.map(|line| wrapped(&line)).collect();
    lines.join("\n")
}

/// Returns a sentence for each scenario.
pub(super) fn sentences(report: &Report) -> Vec<String> {
    let scenarios = Scenario::ALL.into_iter();
    scenarios
        .filter_map(|scenario| sentence(scenario, report))
        .chain(beside_redlock(report))
        .collect()
}

/// Compares Redlock and the library on a quorum of the same servers: tokens, late writes and commands.
fn beside_redlock(report: &Report) -> Option<String> {
    let rows_of = |scenario| {
        let rows = report.rows.iter();
        let mut rows = rows.filter(move |row| row.scenario == scenario);
        let redlock = rows.find(|row| row.strategy == Strategy::Redlock)?;
        let ours = rows.find(|row| row.strategy == Strategy::Lockkeeper)?;
        (ours.store == redlock.store).then_some([redlock, ours])
    };
    let [redlock, ours] = rows_of(Scenario::Slow)?;
    let lets_through = |row: &Row| row.faults.iter().any(|fault| fault == LATE_WRITE);
    if !lets_through(redlock) || lets_through(ours) {
        return None;
    }
    let commands = rows_of(Scenario::Gather).and_then(|rows| {
        let [redlock, ours] = rows.map(|row| row.commands_per_grant);
        let (redlock, ours) = (redlock?, ours?);
        Some(format!(
            "; a grant of gather took {redlock:.1} and {ours:.1} commands"
        ))
    });
    Some(format!(
        "On the same five servers redlock had no tokens and let the late write through, and lockkeeper on their \
         {} refused it by its token{}.",
        ours.store,
        commands.unwrap_or_default()
    ))
}

/// Returns what was left out; neighbours with the same reason share a sentence.
fn left_out(report: &Report) -> Vec<String> {
    let groups = report.left_out.chunk_by(|one, next| one.why == next.why);
    let left_out = groups.filter_map(|group| {
        let names: Vec<_> = group.iter().map(|left| left.strategy.name()).collect();
        let why = group.first()?.why;
        Some(format!("Left out: {} ({why}).", names.join(", ")))
    });
    let missing = report.missing.iter();
    let missing = missing.map(|why| format!("Not started: {why}."));
    left_out.chain(missing).collect()
}

fn sentence(scenario: Scenario, report: &Report) -> Option<String> {
    let of = |strategy| -> Vec<&Row> {
        let rows = report.rows.iter();
        rows.filter(|row| row.scenario == scenario && row.strategy == strategy)
            .collect()
    };
    let outcomes = [
        with_a_lock(scenario, &of(Strategy::Lockkeeper)),
        worst(&of(Strategy::None)).map(|row| without(scenario, row)),
        worst(&of(Strategy::FreedEarly)).map(|row| {
            let sold = row.admitted;
            format!("freed before the commit, the lock let {sold} book it")
        }),
    ];
    let outcomes: Vec<_> = outcomes.into_iter().flatten().collect();
    let question = question(scenario, &report.settings);
    (!outcomes.is_empty()).then(|| format!("{question}: {}.", outcomes.join("; ")))
}

/// Says what a scenario is about, with the numbers of this run.
pub(super) fn question(scenario: Scenario, settings: &Settings) -> String {
    let Settings {
        threads,
        seats,
        items,
        ..
    } = settings;
    match scenario {
        Scenario::Gather => format!("{threads} threads wanted {seats} seats"),
        Scenario::Stock => format!("{threads} buyers wanted {items} items"),
        Scenario::Seat => format!("{threads}, then {} threads wanted one seat", threads * 2),
        Scenario::Party => "Parties of three wanted overlapping seats".to_owned(),
        Scenario::Nested => "The holder took the lock a second time".to_owned(),
        Scenario::Slow => "The work took longer than the lease".to_owned(),
        Scenario::Crash => "The holder was killed".to_owned(),
        Scenario::Limit => {
            format!("{threads} threads wanted {LIMIT} permits, and a holder of {KILLED} was killed")
        }
        Scenario::Catalog => format!("{threads} threads read and wrote two rows that must agree"),
    }
}

/// Returns a sentence about the library, if it was right on every store. If it was not, a complaint says so.
fn with_a_lock(scenario: Scenario, rows: &[&Row]) -> Option<String> {
    let first = rows.first()?;
    if rows.iter().any(|row| row.verdict == Verdict::Wrong) {
        return None;
    }
    let stores = match rows.len() {
        1 => &first.store,
        _ => "every store",
    };
    Some(match scenario {
        Scenario::Gather => format!("lockkeeper let in exactly {} on {stores}", first.admitted),
        Scenario::Stock => format!("lockkeeper sold exactly {} on {stores}", first.admitted),
        Scenario::Seat => format!("with lockkeeper exactly 1 had it, each time, on {stores}"),
        Scenario::Party => format!("with lockkeeper no set was split on {stores}"),
        Scenario::Nested => format!(
            "lockkeeper gave it to the same thread, and freed it with the outermost, on {stores}"
        ),
        Scenario::Slow => format!(
            "on {stores} lockkeeper kept others out where it renewed the lease, and refused the \
             late write where it did not"
        ),
        Scenario::Crash => format!("lockkeeper let the next one in on {stores}, in time"),
        Scenario::Limit => {
            format!(
                "on {stores} lockkeeper let in {LIMIT} at a time, and granted the {KILLED} permits again in time"
            )
        }
        Scenario::Catalog => {
            format!(
                "with lockkeeper they agreed for all readers on {stores}, and no writer starved"
            )
        }
    })
}

/// Returns the row with the worst outcome, of those that are wrong.
fn worst<'a>(rows: &[&'a Row]) -> Option<&'a Row> {
    let wrong = rows.iter().filter(|row| row.verdict == Verdict::Wrong);
    wrong.max_by_key(|row| row.oversold).copied()
}

/// Says what happened without a lock.
fn without(scenario: Scenario, worst: &Row) -> String {
    let Row {
        admitted, oversold, ..
    } = worst;
    match scenario {
        Scenario::Gather => format!("without a lock {admitted} got in"),
        Scenario::Stock => format!("without a lock {admitted} were sold"),
        Scenario::Seat => format!("without a lock {admitted} had it"),
        Scenario::Party => format!("without a lock {oversold} parties lost seats that were theirs"),
        Scenario::Nested => "without a lock another came in meanwhile".to_owned(),
        Scenario::Slow => "without a lock the late write replaced the good one".to_owned(),
        Scenario::Crash => "without a lock another was let in before".to_owned(),
        Scenario::Limit => format!(
            "without one {} held a permit at once",
            oversold + u64::from(LIMIT)
        ),
        Scenario::Catalog => {
            format!("without a lock {oversold} reads and updates went wrong")
        }
    }
}

/// Says what is wrong with a row that does not have its expected verdict.
fn complaint(row: &Row) -> Option<String> {
    if row.is_as_expected() {
        return None;
    }
    let why = match row.verdict {
        Verdict::Wrong => row.faults.join("; "),
        Verdict::Right => {
            "it happened to be right, so nothing was shown; use more --threads or a longer --held"
                .to_owned()
        }
    };
    Some(format!(
        "NOT AS IT MUST BE: {} on {} with {}: {why}.",
        row.scenario, row.store, row.strategy
    ))
}

/// Breaks a text between words, and indents all lines but the first.
fn wrapped(text: &str) -> String {
    const INDENT: &str = "  ";
    let (mut all, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.len() + 1 + word.len() > usize::from(WIDTH) {
            all.push_str(&line);
            all.push('\n');
            line = INDENT.to_owned();
        } else if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    all + &line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_between_words() {
        let text = "word ".repeat(45);
        let lines = wrapped(text.trim());
        assert!(lines.lines().all(|line| line.len() <= 100), "{lines}");
        assert_eq!(lines.lines().count(), 3);
        assert_eq!(lines.matches("word").count(), 45);
    }
}
