//! `lockkeeper who`: lists the held locks and their holders.

use std::time::SystemTime;

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle,
};
use lockkeeper::admin::{Admin, HeldName};
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{LockKeeper, LockName};
use serde::Serialize;

use crate::args;
use crate::failure::{CONFIG, Failure};
use crate::output;
use crate::settings;

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    version: u32,
    store: &'a str,
    held: Vec<Row>,
    cannot_tell: &'a [&'a str],
}

#[derive(Serialize)]
struct Row {
    name: String,
    name_is_whole: bool,
    host: Option<String>,
    pid: Option<u32>,
    thread: Option<String>,
    session: Option<String>,
    since_unix_ms: Option<u64>,
    /// A string, since many JSON readers round integers of this size.
    token: Option<String>,
    remaining_ms: Option<u64>,
    waiting: Option<u64>,
}

impl From<&HeldName> for Row {
    fn from(held: &HeldName) -> Self {
        let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).ok();
        Self {
            name: held.name.clone(),
            name_is_whole: held.is_whole,
            host: held.holder.host.clone(),
            pid: held.holder.pid,
            thread: held.holder.thread.clone(),
            session: held.holder.session.clone(),
            since_unix_ms: held.holder.since.map(output::unix_millis),
            token: held.token().map(|token| token.to_string()),
            remaining_ms: held.remaining.and_then(millis),
            waiting: held.waiting,
        }
    }
}

/// Returns the exit status of `lockkeeper who`.
pub(crate) fn main(args: &args::Who) -> Result<u8, Failure> {
    let name = args.name.as_deref().map(LockName::new);
    let name = name.transpose().map_err(Failure::usage)?;
    let keeper = settings::open_existing(&args.store)?;
    let admin = admin(&keeper)?;
    let held = admin.held(name.as_ref(), SystemClock.now() + args.timeout)?;
    let cannot_tell = admin.cannot_tell();
    if args.json {
        output::print_json(&Report {
            schema: "lockkeeper-who",
            version: 1,
            store: keeper.backend(),
            held: held.iter().map(Row::from).collect(),
            cannot_tell,
        })?;
        return Ok(0);
    }
    let mut text = match (held.is_empty(), &name) {
        (true, Some(name)) => format!("{name:?} is not held."),
        (true, None) => "No lock is held.".to_owned(),
        (false, _) => table(&held, SystemTime::now()),
    };
    if !held.is_empty() && !cannot_tell.is_empty() {
        let store = keeper.backend();
        let note = format!("{store} has no data for: {}", cannot_tell.join(", "));
        for line in output::wrap("", &note) {
            text.push('\n');
            text.push_str(&line);
        }
    }
    output::print(&text).map(|()| 0)
}

/// Returns the store's view for operators, or an error if other processes cannot see the store.
pub(crate) fn admin(keeper: &LockKeeper) -> Result<&dyn Admin, Failure> {
    let store = keeper.backend();
    if store == "memory" {
        let text = "memory: can be seen only by its own process; name a store that processes share";
        return Err(Failure::new(CONFIG, text));
    }
    keeper.admin().ok_or_else(|| {
        let text = "cannot list or free locks; use the tools of the store";
        Failure::new(CONFIG, format!("the backend {store} {text}"))
    })
}

/// Only a line under the header.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─'));
const HEADER: [&str; 6] = ["name", "holder", "held for", "token", "left", "waiting"];
/// The columns with numbers.
const NUMBERS: std::ops::Range<usize> = 2..6;

/// Makes a table of at most 80 columns; names and holders are wrapped, numbers are not.
fn table(held: &[HeldName], now: SystemTime) -> String {
    let dash = || "-".to_owned();
    let rows = held.iter().map(|held| {
        [
            name(held),
            process(held).unwrap_or_else(dash),
            held_for(held, now).unwrap_or_else(dash),
            held.token().map_or_else(dash, |token| token.to_string()),
            held.remaining.map_or_else(dash, output::format_span),
            held.waiting.map_or_else(dash, |count| count.to_string()),
        ]
    });
    let mut table = Table::new();
    table
        .load_style(STYLE)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(output::WIDTH)
        .set_header(HEADER)
        .add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if index < HEADER.len() - 1 { 2 } else { 0 }));
        if NUMBERS.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.trim_fmt()
}

/// Escapes a text from the store, so that it cannot move the terminal's cursor or reverse its lines.
/// Different texts stay different.
fn plain(text: &str) -> String {
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
    (!parts.is_empty()).then(|| parts.join(" on "))
}

fn held_for(held: &HeldName, now: SystemTime) -> Option<String> {
    let span = now.duration_since(held.holder.since?);
    // The clocks of two hosts may differ.
    Some(output::format_span(span.unwrap_or_default()))
}

/// Describes a holder in a few words: `pid 42 on web-1 (for 2m 5s)`.
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
