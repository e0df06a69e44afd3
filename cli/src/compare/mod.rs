//! `lockkeeper compare`: shows what the package `lockkeeper-compare` measures.

mod progress;

use std::fs::{self, File};
use std::path::Path;

use lockkeeper::CancelToken;
use lockkeeper_compare::{Comparison, Error, StoreSpec, holder};

use self::progress::Progress;
use crate::args;
use crate::failure::{Failure, SYSTEM, USAGE};
use crate::output;
use crate::program::own_program;
use crate::settings::ConfigFile;

/// A row does not have its expected verdict, or the run failed.
const FAILED: u8 = 1;
/// The user pressed Ctrl-C: 128 + SIGINT, as in shells.
const INTERRUPTED: u8 = 130;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Invalid(_) => USAGE,
            Error::Interrupted => INTERRUPTED,
            _ => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

/// Runs a comparison, and returns the exit status. What was measured is shown even if the run ends
/// early.
pub(crate) fn main(args: &args::Compare) -> Result<u8, Failure> {
    if args.holder {
        holder::main()?;
        return Ok(0);
    }
    if let Some(file) = &args.html {
        // The user learns this now rather than after minutes.
        let open = File::options().append(true).create(true).open(file);
        open.map_err(|error| {
            let file = file.display();
            let text = format!("--html {file} cannot be written: {error}; choose another file");
            Failure::new(USAGE, text)
        })?;
    }
    let cancel = CancelToken::new();
    let on_signal = cancel.clone();
    ctrlc::set_handler(move || on_signal.cancel())
        .map_err(|error| Failure::system("listen for Ctrl-C", &error))?;
    let progress = Progress::new(args.quiet);
    let shown = progress.clone();
    let comparison = comparison(args)?
        .cancel(&cancel)
        .on_event(move |event| shown.on_event(event));
    let ran = comparison.run();
    progress.finish();
    let report = ran?;
    if args.json {
        output::print_json(&report)?;
    } else if !report.rows.is_empty() {
        output::print(&report.to_text())?;
    }
    if let Some(file) = &args.html {
        write(file, &report.to_html())?;
    }
    match &report.ended_by {
        Some(error) => Err(error.clone().into()),
        None if report.is_as_expected() => Ok(0),
        None => Ok(FAILED),
    }
}

fn comparison(args: &args::Compare) -> Result<Comparison, Failure> {
    let program = own_program().map_err(|error| Failure::system("find this program", &error))?;
    let mut comparison = Comparison::new()
        .threads(args.threads)
        .seats(args.seats)
        .items(args.items)
        .held(args.held)
        .repeat(args.repeat)
        .scenarios(args.scenario.iter().copied())
        .strategies(args.strategy.iter().copied())
        .servers(args.servers)
        .holder(program, ["compare", "--holder"]);
    for (number, url) in (1..).zip(&args.url) {
        comparison = comparison.store(StoreSpec::url(url).origin(format!("--url {number}")));
    }
    for file in &args.config {
        let stores = ConfigFile::new(file).stores().map_err(|failure| Failure {
            code: USAGE,
            ..failure
        })?;
        for store in stores {
            let origin = format!("{} of --config {}", store.shown(), file.display());
            comparison = comparison.store(StoreSpec::table(store.table)?.origin(origin));
        }
    }
    Ok(comparison)
}

fn write(file: &Path, page: &str) -> Result<(), Failure> {
    fs::write(file, page).map_err(|error| {
        let file = file.display();
        let text = format!("the page {file} could not be written: {error}; is the disk full?");
        Failure::new(SYSTEM, text)
    })
}
