//! `lockkeeper acquire`, `renew` and `release`: a lock that no process has, and that a ticket frees.

use std::io::{self, BufRead};
use std::time::{Duration, SystemTime};

use lockkeeper::backend::{Capability, OpenOptions};
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{CancelToken, LeasePolicy, LockGuard, LockKeeper, LockName, Released, Ticket};

use crate::args::{LabelArgs, StoreArgs, WaitArgs, duration};
use crate::failure::{Failure, LOST, SYSTEM, USAGE};
use crate::settings;
use crate::{output, run};

pub(crate) const ACQUIRE: &str = "\
Acquires a lock that outlives this command, and prints its ticket.

No process renews the lock. It ends --ttl after this command, unless `renew --ticket` gives it another ttl. `release
--ticket` frees it. A program that uses the library can go on with the lock by the ticket, too. If work runs in one
command, `run` is safer: it renews the lock, and notices its loss.

The store is SQLite, Redis, etcd, Consul, ZooKeeper, or PostgreSQL, MySQL or MariaDB with locks=table. `renew` and
`release` need the same --url or config: a ticket contains no password. A `fallback` is never used: `renew` and
`release` would not find a lock of the fallback.

  ticket=$(lockkeeper acquire deploy:web --ttl 10m) || exit
  ./first-step && lockkeeper renew --ticket \"$ticket\" >/dev/null && ./second-step
  lockkeeper release --ticket \"$ticket\"";
pub(crate) const ACQUIRE_STATUS: &str = "\
Exit status:
  0   the ticket is on standard output
  64  wrong usage
  69  the store is out of reach
  71  the ticket could not be printed; the lock was released
  75  another holder had the lock until the end of the wait; see -E
  78  bad configuration, or the store has no tickets
A signal TERM, INT, HUP or QUIT ends the wait, and this command by that signal.";
pub(crate) const RENEW: &str = "\
Gives the lock of a ticket another ttl from now on, and prints the ticket with its new times.

The old text stays valid as well. A program that has resumed the ticket loses the lock by this. From then on, `who`
shows this command and its --label.";
pub(crate) const RELEASE: &str = "\
Frees the lock of a ticket.

A program that has resumed the ticket loses the lock by this.";
pub(crate) const STATUS: &str = "\
Exit status:
  0   done
  64  wrong usage, or the text is no ticket
  69  the store is out of reach, or did not say; the lock may go on
  71  the ticket could not be read from standard input, or printed
  78  bad configuration, or the ticket is of another store or namespace
  79  the lock has ended before";

/// The options of `acquire`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    wait: WaitArgs,

    /// How long the lock lives without a renewal. Default: the store's `ttl`, or 30s.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    ttl: Option<Duration>,

    /// The exit status if the lock was not acquired in time: 0 to 255. With 0, no message is printed either.
    #[arg(short = 'E', long, value_name = "N", default_value_t = 75)]
    conflict_exit_code: u8,

    #[command(flatten)]
    label: LabelArgs,

    /// The lock's name.
    #[arg(value_name = "NAME")]
    name: String,
}

/// The options of `renew`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Renew {
    #[command(flatten)]
    of: TicketArgs,

    /// How long the lock lives from now on. Default: the ticket's ttl.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    ttl: Option<Duration>,

    #[command(flatten)]
    label: LabelArgs,
}

/// The options of `release`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Release {
    #[command(flatten)]
    of: TicketArgs,
}

#[derive(Clone, Debug, clap::Args)]
struct TicketArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// The ticket that `acquire` has printed; `-` reads it from standard input, so that `ps` does not show it.
    #[arg(short, long, value_name = "TICKET")]
    ticket: String,
}

impl TicketArgs {
    fn ticket(&self) -> Result<Ticket, Failure> {
        let mut text = self.ticket.clone();
        if text == "-" {
            text.clear();
            let read = io::stdin().lock().read_line(&mut text);
            read.map_err(|error| Failure::system("read the ticket", &error))?;
        }
        if text.trim().is_empty() {
            let text = "the ticket is empty; did `acquire` fail?";
            return Err(Failure::new(USAGE, text));
        }
        let ticket = text.trim().parse();
        ticket.map_err(|error: lockkeeper::Error| Failure::new(USAGE, error.to_string()))
    }

    /// Opens the store of the ticket, with this ttl for its lock.
    fn open(&self, ttl: Duration) -> Result<LockKeeper, Failure> {
        let options = OpenOptions::new();
        settings::open(&self.store, &options, |config| {
            config.without("fallback").without("ttl").ttl(ttl)
        })
    }
}

/// Returns the exit status of `lockkeeper acquire`.
pub(crate) fn acquire(args: &Acquire) -> Result<u8, Failure> {
    let name = LockName::new(args.name.as_str()).map_err(Failure::usage)?;
    args.label.apply()?;
    let began = SystemClock.now();
    let wait = CancelToken::new();
    let end_signal = run::end_wait(&wait)?;
    let opening = args.wait.opening().cancel(&wait);
    let opened = settings::open(&args.store, &opening, |config| {
        config.without("fallback").require(Capability::Tickets)
    });
    let acquired = opened.and_then(|keeper| {
        let options = args.wait.acquisition(began).cancel(&wait);
        let options = match args.ttl {
            Some(ttl) => options.lease(LeasePolicy::Renewed { ttl }),
            None => options,
        };
        let guard = keeper.acquire(&name, &options);
        let guard = guard.map_err(Failure::acquisition)?;
        Ok(guard.map(|guard| (keeper, guard)))
    });
    // A caller that ends this command wants no lock, also if it was granted at that moment.
    if let Some(signal) = end_signal() {
        if let Ok(Some((_, guard))) = acquired {
            guard.release()?;
        }
        return Ok(run::end_by_signal(signal));
    }
    let Some((keeper, guard)) = acquired? else {
        if args.conflict_exit_code == 0 {
            return Ok(0);
        }
        let text = format!("{name:?} is held by another process; see `lockkeeper who`");
        return Err(Failure::new(args.conflict_exit_code, text));
    };
    let ticket = guard.detach()?;
    let printed = print(&ticket);
    if printed.is_err() {
        // Nobody has the ticket.
        let released = keeper.resume(&ticket).and_then(LockGuard::release);
        released?;
    }
    printed.map(|()| 0)
}

/// Returns the exit status of `lockkeeper renew`.
pub(crate) fn renew(args: &Renew) -> Result<u8, Failure> {
    args.label.apply()?;
    let ticket = args.of.ticket()?;
    let keeper = args.of.open(args.ttl.unwrap_or(ticket.ttl()))?;
    print(&keeper.resume(&ticket)?.detach()?).map(|()| 0)
}

/// Returns the exit status of `lockkeeper release`.
pub(crate) fn release(args: &Release) -> Result<u8, Failure> {
    let ticket = args.of.ticket()?;
    let keeper = args.of.open(ticket.ttl())?;
    match keeper.resume(&ticket)?.release()? {
        Released::Done => Ok(0),
        Released::AlreadyLost => {
            let text = format!("the lock {:?} was lost before", ticket.name());
            Err(Failure::new(LOST, text))
        }
    }
}

/// Prints a ticket; a note about its end goes to a person at a terminal alone.
fn print(ticket: &Ticket) -> Result<(), Failure> {
    use std::io::IsTerminal;

    if io::stdout().is_terminal() {
        let left = ticket.good_until().duration_since(SystemTime::now());
        let left = output::format_span(left.unwrap_or_default());
        output::print_error(&format!("{:?} is locked for {left}", ticket.name()));
    }
    match output::print_to_reader(&format!("{ticket}\n"))? {
        true => Ok(()),
        false => Err(Failure::new(SYSTEM, "no program reads the ticket")),
    }
}
