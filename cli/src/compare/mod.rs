//! `lockkeeper compare`: shows what the package `lockkeeper-compare` measures.

mod progress;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lockkeeper::CancelToken;
use lockkeeper_compare::{Comparison, Error, StoreSpec, holder};

use self::progress::Progress;
use crate::args;
use crate::say;
use crate::settings;
use crate::trouble::{SYSTEM, Trouble};

/// A row does not have its expected verdict, or the run failed.
const FAILED: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;
/// The user pressed Ctrl-C: 128 + SIGINT, as in shells.
const INTERRUPTED: u8 = 130;

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Invalid(_) => USAGE,
            Error::Interrupted => INTERRUPTED,
            _ => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

pub(crate) fn main(args: &args::Compare) -> ExitCode {
    say::ended(compare(args))
}

/// Runs a comparison. What was measured is shown even if the run ends early.
fn compare(args: &args::Compare) -> Result<u8, Trouble> {
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
            Trouble::new(USAGE, text)
        })?;
    }
    let cancel = CancelToken::new();
    let on_signal = cancel.clone();
    ctrlc::set_handler(move || on_signal.cancel())
        .map_err(|error| Trouble::system("listen for Ctrl-C", &error))?;
    let progress = Progress::new(args.quiet);
    let shown = progress.clone();
    let comparison = comparison(args)?
        .cancel(&cancel)
        .on_event(move |event| shown.on_event(event));
    let ran = comparison.run();
    progress.finish();
    let report = ran?;
    if args.json {
        say::json(&report)?;
    } else if !report.rows.is_empty() {
        say::out(&report.to_text())?;
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

fn comparison(args: &args::Compare) -> Result<Comparison, Trouble> {
    let mut comparison = Comparison::new()
        .threads(args.threads)
        .seats(args.seats)
        .items(args.items)
        .held(args.held)
        .repeat(args.repeat)
        .scenarios(args.scenario.iter().copied())
        .strategies(args.strategy.iter().copied())
        .servers(args.servers)
        .holder(own_program()?, ["compare", "--holder"]);
    for (number, url) in (1..).zip(&args.url) {
        comparison = comparison.store(StoreSpec::url(url).origin(format!("--url {number}")));
    }
    for file in &args.config {
        let stores = settings::stores(file).map_err(|trouble| Trouble {
            code: USAGE,
            ..trouble
        })?;
        for (name, table) in stores {
            let origin = format!("{name} of --config {}", file.display());
            comparison = comparison.store(StoreSpec::table(table)?.origin(origin));
        }
    }
    Ok(comparison)
}

/// Returns the path of this program, which works even if its file was replaced meanwhile.
fn own_program() -> Result<PathBuf, Trouble> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe().map_err(|error| Trouble::system("find this program", &error))
}

fn write(file: &Path, page: &str) -> Result<(), Trouble> {
    fs::write(file, page).map_err(|error| {
        let file = file.display();
        let text = format!("the page {file} could not be written: {error}; is the disk full?");
        Trouble::new(SYSTEM, text)
    })
}
