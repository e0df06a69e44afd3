//! What the table says, in sentences: only what was measured.

use super::WIDTH;
use crate::row::{Report, Row, Settings, Verdict};
use crate::scenario::Scenario;
use crate::strategy::Kind;

/// A sentence for each scenario, and one for each row that is not as it must be.
pub(super) fn of(report: &Report) -> String {
    let scenarios = [Scenario::Gather, Scenario::Stock, Scenario::Slow];
    let said = scenarios
        .into_iter()
        .filter_map(|scenario| sentence(scenario, report));
    let complaints = report.rows.iter().filter_map(complaint);
    let lines: Vec<_> = said.chain(complaints).map(|line| wrapped(&line)).collect();
    lines.join("\n")
}

fn sentence(scenario: Scenario, report: &Report) -> Option<String> {
    let of = |strategy| -> Vec<&Row> {
        let rows = report.rows.iter();
        rows.filter(|row| row.scenario == scenario && row.strategy == strategy)
            .collect()
    };
    let said = [
        with_a_lock(scenario, &of(Kind::Lockkeeper)),
        without(scenario, &of(Kind::None)),
    ];
    let said: Vec<_> = said.into_iter().flatten().collect();
    let question = question(scenario, &report.settings);
    (!said.is_empty()).then(|| format!("{question}: {}.", said.join("; ")))
}

fn question(scenario: Scenario, settings: &Settings) -> String {
    let Settings {
        threads,
        seats,
        items,
        ..
    } = settings;
    match scenario {
        Scenario::Gather => format!("{threads} threads wanted {seats} seats"),
        Scenario::Stock => format!("{threads} buyers wanted {items} items"),
        Scenario::Slow => "The work took longer than the lease".to_owned(),
    }
}

/// What the library did, where it was right on every store; where not, the complaint says it.
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
        Scenario::Slow => format!(
            "on {stores} lockkeeper kept others out where it renewed the lease, and refused the \
             late write where it did not"
        ),
    })
}

/// What happened without a lock, on the store where it went worst.
fn without(scenario: Scenario, rows: &[&Row]) -> Option<String> {
    let wrong = rows.iter().filter(|row| row.verdict == Verdict::Wrong);
    let worst = wrong.max_by_key(|row| row.oversold)?;
    Some(match scenario {
        Scenario::Gather => format!("without a lock {} got in", worst.admitted),
        Scenario::Stock => format!("without a lock {} were sold", worst.admitted),
        Scenario::Slow => "without a lock the late write replaced the good one".to_owned(),
    })
}

/// What is wrong with a row that is not as it must be.
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

/// Broken between words, the lines after the first indented.
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
