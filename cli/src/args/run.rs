//! `lockkeeper run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::ValueEnum;
use lockkeeper::Wait;

use super::{StoreArgs, duration};

pub(super) const ABOUT: &str = "\
Runs a command while it holds a lock.

Waits for the lock NAME, runs COMMAND (no shell) with the standard input, output and error that it
was given, and releases the lock when the command has ended. The lock is renewed all the while. When
it is lost, because the store was out of reach for too long or somebody took it away, the command is
ended before anyone else can be granted the name.";

pub(super) const DETAILS: &str = "\
Store:
The first of
  --url URL
  --config FILE, or the file that LOCKKEEPER_CONFIG names
  LOCKKEEPER_URL, with further keys as LOCKKEEPER_NAMESPACE and so on
  ~/.config/lockkeeper.toml, /etc/lockkeeper.toml
and of that one all keys: LOCKKEEPER_NAMESPACE does not count beside --url. An
empty variable counts as not set.
A URL on the command line can be seen by all users of the host: a password
belongs into a file.

Environment of the command:
It has
  LOCKKEEPER_NAME              the lock's name
  LOCKKEEPER_TOKEN             larger than that of every grant before
  LOCKKEEPER_DEADLINE_UNIX_MS  held until then without a renewal
and no other variable that begins with LOCKKEEPER_: neither URL nor password.

Signals:
TERM, INT, HUP, QUIT, USR1 and USR2 go to the command and all of its process
group, and the lock is held until the command has ended. While waiting, TERM,
INT, HUP and QUIT end the wait, and the command never starts. What is ignored
from the start (nohup, `&` in a script, trap '') stays so.

Terminal:
The command is the foreground job, unless a script runs lockkeeper in the
background (`&`). When it stops (Ctrl-Z), so does lockkeeper, and the shell goes
on; `fg` and `bg` continue both. A stopped lockkeeper cannot renew: continued
within the ttl, nothing has happened; later, the command has been ended and the
lock is lost. Where nobody would continue them (a service, a container), a TSTP
stops neither, and goes to no command but one that handles it. Without a
terminal, a command that is stopped by another hand keeps its lock. When Ctrl-C
ends the wait or the command, lockkeeper ends by the same signal, and a script
around it, too; any INT or QUIT by which a command ends at a terminal counts.

When lockkeeper itself ends:
When it is killed, its command is killed at once, with all of its process
group, by a small watchdog process. When it is stopped, the watchdog ends the
command before the lease is over. What leaves the process group (setsid,
daemons), or runs as a user that this one may not signal (sudo), is out of
reach. What the command leaves behind in the background when it ends by itself
goes on, without the lock.
The next command under the name starts on the same host (not from container to
container) when the one before is gone, if the same user or root ran that one.
It waits for that while it has the lock, for the ttl at most.

Times:
The lock calls itself lost a margin (a tenth of the ttl, at most 1s) before
the store gives it to somebody else. --kill-after before that the command gets
TERM, and KILL when it is over. So margin and --kill-after together must be at
most half of --ttl, which leaves the other half for renewals, and less than
--lease. The config's `wait` does not count here.

Exit status:
  the command's own; 128 + N when signal N ended it, or the wait
  64   wrong usage
  69   the store is out of reach, at the start or at the end of the wait; without
       --wait, an outage is waited out
  71   the system refused something: a process, a thread
  75   not acquired in time; --conflict-exit-code changes it
  78   bad configuration: the URL, the config file, a login
  79   the lock was lost, and the command was ended or never run
  126  the command cannot be run
  127  the command was not found

Examples:
  # cron, on several hosts: one of them does it; clocks may differ by a minute
  */15 * * * * lockkeeper run -n -E 0 --hold-at-least 1m report -- report.sh
  # one deployment at a time; the next waits up to ten minutes
  lockkeeper run --wait 10m deploy:web -- ./deploy.sh";

/// Runs a command under a lock.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) place: StoreArgs,

    /// How long to wait for the lock, or `forever`. Default: for ever.
    #[arg(long, value_name = "DUR", value_parser = wait)]
    pub(crate) wait: Option<Wait>,

    /// Do not wait: one attempt.
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// How long the lock outlives this program's last sign of life. Default: the store's `ttl`, or
    /// 30s.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    /// Hold it at most this long, without renewing: the command is ended when it is over.
    #[arg(long, value_name = "DUR", value_parser = duration, conflicts_with = "ttl")]
    pub(crate) lease: Option<Duration>,

    /// What to do with the command when the lock is lost.
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub(crate) on_lost: OnLost,

    /// How long a command that has to end may take, from TERM to KILL. Default: 5s.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,

    /// The exit status when the lock was not acquired in time: 0 to 255. With 0, nothing is said
    /// about it either.
    #[arg(short = 'E', long, value_name = "N", default_value_t = 75)]
    pub(crate) conflict_exit_code: u8,

    /// Keep the lock this long even when the command is quicker, fails, or cannot be run, unless a
    /// signal asks for an end. With --lease, it must be shorter than that less the margin.
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "0s", hide_default_value = true)]
    pub(crate) hold_at_least: Duration,

    /// Say what happens, on standard error.
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Say nothing, not even why the command was not run. Only options and values that cannot be
    /// understood are told of all the same.
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
    /// Say so, and let it go on.
    Warn,
}
