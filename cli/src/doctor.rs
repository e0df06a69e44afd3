//! `lockkeeper doctor`: checks whether a store is fit for locks.

use lockkeeper::admin::{Finding, Severity};
use serde::Serialize;

use crate::args;
use crate::failure::Failure;
use crate::output;
use crate::settings::{self, NewFile};

mod checks;

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    version: u32,
    store: Option<&'a str>,
    verdict: &'static str,
    findings: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    severity: &'static str,
    topic: &'static str,
    what: &'a str,
    meaning: &'a str,
    advice: &'a str,
}

/// Returns the exit status of `lockkeeper doctor`.
pub(crate) fn main(args: &args::Doctor) -> Result<u8, Failure> {
    let mut store = None;
    // An error of the configuration is a finding, which opening reports.
    let new_file = NewFile::find(&args.store).ok().flatten();
    let open = || match &new_file {
        Some(file) => file.open(&args.store),
        None => settings::open_existing(&args.store),
    };
    let findings = match open() {
        Ok(keeper) => {
            store = Some(keeper.backend());
            let mut findings = checks::all(&open, &keeper);
            findings.extend(new_file.as_ref().map(|file| {
                let path = &file.path;
                let what =
                    format!("the first lock creates {path:?}; another file beside it was tried");
                Finding::fine("file", what)
            }));
            findings
        }
        Err(failure) => vec![Finding::unusable(
            "connect",
            failure.to_string(),
            "nothing else could be checked",
            "correct that, and run this again",
        )],
    };
    let worst = findings.iter().map(|finding| finding.severity).max();
    let worst = worst.unwrap_or(Severity::Fine);
    if args.json {
        output::print_json(&Report {
            schema: "lockkeeper-doctor",
            version: 1,
            store,
            verdict: worst.as_str(),
            findings: findings.iter().map(row).collect(),
        })?;
    } else {
        output::print(&text(&findings, worst))?;
    }
    Ok(match worst {
        Severity::Fine => 0,
        Severity::Warning => 1,
        Severity::Unusable => 2,
    })
}

fn row(finding: &Finding) -> Row<'_> {
    Row {
        severity: finding.severity.as_str(),
        topic: finding.topic,
        what: &finding.what,
        meaning: &finding.meaning,
        advice: &finding.advice,
    }
}

fn text(findings: &[Finding], worst: Severity) -> String {
    const INDENT: &str = "          ";
    let mut lines = Vec::new();
    for finding in findings {
        lines.extend(output::wrap(
            &format!("{:<10}", finding.severity),
            &finding.what,
        ));
        lines.extend(output::wrap(INDENT, &finding.meaning));
        if !finding.advice.is_empty() {
            lines.extend(output::wrap(&format!("{INDENT}-> "), &finding.advice));
        }
    }
    let count = |severity| findings.iter().filter(|f| f.severity == severity).count();
    lines.push(String::new());
    let (unusable, warned) = (count(Severity::Unusable), count(Severity::Warning));
    let counts = format!(
        "{unusable} unusable, {warned} with warnings, {} fine.",
        count(Severity::Fine)
    );
    lines.push(match worst {
        Severity::Fine => "Fine: no check found anything that breaks locks here.".to_owned(),
        Severity::Warning => format!("Warnings: {counts}"),
        Severity::Unusable => format!("Unusable: {counts}"),
    });
    lines.join("\n")
}
