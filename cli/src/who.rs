//! `lockkeeper who`: lists the held locks and their holders.

mod table;
mod watch;

use std::time::SystemTime;

use lockkeeper::admin::{Admin, HeldName};
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{LockKeeper, LockName, Mode};
use serde::Serialize;

use crate::args;
use crate::failure::{CONFIG, Failure};
use crate::output;
use crate::settings;

pub(crate) use self::table::{holder, plain};

/// The exit status if the name, or no name with the prefix, is held.
const FREE: u8 = 1;

/// A held name. Its namespace is known if those of all namespaces are listed.
type Entry = (Option<String>, HeldName);

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
    namespace: Option<String>,
    name: String,
    name_is_whole: bool,
    mode: String,
    slot: Option<u32>,
    permits: Option<u32>,
    host: Option<String>,
    pid: Option<u32>,
    label: Option<String>,
    session: Option<String>,
    since_unix_ms: Option<u64>,
    /// A string, since many JSON readers round integers of this size.
    token: Option<String>,
    remaining_ms: Option<u64>,
    waiting: Option<u64>,
}

impl From<&Entry> for Row {
    fn from((namespace, held): &Entry) -> Self {
        let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).ok();
        Self {
            namespace: namespace.clone(),
            name: held.name.clone(),
            name_is_whole: held.is_whole,
            mode: held.mode.to_string(),
            slot: held.slot,
            permits: match held.mode {
                Mode::Permit { limit } => Some(limit).filter(|limit| *limit > 0),
                Mode::Exclusive | Mode::Shared => None,
            },
            host: held.holder.host.clone(),
            pid: held.holder.pid,
            label: held.holder.label.clone(),
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
    let query = Query { args, name };
    if args.watch {
        return watch::watch(&query);
    }
    let listing = query.ask(&settings::open_existing(&args.store)?)?;
    match args.json {
        true => output::print_json(&listing.report())?,
        false => output::print(&listing.text(&query))?,
    }
    let is_test = query.name.is_some() || args.prefix.is_some();
    Ok(if is_test && listing.held.is_empty() {
        FREE
    } else {
        0
    })
}

/// What is asked of a store.
struct Query<'a> {
    args: &'a args::Who,
    /// The only name to list.
    name: Option<LockName>,
}

/// What a store replied.
struct Listing {
    store: &'static str,
    held: Vec<Entry>,
    cannot_tell: &'static [&'static str],
}

impl Query<'_> {
    fn ask(&self, keeper: &LockKeeper) -> Result<Listing, Failure> {
        let args = self.args;
        let admin = admin(keeper)?;
        let deadline = SystemClock.now() + args.timeout;
        let mut held: Vec<Entry> = if args.all_namespaces {
            let held = admin.held_in_all_namespaces(deadline)?.into_iter();
            held.map(|(namespace, held)| (Some(namespace), held))
                .collect()
        } else {
            let held = admin.held(self.name.as_ref(), deadline)?.into_iter();
            held.map(|held| (None, held)).collect()
        };
        let prefix = args.prefix.as_deref().unwrap_or_default();
        held.retain(|(_, held)| held.name.starts_with(prefix));
        Ok(Listing {
            store: keeper.backend(),
            held,
            cannot_tell: admin.cannot_tell(),
        })
    }
}

impl Listing {
    fn report(&self) -> Report<'_> {
        Report {
            schema: "lockkeeper-who",
            version: 1,
            store: self.store,
            held: self.held.iter().map(Row::from).collect(),
            cannot_tell: self.cannot_tell,
        }
    }

    fn text(&self, query: &Query<'_>) -> String {
        if self.held.is_empty() {
            return match (&query.name, &query.args.prefix) {
                (Some(name), _) => format!("{name:?} is not held."),
                (None, Some(prefix)) => format!("No name that begins with {prefix:?} is held."),
                (None, None) => "No lock is held.".to_owned(),
            };
        }
        let mut lines = vec![table::table(&self.held, SystemTime::now())];
        if !self.cannot_tell.is_empty() {
            let (store, what) = (self.store, self.cannot_tell.join(", "));
            lines.extend(output::wrap(
                "",
                &format!("{store} has no data for: {what}"),
            ));
        }
        lines.join("\n")
    }
}

/// Returns a table of holders.
pub(crate) fn list(held: &[HeldName]) -> String {
    let entries: Vec<Entry> = held.iter().map(|held| (None, held.clone())).collect();
    table::table(&entries, SystemTime::now())
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
