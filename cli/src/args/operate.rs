//! `lockkeeper who`, `unlock` and `doctor`.

use std::time::Duration;

use super::{StoreArgs, duration};

pub(super) const WHO: &str = "\
Lists the held locks and their holders.

Lists the names that are held in the namespace of the store's URL. For each name: the holder's
process and host, since when it is held, the token, how long the store keeps it without a renewal,
and how many processes wait for it. A column that the store has no data for shows -, and is named
below the table. A `fallback` is not queried: give its own URL.";

pub(super) const WHO_DETAILS: &str = "\
JSON:
One object, with --json:
  schema       \"lockkeeper-who\"
  version      1; grows when a field changes its meaning or is removed
  store        the backend, such as \"redis\"
  held         [{name, name_is_whole, host, pid, thread, session, since_unix_ms, token,
                 remaining_ms, waiting}]; unknown values are null; the token is
               text, since many readers round numbers of that size
  cannot_tell  texts: the data that this store never has

Exit status:
  0   the list is complete; it may be empty
  64  wrong usage
  69  the store is out of reach
  71  the system refused something: the output is full
  78  bad configuration, or the store cannot list its holders";

pub(super) const UNLOCK: &str = "\
Takes a lock away from its holder.

Shows the holder, asks for confirmation, and frees the lock. The next waiter is granted it at once.
The former holder notices the loss at its next renewal, and may go on working until then. So first
make sure that the holder is dead, or that the data refuses its token. (A `lockkeeper run` on the
same host starts its command when the former holder's command has ended, or after its own ttl.) Only
the hold that was shown is ended: a holder that acquired the name in the meantime keeps it. A
`fallback` is not queried: give its own URL.";

pub(super) const UNLOCK_DETAILS: &str = "\
Exit status:
  0   freed, or the lock was not held
  1   not confirmed, or the hold that was shown has ended
  64  wrong usage
  69  the store is out of reach
  71  the system refused something: the output is full
  78  bad configuration, or the store cannot do it";

pub(super) const DOCTOR: &str = "\
Checks whether a store is fit for locks.

Connects, measures the round trip, acquires a lock, contends for it, hands it over and lets a lease
expire, with two keepers and under names of its own. Then checks for settings and states that break
locks on this kind of store. Each finding has its meaning and the remedy. A `fallback` is not
checked: give its own URL.";

pub(super) const DOCTOR_DETAILS: &str = "\
JSON:
One object, with --json:
  schema    \"lockkeeper-doctor\"
  version   1; grows when a field changes its meaning or is removed
  store     the backend, or null if it could not be opened
  verdict   the worst severity: \"fine\", \"warning\" or \"unusable\"
  findings  [{severity, topic, what, meaning, advice}]

Exit status:
  0   fine
  1   warnings
  2   unusable, or out of reach
  64  wrong usage
  71  the system refused something: the output is full";

/// The options of `who`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Who {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Print one JSON object instead of the table; its fields are below.
    #[arg(long)]
    pub(crate) json: bool,

    /// How long the store may take to reply.
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Show only this name.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// The options of `unlock`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Unlock {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Confirm that another holder loses the lock. Required.
    #[arg(long, required = true)]
    pub(crate) force: bool,

    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// How long the store may take to reply.
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// The lock's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// The options of `doctor`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Print one JSON object instead of text; its fields are below.
    #[arg(long)]
    pub(crate) json: bool,
}
