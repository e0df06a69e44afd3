//! `lockkeeper who`, `unlock` and `doctor`.

use std::time::Duration;

use super::{StoreArgs, duration};

pub(super) const WHO: &str = "\
Tells who holds what.

Lists the names that are held on the store, in the namespace of its URL: by which process of which
host, since when, with which token, how long the store keeps it without a renewal, and how many
processes wait for it. What a store cannot tell shows as -, and is named below the table.
A `fallback` is not asked: give its own URL.";

pub(super) const WHO_DETAILS: &str = "\
JSON:
One object, with --json:
  schema       \"lockkeeper-who\"
  version      1; grows when a field changes its meaning or goes
  store        the backend, such as \"redis\"
  held         [{name, name_is_whole, host, pid, thread, session, since_unix_ms, token,
                 remaining_ms, waiting}]; null is what is not known; the token is
               text, since many readers round numbers of that size
  cannot_tell  texts: what this store never tells

Exit status:
  0   also when nothing is held
  64  wrong usage
  69  the store is out of reach
  71  the system refused something: the output is full
  78  bad configuration, or the store has no such answers";

pub(super) const UNLOCK: &str = "\
Takes a lock from whoever holds it.

Says who holds it, asks, and frees it. The next one in line gets it at once. The former holder finds
itself lost at its next renewal, and may go on working until then: first make sure that it is dead,
or that the data refuses its token. (A `lockkeeper run` on the same host starts its command when that
of the former one has ended, or after its own ttl.) Only the hold that was shown is ended: somebody
who has taken the name in the meantime keeps it. A `fallback` is not asked: give its own URL.";

pub(super) const UNLOCK_DETAILS: &str = "\
Exit status:
  0   freed, or nobody held it
  1   not confirmed, or held by somebody else by now
  64  wrong usage
  69  the store is out of reach
  71  the system refused something: the output is full
  78  bad configuration, or the store cannot do it";

pub(super) const DOCTOR: &str = "\
Tries whether a store is fit for locks, and looks for known traps.

Connects, measures the round trip, takes a lock, contends for it, hands it over and lets a lease run
out, with two keepers and under names of its own; then looks for what is known to break locks on this
kind of store. Each finding says what it means and what to do. A `fallback` is not looked at: give its own
URL.";

pub(super) const DOCTOR_DETAILS: &str = "\
JSON:
One object, with --json:
  schema    \"lockkeeper-doctor\"
  version   1; grows when a field changes its meaning or goes
  store     the backend, or null where it could not be opened
  verdict   the worst severity: \"fine\", \"warning\" or \"unusable\"
  findings  [{severity, topic, what, meaning, advice}]

Exit status:
  0   fine
  1   warnings
  2   unusable, or out of reach
  64  wrong usage
  71  the system refused something: the output is full";

/// Tells who holds what.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Who {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Print one JSON object instead of the table; its fields are below.
    #[arg(long)]
    pub(crate) json: bool,

    /// How long the store may take to answer.
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Only this name.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// Takes a lock from its holder.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Unlock {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Frees it whoever holds it; there is no other way to.
    #[arg(long, required = true)]
    pub(crate) force: bool,

    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// How long the store may take to answer.
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// The lock's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Examines a store.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Print one JSON object instead of text; its fields are below.
    #[arg(long)]
    pub(crate) json: bool,
}
