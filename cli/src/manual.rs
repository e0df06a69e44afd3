//! Completions and manual pages, made from the definition of the command line.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use lockkeeper::backend::drivers;

use crate::args::Args;
use crate::failure::Failure;
use crate::output;

/// Prints the completions of `shell`.
pub(crate) fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "lockkeeper", &mut text);
    output::exit_code(output::print(&String::from_utf8_lossy(&text)).map(|()| 0))
}

/// Prints all manual pages, one after the other, or writes each to a file in `folder`.
pub(crate) fn pages(folder: Option<&Path>) -> ExitCode {
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    let mut all = vec![command.clone()];
    all.extend(command.get_subcommands().cloned());
    output::exit_code(match folder {
        Some(folder) => write(&all, folder),
        None => print(&all),
    })
}

fn print(all: &[Command]) -> Result<u8, Failure> {
    let mut text = Vec::new();
    for page in all {
        render(page, &mut text)?;
    }
    output::print(&String::from_utf8_lossy(&text)).map(|()| 0)
}

fn write(all: &[Command], folder: &Path) -> Result<u8, Failure> {
    let failed = |error: io::Error| {
        Failure::system(
            &format!("write manual pages to {}", folder.display()),
            &error,
        )
    };
    fs::create_dir_all(folder).map_err(failed)?;
    for page in all {
        let mut text = Vec::new();
        let name = render(page, &mut text)?;
        fs::write(folder.join(format!("{name}.1")), text).map_err(failed)?;
    }
    Ok(0)
}

/// Writes a page, and returns its name.
fn render(command: &Command, into: &mut impl Write) -> Result<String, Failure> {
    let name = match command.get_name() {
        "lockkeeper" => "lockkeeper".to_owned(),
        sub => format!("lockkeeper-{sub}"),
    };
    let version = command.get_version().unwrap_or(env!("CARGO_PKG_VERSION"));
    let details = command.get_after_long_help().map(ToString::to_string);
    let page = Man::new(command.clone())
        .title(&name)
        .manual("lockkeeper")
        .source(format!("lockkeeper {version}"));
    let rendered = page
        .render_title(into)
        .and_then(|()| page.render_name_section(into))
        .and_then(|()| synopsis(command).to_writer(into))
        .and_then(|()| page.render_description_section(into))
        .and_then(|()| page.render_options_section(into))
        .and_then(|()| match command.has_subcommands() {
            true => page.render_subcommands_section(into),
            false => Ok(()),
        })
        .and_then(|()| match command.has_subcommands() {
            true => keys().to_writer(into),
            false => Ok(()),
        })
        .and_then(|()| sections(&details.unwrap_or_default()).to_writer(into));
    rendered.map_err(|error| Failure::system("write a manual page", &error))?;
    Ok(name)
}

/// Returns the synopsis of the help; that of `clap_mangen` lacks `--` and the values of options.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let mut page = Roff::new();
    page.control("SH", ["SYNOPSIS"]);
    page.control("nf", []);
    for line in usage.trim_start_matches("Usage:").lines() {
        page.text([roman(line.trim())]);
    }
    page.control("fi", []);
    page
}

/// Lists the keys of all stores.
fn keys() -> Roff {
    let drivers = drivers();
    let mut page = Roff::new();
    page.control("SH", ["KEYS"]);
    page.text([roman(
        "A URL takes them as ?KEY=VALUE&KEY=VALUE, the environment as LOCKKEEPER_KEY, a config file as \
         KEY = \"VALUE\".",
    )]);
    for (key, schemes) in drivers.keys() {
        let stores = match schemes.len() == drivers.schemes().count() {
            true => "all stores".to_owned(),
            false => schemes.join(", "),
        };
        page.control("TP", []);
        page.text([bold(key.name), roman(format!(" ({stores})"))]);
        let (takes, meaning, default) = (key.takes, key.meaning, key.default);
        page.text([roman(format!("{meaning}: {takes}. Default: {default}."))]);
    }
    page
}

/// Formats the end of the help: lines that end with a colon are headings, indented lines stay as
/// they are, and the rest is text.
fn sections(details: &str) -> Roff {
    let mut page = Roff::new();
    let mut is_table = false;
    for line in details.lines() {
        let indented = line.starts_with(' ');
        if indented != is_table {
            page.control(if indented { "nf" } else { "fi" }, []);
            is_table = indented;
        }
        match line.strip_suffix(':') {
            _ if line.is_empty() => page.control("PP", []),
            Some(heading) if !indented => page.control("SH", [heading.to_uppercase().as_str()]),
            _ => page.text([roman(line)]),
        };
    }
    if is_table {
        page.control("fi", []);
    }
    page
}
