//! `lockkeeper unlock --force`: takes a lock away from its holder.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::SystemTime;

use lockkeeper::LockName;
use lockkeeper::admin::HeldName;
use lockkeeper::clock::{Clock, SystemClock};

use crate::args;
use crate::failure::{Failure, USAGE};
use crate::output;
use crate::settings;
use crate::who::{admin, holder};

/// The user did not confirm, or the hold that was shown has ended.
const NOT_DONE: u8 = 1;

/// Returns the exit status of `lockkeeper unlock`.
pub(crate) fn main(args: &args::Unlock) -> Result<u8, Failure> {
    let name = LockName::new(args.name.as_str()).map_err(Failure::usage)?;
    let keeper = settings::open_existing(&args.store)?;
    let admin = admin(&keeper)?;
    let deadline = || SystemClock.now() + args.timeout;
    let Some(held) = admin.held(Some(&name), deadline())?.pop() else {
        output::print(&format!("{name:?} is not held."))?;
        return Ok(0);
    };
    // Not every store can list all names.
    let all = admin.held(None, deadline()).unwrap_or_default();
    let shown = match output::print(&describe(&name, &held, &all)) {
        // Without the description the question makes no sense.
        Err(failure) if !args.yes => {
            let text = format!("{failure}; nothing was done");
            return Err(Failure::new(failure.code, text));
        }
        shown => shown,
    };
    if !args.yes && !confirmed()? {
        return Err(Failure::new(NOT_DONE, "not confirmed; nothing was done"));
    }
    if admin.force_release(&held, deadline())? {
        let printed = shown.and_then(|()| output::print(&format!("Freed {name:?}.")));
        return printed.map(|()| 0).map_err(|failure| {
            Failure::new(failure.code, format!("freed {name:?}, but {failure}"))
        });
    }
    let text = "was released meanwhile, and another process may hold it; list the holders with `lockkeeper who`";
    Err(Failure::new(NOT_DONE, format!("{name:?} {text}")))
}

fn describe(name: &LockName, held: &HeldName, all: &[HeldName]) -> String {
    let mut text = format!("{name:?} is held by {}", holder(held, SystemTime::now()));
    if let Some(token) = held.token() {
        text.push_str(&format!(",\nwith the token {token}"));
    }
    match held.waiting {
        Some(0) => text.push_str("; no process waits for it"),
        Some(1) => text.push_str("; 1 process waits for it"),
        Some(many) => text.push_str(&format!("; {many} processes wait for it")),
        None => {}
    }
    text.push('.');
    let Some(session) = &held.holder.session else {
        return text;
    };
    text.push_str("\nThe holder's whole session is ended, with all names that it holds");
    let is_other = |other: &&HeldName| {
        other.holder.session.as_ref() == Some(session) && other.mark != held.mark
    };
    let names = all.iter().filter(is_other);
    let names: Vec<_> = names.map(|other| format!("{:?}", other.name)).collect();
    if !names.is_empty() {
        text.push_str(&format!(": {}, too", names.join(", ")));
    }
    text + "."
}

fn confirmed() -> Result<bool, Failure> {
    let mut stdin = io::stdin().lock();
    if !stdin.is_terminal() {
        let text = "there is no terminal to ask for confirmation; use --yes to confirm";
        return Err(Failure::new(USAGE, text));
    }
    let mut stderr = io::stderr().lock();
    let question = b"The holder may go on working until it notices. Free the lock? [y/N] ";
    let mut answer = String::new();
    let asked = stderr.write_all(question).and_then(|()| stderr.flush());
    asked
        .and_then(|()| stdin.read_line(&mut answer))
        .map_err(|error| Failure::system("ask for confirmation", &error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}
