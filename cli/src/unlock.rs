//! `lockkeeper unlock --force`: takes a lock from its holder.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::time::SystemTime;

use lockkeeper::{Clock, HeldName, LockName, SystemClock};

use crate::args;
use crate::say;
use crate::settings;
use crate::trouble::{Trouble, USAGE};
use crate::who::{admin, holder};

/// The user did not confirm, or the hold that was shown has ended.
const NOT_DONE: u8 = 1;

pub(crate) fn main(args: &args::Unlock) -> ExitCode {
    say::ended(unlock(args))
}

fn unlock(args: &args::Unlock) -> Result<u8, Trouble> {
    let name = LockName::new(args.name.as_str()).map_err(|error| Trouble::usage(&error))?;
    let keeper = settings::open_existing(&args.store)?;
    let admin = admin(&keeper)?;
    let soon = || SystemClock.now() + args.timeout;
    let Some(held) = admin.held(Some(&name), soon())?.pop() else {
        say::out(&format!("Nobody holds {name:?}."))?;
        return Ok(0);
    };
    // Not every store can list all names.
    let all = admin.held(None, soon()).unwrap_or_default();
    let shown = match say::out(&describe(&name, &held, &all)) {
        // Without the description the question makes no sense.
        Err(trouble) if !args.yes => {
            let text = format!("{trouble}; nothing was done");
            return Err(Trouble::new(trouble.code, text));
        }
        shown => shown,
    };
    if !args.yes && !confirmed()? {
        return Err(Trouble::new(NOT_DONE, "not confirmed; nothing was done"));
    }
    if admin.force_release(&held, soon())? {
        let told = shown.and_then(|()| say::out(&format!("Freed {name:?}.")));
        return told.map(|()| 0).map_err(|trouble| {
            Trouble::new(trouble.code, format!("freed {name:?}, but {trouble}"))
        });
    }
    Err(Trouble::new(
        NOT_DONE,
        format!(
            "{name:?} was released meanwhile, and somebody else may hold it; look again with `lockkeeper who`"
        ),
    ))
}

fn describe(name: &LockName, held: &HeldName, all: &[HeldName]) -> String {
    let mut text = format!("{name:?} is held by {}", holder(held, SystemTime::now()));
    if let Some(token) = held.token() {
        text.push_str(&format!(",\nwith the token {token}"));
    }
    match held.waiting {
        Some(0) => text.push_str("; nobody waits for it"),
        Some(1) => text.push_str("; 1 process waits for it"),
        Some(many) => text.push_str(&format!("; {many} processes wait for it")),
        None => {}
    }
    text.push('.');
    let Some(session) = &held.holder.session else {
        return text;
    };
    let others: Vec<_> = all
        .iter()
        .filter(|other| other.holder.session.as_ref() == Some(session) && other.mark != held.mark)
        .map(|other| format!("{:?}", other.name))
        .collect();
    text.push_str("\nIts whole session is ended, with all that it holds");
    if others.is_empty() {
        text.push('.');
    } else {
        text.push_str(&format!(": {}, too.", others.join(", ")));
    }
    text
}

fn confirmed() -> Result<bool, Trouble> {
    let mut stdin = io::stdin().lock();
    if !stdin.is_terminal() {
        return Err(Trouble::new(
            USAGE,
            "there is no terminal to ask on; say --yes if you mean it",
        ));
    }
    let mut stderr = io::stderr().lock();
    let asked = write!(
        stderr,
        "Its holder may go on working until it notices. Free it? [y/N] "
    )
    .and_then(|()| stderr.flush());
    let mut answer = String::new();
    asked
        .and_then(|()| stdin.read_line(&mut answer))
        .map_err(|error| Trouble::system("ask", &error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}
