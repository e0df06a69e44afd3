//! `lockkeeper unlock --force`: takes a lock away from its holder.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::SystemTime;

use lockkeeper::admin::{Admin, HeldName};
use lockkeeper::clock::{Clock, HostInstant, SystemClock};
use lockkeeper::{LockName, Mode};

use crate::args::{self, Choice};
use crate::failure::{Failure, USAGE};
use crate::output;
use crate::settings;
use crate::who::{admin, holder, list};

/// The user did not confirm, or the hold that was shown has ended.
const NOT_DONE: u8 = 1;

/// Returns the exit status of `lockkeeper unlock`.
pub(crate) fn main(args: &args::Unlock) -> Result<u8, Failure> {
    let name = args.name.as_deref().map(LockName::new);
    let name = name.transpose().map_err(Failure::usage)?;
    let prefix = args.prefix.as_deref().unwrap_or_default();
    // For messages.
    let target = match &name {
        Some(name) => format!("{name:?}"),
        None => format!("{prefix:?}…"),
    };
    let keeper = settings::open_existing(&args.store)?;
    let admin = admin(&keeper)?;
    let deadline = || SystemClock.now() + args.timeout;
    let mut held = admin.held(name.as_ref(), deadline())?;
    held.retain(|held| held.name.starts_with(prefix));
    let (chosen, others): (Vec<_>, Vec<_>) =
        (held.into_iter()).partition(|held| args.choice.includes(held));
    if chosen.is_empty() {
        output::print(&match others.len() {
            0 => format!("{target} is not held."),
            _ => format!(
                "{target} has no such holder; it is held by\n{}",
                list(&others)
            ),
        })?;
        return Ok(0);
    }
    if chosen.len() > 1 && !args.choice.all {
        output::print(&list(&chosen))?;
        return Err(Failure::new(USAGE, ambiguous(&target, &chosen)));
    }
    // Not every store can list all names.
    let all = admin.held(None, deadline()).unwrap_or_default();
    let shown = match output::print(&describe(&chosen, &all)) {
        // Without the description the question makes no sense.
        Err(failure) if !args.yes => {
            let text = format!("{failure}; nothing was done");
            return Err(Failure::new(failure.code, text));
        }
        shown => shown,
    };
    if !args.yes && !confirmed(chosen.len())? {
        return Err(Failure::new(NOT_DONE, "not confirmed; nothing was done"));
    }
    let (count, done) = (chosen.len(), free(admin, &chosen, deadline)?);
    let what = match chosen.as_slice() {
        [held] => subject(held),
        _ => format!("{done} of {count} holds of {target}"),
    };
    if done > 0 {
        let printed = shown.and_then(|()| output::print(&format!("Freed {what}.")));
        printed.map_err(|failure| {
            Failure::new(failure.code, format!("freed {what}, but {failure}"))
        })?;
    }
    if done == count {
        return Ok(0);
    }
    let text = "was released meanwhile, and another process may hold it; list the holders with `lockkeeper who`";
    Err(Failure::new(NOT_DONE, format!("{target} {text}")))
}

/// Frees what these holders have, and returns of how many.
fn free(
    admin: &dyn Admin,
    chosen: &[HeldName],
    deadline: impl Fn() -> HostInstant,
) -> Result<usize, Failure> {
    let mut freed: Vec<&HeldName> = Vec::new();
    for held in chosen {
        let is_freed = is_session_of(held, &freed)
            || admin.force_release(held, deadline()).map_err(|error| {
                let mut failure = Failure::from(error);
                if !freed.is_empty() {
                    let (count, done) = (chosen.len(), freed.len());
                    failure.text = format!("{}; freed {done} of {count} holds", failure.text);
                }
                failure
            })?;
        if is_freed {
            freed.push(held);
        }
    }
    Ok(freed.len())
}

/// Returns why holders have to be chosen, and how.
fn ambiguous(target: &str, held: &[HeldName]) -> String {
    let example = held.iter().find_map(Choice::of);
    let example = example.map_or_else(String::new, |options| format!(", such as {options}"));
    format!(
        "{target} has {} holders, and nothing was done; add an option that chooses one{example}, or \
         --all to free all of them",
        held.len()
    )
}

/// Returns whether a hold has ended with the session of another one.
fn is_session_of(held: &HeldName, ended: &[&HeldName]) -> bool {
    let session = &held.holder.session;
    session.is_some() && ended.iter().any(|other| other.holder.session == *session)
}

fn describe(held: &[HeldName], all: &[HeldName]) -> String {
    let mut text = match held {
        [held] => describe_one(held),
        _ => list(held),
    };
    let held: Vec<_> = held.iter().collect();
    if held.iter().all(|held| held.holder.session.is_none()) {
        return text;
    }
    text.push_str(match held.len() {
        1 => "\nThe holder's whole session is ended, with all names that it holds",
        _ => "\nThe whole sessions of the holders are ended, with all names that they hold",
    });
    let is_chosen = |other: &HeldName| held.iter().any(|held| held.mark == other.mark);
    let others = all
        .iter()
        .filter(|other| is_session_of(other, &held) && !is_chosen(other));
    let names: Vec<_> = others.map(|other| format!("{:?}", other.name)).collect();
    if !names.is_empty() {
        text.push_str(&format!(": {}, too", names.join(", ")));
    }
    text + "."
}

/// Returns what one holder has.
fn subject(held: &HeldName) -> String {
    let name = &held.name;
    match (held.mode, held.slot) {
        (_, Some(slot)) => format!("{name:?} (slot {slot})"),
        (Mode::Shared, None) => format!("{name:?} (shared)"),
        (_, None) => format!("{name:?}"),
    }
}

fn describe_one(held: &HeldName) -> String {
    let (what, holder) = (subject(held), holder(held, SystemTime::now()));
    let mut text = format!("{what} is held by {holder}");
    if let Some(token) = held.token() {
        text.push_str(&format!(",\nwith the token {token}"));
    }
    match held.waiting {
        Some(0) => text.push_str("; no process waits for it"),
        Some(1) => text.push_str("; 1 process waits for it"),
        Some(many) => text.push_str(&format!("; {many} processes wait for it")),
        None => {}
    }
    text + "."
}

fn confirmed(holders: usize) -> Result<bool, Failure> {
    let mut stdin = io::stdin().lock();
    if !stdin.is_terminal() {
        let text = "there is no terminal to ask for confirmation; use --yes to confirm";
        return Err(Failure::new(USAGE, text));
    }
    let mut stderr = io::stderr().lock();
    let question = match holders {
        1 => "The holder may go on working until it notices. Free the lock? [y/N] ",
        _ => "The holders may go on working until they notice. Free all of them? [y/N] ",
    };
    let mut answer = String::new();
    let asked = stderr
        .write_all(question.as_bytes())
        .and_then(|()| stderr.flush());
    asked
        .and_then(|()| stdin.read_line(&mut answer))
        .map_err(|error| Failure::system("ask for confirmation", &error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}
