//! `lockkeeper run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::ValueEnum;
use lockkeeper::Wait;

use super::{StoreArgs, duration};

pub(super) const ABOUT: &str = "\
Runs a command while it holds a lock.

Waits for the lock NAME, runs COMMAND (without a shell) with its own standard input, output and
error, and releases the lock when the command has ended. Until then the lock is renewed. If the lock
is lost, because the store was out of reach for too long or `unlock` took the lock away, the command
is ended before another process can be granted the name.";

pub(super) const DETAILS: &str = "\
Store:
The store is the first of
  --url URL
  --config FILE, or the file that LOCKKEEPER_CONFIG names
  LOCKKEEPER_URL, with further keys as LOCKKEEPER_NAMESPACE and so on
  ~/.config/lockkeeper.toml, /etc/lockkeeper.toml
All keys come from the same place: LOCKKEEPER_NAMESPACE does not count beside
--url. An empty variable counts as not set.
All users of the host can see a URL on the command line, so write a password
to a config file.

Environment of the command:
These variables are set:
  LOCKKEEPER_NAME              the lock's name
  LOCKKEEPER_TOKEN             larger than the token of every grant before
  LOCKKEEPER_DEADLINE_UNIX_MS  held until then without a renewal
All other variables that begin with LOCKKEEPER_ are removed, so the command
sees neither URL nor password.

Signals:
TERM, INT, HUP, QUIT, USR1 and USR2 are passed on to the command's process
group, and the lock is held until the command has ended. During the wait, TERM,
INT, HUP and QUIT end the wait, and the command never starts. Signals that are
ignored from the start (nohup, `&` in a script, trap '') stay ignored.

Terminal:
The command is the foreground job, unless a script runs lockkeeper in the
background (`&`). When the command stops (Ctrl-Z), lockkeeper stops with it, and
`fg` and `bg` continue both. A stopped lockkeeper cannot renew the lock. If it
is continued within the ttl, nothing has happened. If it is continued later, the
command has been ended and the lock is lost.
If no process would continue them (a service, a container), a TSTP stops
neither, and is passed on only to a command that handles it. Without a terminal,
a command that another process stops keeps its lock.
When Ctrl-C ends the wait or the command, lockkeeper ends by the same signal, so
that the calling script ends, too. At a terminal, this applies to every INT or
QUIT by which the command ends.

When lockkeeper itself ends:
If lockkeeper is killed, a watchdog process kills the command's process group
at once. If lockkeeper is stopped, the watchdog ends the command before the
lease is over. Out of reach are processes that leave the group (setsid,
daemons), and processes of a user that this one may not signal (sudo).
Background processes that the command leaves when it ends by itself go on,
without the lock.
On the same host (not between containers), the next command under the name
starts when the one before is gone, if the same user or root ran it. The wait
for that takes the ttl at most, and the lock is held meanwhile.

Times:
lockkeeper considers the lock lost a margin (a tenth of the ttl, at most 1s)
before the store can grant it to another process. --kill-after before that, the
command gets TERM; at that time, KILL. So margin and --kill-after together must
be at most half of --ttl, which leaves the other half for renewals, and less
than --lease. The config's `wait` does not count here.

Exit status:
  the command's own; 128 + N if signal N ended the command or the wait
  64   wrong usage
  69   the store is out of reach, at the start or at the end of the wait; without
       --wait, the wait goes on during an outage
  71   the system refused something: a process, a thread
  75   not acquired in time; --conflict-exit-code changes it
  78   bad configuration: the URL, the config file, a login
  79   the lock was lost, and the command was ended or never started
  126  the command cannot be run
  127  the command was not found

Examples:
  # cron on several hosts: one of them runs it; clocks may differ by a minute
  */15 * * * * lockkeeper run -n -E 0 --hold-at-least 1m report -- report.sh
  # one deployment at a time; the next waits up to ten minutes
  lockkeeper run --wait 10m deploy:web -- ./deploy.sh";

/// The options of `run`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// How long to wait for the lock, or `forever`. Default: forever.
    #[arg(long, value_name = "DUR", value_parser = wait)]
    pub(crate) wait: Option<Wait>,

    /// Make one attempt, and do not wait.
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// How long the lock outlives its last renewal. Default: the store's `ttl`, or 30s.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    /// Hold the lock at most this long, without renewals. The command is ended before the time is
    /// over.
    #[arg(long, value_name = "DUR", value_parser = duration, conflicts_with = "ttl")]
    pub(crate) lease: Option<Duration>,

    /// What to do with the command if the lock is lost.
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub(crate) on_lost: OnLost,

    /// How long a command that is being ended may take, from TERM to KILL. Default: 5s.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,

    /// The exit status if the lock was not acquired in time: 0 to 255. With 0, no message is printed
    /// either.
    #[arg(short = 'E', long, value_name = "N", default_value_t = 75)]
    pub(crate) conflict_exit_code: u8,

    /// Hold the lock at least this long, even if the command ends earlier, fails or cannot be run. A
    /// signal that asks for an end cuts it short. Must be shorter than --lease less the margin.
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "0s", hide_default_value = true)]
    pub(crate) hold_at_least: Duration,

    /// Print on standard error what happens.
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Print no message, not even why the command was not run. Wrong usage is still reported.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// The lock's name.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// The command, after `--`.
    #[arg(value_name = "COMMAND", last = true, required = true, num_args = 1..)]
    pub(crate) command: Vec<OsString>,
}

fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::Forever),
        text => duration(text).map(Wait::AtMost),
    }
}

/// What happens to the command of a lost lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// End it: TERM, then KILL.
    Term,
    /// Print a warning, and let it go on.
    Warn,
}
