//! Held names as a table, and a holder in a few words.

use std::time::SystemTime;

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle,
};
use lockkeeper::Mode;
use lockkeeper::admin::HeldName;

use super::Entry;
use crate::output;

/// Only a line under the header.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─'));
const NAMESPACE: &str = "namespace";
const MODE: &str = "mode";
const HEADER: [&str; 8] = [
    NAMESPACE, "name", MODE, "holder", "held for", "token", "left", "waiting",
];
/// The last columns are numbers.
const NUMBERS: usize = 4;

/// Makes a table of at most 80 columns; names and holders are wrapped, modes and numbers are not.
///
/// The namespace is a column if those of all namespaces are listed, and else the mode if a lock is not
/// exclusive. There is no room for both, so beside a namespace the mode is a part of the holder.
pub(super) fn table(held: &[Entry], now: SystemTime) -> String {
    let has_namespaces = held.iter().any(|(namespace, _)| namespace.is_some());
    let has_modes = held.iter().any(|(_, held)| held.mode != Mode::Exclusive);
    let is_shown = |title: &str| match title {
        NAMESPACE => has_namespaces,
        MODE => has_modes && !has_namespaces,
        _ => true,
    };
    let shown = |cells: [String; HEADER.len()]| {
        let cells = cells.into_iter().zip(HEADER);
        cells
            .filter(|(_, title)| is_shown(title))
            .map(|(cell, _)| cell)
    };
    let dash = || "-".to_owned();
    let rows = held.iter().map(|(namespace, held)| {
        let process = process(held).unwrap_or_else(dash);
        let holder = match has_namespaces && held.mode != Mode::Exclusive {
            true => format!("{}: {process}", mode(held)),
            false => process,
        };
        shown([
            namespace.as_deref().map(plain).unwrap_or_default(),
            name(held),
            mode(held),
            holder,
            held_for(held, now).unwrap_or_else(dash),
            held.token().map_or_else(dash, |token| token.to_string()),
            held.remaining.map_or_else(dash, output::format_span),
            held.waiting.map_or_else(dash, |count| count.to_string()),
        ])
    });
    let header: Vec<_> = shown(HEADER.map(str::to_owned)).collect();
    let columns = header.len();
    let mut table = Table::new();
    table
        .load_style(STYLE)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(output::WIDTH)
        .set_header(&header)
        .add_rows(rows);
    for ((index, column), title) in table.column_iter_mut().enumerate().zip(&header) {
        column.set_padding((0, if index + 1 < columns { 2 } else { 0 }));
        let is_number = index + NUMBERS >= columns;
        if is_number {
            column.set_cell_alignment(CellAlignment::Right);
        }
        if is_number || title == MODE {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.trim_fmt()
}

fn mode(held: &HeldName) -> String {
    match held.slot {
        Some(slot) => format!("slot {slot}"),
        None => held.mode.to_string(),
    }
}

/// Escapes a text from the store, so that it cannot move the terminal's cursor or reverse its lines.
/// Different texts stay different.
pub(crate) fn plain(text: &str) -> String {
    let quoted = format!("{text:?}");
    let inner = quoted.get(1..quoted.len() - 1);
    inner.unwrap_or(text).replace("\\\"", "\"")
}

fn name(held: &HeldName) -> String {
    let rest = if held.is_whole { "" } else { "…" };
    plain(&held.name) + rest
}

fn process(held: &HeldName) -> Option<String> {
    let holder = &held.holder;
    let pid = holder.pid.map(|pid| format!("pid {pid}"));
    let session = holder.session.as_deref().map(plain);
    let process = pid.or(session.map(|id| format!("session {id}")));
    let host = holder.host.as_deref().map(plain);
    let parts: Vec<_> = process.into_iter().chain(host).collect();
    let process = (!parts.is_empty()).then(|| parts.join(" on "));
    let label = holder.label.as_deref().map(plain);
    let label = label.map(|label| format!("[{label}]"));
    let parts: Vec<_> = label.into_iter().chain(process).collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

fn held_for(held: &HeldName, now: SystemTime) -> Option<String> {
    let span = now.duration_since(held.holder.since?);
    // The clocks of two hosts may differ.
    Some(output::format_span(span.unwrap_or_default()))
}

/// Describes a holder in a few words: `[report] pid 42 on web-1 (for 2m 5s)`.
pub(crate) fn holder(held: &HeldName, now: SystemTime) -> String {
    let process = process(held).unwrap_or_else(|| "an unknown process".to_owned());
    match held_for(held, now) {
        Some(span) => format!("{process} (for {span})"),
        None => process,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_is_shown_where_a_lock_is_not_exclusive() {
        let exclusive = HeldName::new("seat:42", "mark");
        let mut reader = HeldName::new("prices", "mark");
        reader.mode = Mode::Shared;
        let mut permit = HeldName::new("reports", "mark");
        permit.mode = Mode::Permit { limit: 5 };
        permit.slot = Some(4);
        let column = |number: usize, namespace: Option<&str>, held: &[&HeldName]| {
            let entry = |held: &&HeldName| (namespace.map(str::to_owned), (*held).clone());
            let held: Vec<Entry> = held.iter().map(entry).collect();
            let table = table(&held, SystemTime::now());
            let rows = table.lines().filter(|line| !line.starts_with('─'));
            let cell = |row: &str| {
                let mut cells = row.split("  ").filter(|cell| !cell.is_empty());
                Some(cells.nth(number)?.trim().to_owned())
            };
            rows.filter_map(cell).collect::<Vec<_>>()
        };
        let all = [&exclusive, &reader, &permit];
        assert_eq!(column(1, None, &[&exclusive]), ["holder", "-"]);
        assert_eq!(
            column(1, None, &all),
            ["mode", "exclusive", "shared", "slot 4"]
        );
        let expected = ["holder", "-", "shared: -", "slot 4: -"];
        assert_eq!(column(2, Some("shop"), &all), expected);
    }

    #[test]
    fn texts_from_the_store_are_escaped() {
        let mut held = HeldName::new("자리\u{1b}[2J", "mark");
        held.holder.pid = Some(42);
        held.holder.host = Some("web\n\u{9b}1".to_owned());
        assert_eq!(name(&held), "자리\\u{1b}[2J");
        let shown = holder(&held, SystemTime::now());
        assert_eq!(shown, "pid 42 on web\\n\\u{9b}1");
        held.holder.pid = None;
        held.holder.session = Some("7\r".to_owned());
        let shown = holder(&held, SystemTime::now());
        assert_eq!(shown, "session 7\\r on web\\n\\u{9b}1");
        held.holder.session = None;
        held.holder.label = Some("a\u{1b}b".to_owned());
        let shown = holder(&held, SystemTime::now());
        assert_eq!(shown, "[a\\u{1b}b] web\\n\\u{9b}1");
        held.holder.label = None;
        assert_eq!(holder(&held, SystemTime::now()), "web\\n\\u{9b}1");
        for (text, shown) in [
            ("it's \"ours\"", "it's \"ours\""),
            ("a\\nb", "a\\\\nb"),
            ("a\u{202e}b", "a\\u{202e}b"),
            ("", ""),
        ] {
            assert_eq!(plain(text), shown);
        }
    }
}
