//! All that is printed: results on stdout, progress and failures on stderr.

mod html;
mod progress;
mod summary;
mod table;

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::failure::Failure;
use crate::row::Report;

pub(crate) use progress::Progress;

/// What fits a terminal beside an editor, and a README.
const WIDTH: u16 = 100;

/// Where and how things are printed.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
}

impl Output {
    /// `json`: the results as JSON; `quiet`: no progress.
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self { json, quiet }
    }

    /// Shows what is running, for `total` rows.
    pub(crate) fn progress(&self, total: usize) -> Progress {
        Progress::new(total, self.quiet)
    }

    /// Prints what was measured.
    pub(crate) fn report(&self, report: &Report) -> Result<(), Failure> {
        let text = if self.json {
            let json = serde_json::to_string_pretty(report);
            json.map_err(|error| Failure::Failed(format!("cannot write JSON: {error}")))?
        } else if report.rows.is_empty() {
            return Ok(());
        } else {
            format!("{}\n\n{}", table::of(report), summary::of(report))
        };
        match writeln!(io::stdout().lock(), "{text}") {
            // Whoever read it had enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result.map_err(|error| {
                Failure::Failed(format!(
                    "cannot print the results: {error}; is the disk full?"
                ))
            }),
        }
    }

    /// Writes the page.
    pub(crate) fn page(&self, report: &Report, file: &Path) -> Result<(), Failure> {
        fs::write(file, html::of(report)).map_err(|error| {
            Failure::Failed(format!(
                "the page {} could not be written: {error}; is the disk full?",
                file.display()
            ))
        })
    }

    /// Says why the run ended early.
    pub(crate) fn failure(&self, failure: &Failure) {
        // Where even this cannot be said, the exit status still tells.
        let _ = writeln!(io::stderr().lock(), "error: {failure}");
    }
}
