//! What `run` does while the command runs. It forwards signals to the command, and sends deadlines to the watchdog.
//! If the lock is lost, it ends the command.

use std::io::IsTerminal;
use std::time::Duration;

use lockkeeper::LeasePolicy;
use lockkeeper::clock::{Clock, HostInstant, SystemClock};
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};

use super::command::{self, CommandProcess, State, Status};
use super::held::{HeldLock, REPORT_AFTER};
use super::limits::{Limits, RunningLimits};
use super::plan::{Deadlines, format_millis};
use super::poll::POLL_INTERVAL;
use super::signals::{Event, SECOND_AFTER, asks_for_end, is_ignored};
use super::status_file::Origin;
use super::stderr;
use super::terminal::{self, Terminal};
use super::watchdog::Watchdog;
use crate::failure::{LOST, TIMED_OUT};

/// The number of polls for the end of a group that was killed. It limits polls, not time, since time
/// passes while the host is suspended.
const MAX_POLLS: u32 = 50;

/// How often `run` scans the processes for a group that goes on for longer than [`REPORT_AFTER`]. The end of a child
/// of `run` starts a scan, too.
const SCAN_INTERVAL: Duration = Duration::from_millis(500);

/// If `run` notices a deadline this late, it was stopped before.
const STOPPED_FOR: Duration = Duration::from_millis(200);

/// How the command ended.
pub(super) struct Ended {
    /// The exit status of `run`.
    pub(super) code: u8,
    pub(super) origin: Origin,
    /// Whether the lock was lost before the command had ended.
    pub(super) lost: bool,
    /// Whether a signal asked for an end, even if the command had ended already.
    pub(super) was_asked_to_end: bool,
    /// The signal of the terminal's key that ended the command.
    pub(super) key: Option<Signal>,
    /// Whether only the command received that signal, so that `run` has to forward it.
    pub(super) passes_key_on: bool,
}

/// A command that runs while a lock is held.
pub(super) struct Supervisor<'a> {
    command: &'a CommandProcess,
    watchdog: Watchdog,
    held: &'a HeldLock,
    limits: RunningLimits,
    terminal: Option<Terminal>,
    wants_terminal: bool,
    /// Whether a stop was forwarded to the command, so that this process stops with it.
    stops_with_command: bool,
    /// The deadlines that were sent to the watchdog last.
    sent: Deadlines,
    /// The deadlines of the command after a loss; `None` while the lock is held.
    lost: Option<Deadlines>,
    /// Whether a watchdog has begun to end the command.
    ending: bool,
    /// Why the renewal failed, if the last one did.
    not_renewed: Option<String>,
    /// The signals that asked for an end.
    end_signals: Vec<Signal>,
}

impl<'a> Supervisor<'a> {
    /// Continues the command, which was started in the stopped state. Returns `None` if the lock is lost;
    /// then the command never runs.
    pub(super) fn start(
        command: &'a CommandProcess,
        mut watchdog: Watchdog,
        held: &'a HeldLock,
        limits: Limits,
    ) -> Option<Self> {
        // The host may have been suspended since the grant.
        let Some(deadlines) = held.deadlines_to_start() else {
            command.signal(Signal::KILL);
            watchdog.dismiss();
            command.reap();
            return None;
        };
        let mut supervisor = Self {
            watchdog,
            command,
            held,
            limits: limits.start(SystemClock.now()),
            terminal: Terminal::find(),
            // A script that starts `run` with `&` keeps the terminal, and ignores INT here. A command
            // that ignores TTIN is not stopped when it reads, so it could not ask for the terminal.
            wants_terminal: (terminal::is_alone()
                || std::io::stdin().is_terminal() && is_ignored(Signal::TTIN))
                && !is_ignored(Signal::INT),
            stops_with_command: false,
            sent: deadlines,
            lost: None,
            ending: false,
            not_renewed: None,
            end_signals: Vec::new(),
        };
        let watched = supervisor.watchdog.watch_group(command.group(), deadlines);
        if watched.is_err() {
            supervisor.replace_watchdog();
        }
        supervisor.continue_command();
        Some(supervisor)
    }

    /// Waits until the command has ended. If a signal asked for its end, or `run` was ending it, waits until its whole
    /// group has ended.
    pub(super) fn wait(mut self) -> Ended {
        let status = loop {
            match self.command.poll() {
                State::Ended(status) => break status,
                State::Stopped(signal) => self.handle_stop(signal),
                State::Running => {}
            }
            let limit = self.check();
            // An error is a time-out: the keeper's observer is a sender as long as the lock is held.
            if let Ok(event) = self.held.events.recv_timeout(limit) {
                self.handle(event);
            }
        };
        // The command ended by itself. So the lock counts as lost only if the whole lease is over, not
        // already at the deadline for TERM.
        if self.is_ending() || self.held.guard.remaining().is_zero() {
            self.check_lock();
        }
        let was_lent = self.terminal.as_mut().is_some_and(Terminal::take_back);
        stderr::info(&format!("the command ended with {}", status.code()));
        // They came before the end, such as a TERM to all processes of a service.
        while let Ok(event) = self.held.events.try_recv() {
            self.handle_after_end(event);
        }
        // The terminal sends HUP, INT and QUIT to the command's group, and not to `run`. A command that handles one
        // may exit with 128 + its number.
        let from_terminal = was_lent && matches!(status.code(), 129..=131);
        if from_terminal || status.signal().is_some_and(asks_for_end) {
            self.limits.ask_for_end(SystemClock.now());
        }
        // The status may be the command's own, so only a signal cuts --hold-at-least short.
        let ended_by_terminal = from_terminal && status.signal().is_some();
        let ends_group = self.limits.asked.is_some() || self.kill() < HostInstant::NEVER;
        if !ends_group {
            self.watchdog.dismiss();
        }
        self.command.reap();
        // Before the wait for the group: in raw mode no key would send a signal.
        if let (Some(terminal), Status::Signal(_)) = (&self.terminal, status) {
            terminal.restore();
        }
        // A command that ends before --timeout keeps its status, even if its group does not.
        let timed_out = self.limits.timed_out;
        if ends_group {
            self.end_group();
        }
        let loss = self.lost.filter(|_| self.held.plan.ends_on_loss());
        let was_received = |key: &Signal| self.end_signals.contains(key);
        let key = self.key(status).filter(|key| {
            // `run` has not ended the command itself.
            loss.is_none() && (was_lent || was_received(key))
        });
        let (code, origin) = match (loss, timed_out) {
            (Some(_), _) => (LOST, Origin::Lockkeeper),
            (None, true) => (TIMED_OUT, Origin::Lockkeeper),
            (None, false) => (status.code(), Origin::Command),
        };
        Ended {
            code,
            origin,
            lost: self.lost.is_some(),
            was_asked_to_end: ended_by_terminal || !self.end_signals.is_empty(),
            key,
            passes_key_on: !key.as_ref().is_some_and(was_received),
        }
    }

    /// Returns when the command's group gets KILL. [`HostInstant::NEVER`] if nothing ends it.
    fn kill(&self) -> HostInstant {
        let loss = self.lost.filter(|_| self.held.plan.ends_on_loss());
        let kill = loss.map_or(HostInstant::NEVER, |deadlines| deadlines.kill);
        kill.min(self.limits.kill)
    }

    /// Waits until the group of a command that has ended has ended, too.
    fn end_group(&mut self) {
        // Polls are counted, not time, which would run on while the host is suspended.
        let (mut polls, mut waited) = (0, Duration::ZERO);
        // Without the lock, the rest is waited for only to kill it.
        while polls < MAX_POLLS
            && (self.lost.is_none() || self.kill() < HostInstant::NEVER)
            && !self.command.is_group_gone()
        {
            let interval = match waited < REPORT_AFTER {
                true => POLL_INTERVAL,
                false => SCAN_INTERVAL,
            };
            let limit = self.check().min(interval);
            let is_killed = SystemClock.now() >= self.kill();
            // A poll that an event cut short does not count: the processes had no time to end.
            if let Ok(event) = self.held.events.recv_timeout(limit) {
                self.handle_after_end(event);
                continue;
            }
            polls += u32::from(is_killed);
            waited += POLL_INTERVAL;
            if waited == REPORT_AFTER && self.lost.is_none() {
                stderr::warn(&format!(
                    "the command has ended, and other processes of its group {} go on: the lock is kept until they end; \
                     a second signal kills them",
                    self.command.group()
                ));
            }
        }
        // The watchdog may have seen a loss before the group ended.
        if self.is_ending() {
            self.check_lock();
        }
        self.watchdog.dismiss();
    }

    /// Handles an event after the end of the command's own process.
    fn handle_after_end(&mut self, event: Event) {
        match event {
            // There is no command that would have the terminal, or stop.
            Event::Continued | Event::Signal(Signal::TSTP) => {}
            Event::Signal(signal) if asks_for_end(signal) => {
                let now = SystemClock.now();
                let first = self.limits.asked.unwrap_or(now);
                if now.saturating_since(first) >= SECOND_AFTER {
                    self.limits.kill = now;
                }
                self.handle(event);
                // A process that reads from the terminal, which was taken back, is stopped.
                self.command.signal(Signal::CONT);
            }
            event => self.handle(event),
        }
    }

    /// Returns the signal by which the command ended, if a key at the terminal may have sent it.
    fn key(&self, status: Status) -> Option<Signal> {
        let is_ours = self.terminal.as_ref().is_some_and(Terminal::is_ours);
        (status.signal()).filter(|signal| is_ours && terminal::is_key(*signal))
    }

    /// Returns whether a watchdog has begun to end the command.
    fn is_ending(&mut self) -> bool {
        self.ending |= self.watchdog.is_ending();
        self.ending
    }

    /// Ends the command if its time is over or the lock is lost. Returns how long to wait for events until the next
    /// check.
    fn check(&mut self) -> Duration {
        let kill_after = self.held.plan.kill_after;
        let next = (self.limits).check(self.command, kill_after, SystemClock.now());
        self.check_lock().min(next)
    }

    /// Ends the command if the lock is lost. Returns how long to wait for events until the next check.
    fn check_lock(&mut self) -> Duration {
        let now = SystemClock.now();
        if let Some(deadlines) = self.lost {
            // The watchdog kills the group, too, unless it is stopped.
            if self.held.plan.ends_on_loss() && now >= deadlines.kill {
                self.command.signal(Signal::KILL);
            }
            return POLL_INTERVAL;
        }
        let is_ending = self.is_ending();
        let current = self.held.deadlines();
        if let Some(deadlines) = current.filter(|_| !is_ending) {
            if now < deadlines.term {
                let next = deadlines.term.min(deadlines.claim).saturating_since(now);
                return next.max(Duration::from_millis(1));
            }
            // The command may have ended between the last poll and the time at which this process was
            // stopped.
            if self.command.ended().is_some() {
                return Duration::ZERO;
            }
        }
        let last = current.unwrap_or(self.sent);
        let is_over = is_ending || now >= last.term.min(last.claim);
        let max_hold = self.held.ending_max_hold(last).filter(|_| is_over);
        let why = if let LeasePolicy::Fixed { .. } = self.held.plan.policy {
            "is not kept any longer: its --lease is over"
        } else if let Some(max_hold) = max_hold {
            let max_hold = format_millis(max_hold);
            &format!("is not kept any longer: its `max_hold` of {max_hold} is over")
        } else if let Some(error) = &self.not_renewed {
            &format!("was not renewed in time: {error}")
        } else if !self.held.guard.is_held() {
            "is lost: the store was out of reach for too long, or it was taken away"
        } else if is_ending && now.saturating_since(last.term) >= STOPPED_FOR {
            "was not renewed in time: lockkeeper was stopped or suspended"
        } else {
            "cannot be kept: the store has not renewed it in time"
        };
        let deadlines = match current {
            None => self.held.plan.at_once(now, self.sent.kill),
            Some(current) => Deadlines {
                term: now,
                ..current
            },
        };
        let deadlines = Deadlines {
            kill: deadlines.kill.min(self.limits.kill_from(now)),
            ..deadlines
        };
        self.lost = Some(deadlines);
        let effect = if self.held.plan.ends_on_loss() {
            self.send_deadlines(deadlines);
            "its command is ended"
        } else {
            self.send_deadlines(Deadlines::WITHOUT_LOCK);
            "its command goes on without it"
        };
        stderr::warn(&format!("{} {why}; {effect}", self.held.request));
        POLL_INTERVAL
    }

    fn handle(&mut self, event: Event) {
        if event == Event::Renewed {
            self.not_renewed = None;
        }
        match event {
            Event::NotRenewed(error) => self.not_renewed = Some(error),
            Event::Renewed if self.lost.is_none() => {
                // `check_lock` handles a loss.
                if let Some(deadlines) = self.held.deadlines() {
                    self.send_deadlines(deadlines);
                }
            }
            Event::Renewed | Event::Lost => {}
            Event::Continued => self.continue_command(),
            // No process would continue the command, so only a command that handles TSTP gets it. Its
            // group does not get it: a shell's child could stop between vfork and exec. The kernel
            // does not stop the shell then, which would wait for the child forever.
            Event::Signal(Signal::TSTP) if terminal::is_orphan() => {
                self.command.signal_if_handled(Signal::TSTP);
            }
            Event::Signal(Signal::TSTP) => {
                self.stops_with_command = true;
                self.command.signal(Signal::TSTP);
            }
            Event::Signal(signal) => {
                if asks_for_end(signal) {
                    self.limits.ask_for_end(SystemClock.now());
                    if !self.end_signals.contains(&signal) {
                        self.end_signals.push(signal);
                    }
                }
                self.command.signal(signal);
                if matches!(signal, Signal::TERM | Signal::HUP) {
                    // A stopped command would not handle the signal.
                    self.command.signal(Signal::CONT);
                }
            }
            Event::Child => {
                if self.watchdog.was_killed() {
                    self.replace_watchdog();
                }
                command::reap_orphans(&[self.command.group(), self.watchdog.pid()]);
            }
        }
    }

    fn send_deadlines(&mut self, deadlines: Deadlines) {
        self.sent = deadlines;
        if self.watchdog.send_deadlines(deadlines).is_err() {
            self.replace_watchdog();
        }
    }

    /// Starts another watchdog after the watchdog was killed.
    fn replace_watchdog(&mut self) {
        // The new watchdog does not know whether the old one has begun to end the command.
        self.is_ending();
        let claims = self.watchdog.claims.clone();
        let started = Watchdog::start(claims, Some(self.command.group()));
        if let Some(deadlines) = self.held.deadlines().filter(|_| self.lost.is_none()) {
            self.sent = deadlines;
        }
        let started = started.and_then(|mut watchdog| {
            watchdog.send_deadlines(self.sent)?;
            Ok(watchdog)
        });
        match started {
            Ok(watchdog) => std::mem::replace(&mut self.watchdog, watchdog).dismiss(),
            Err(error) => {
                stderr::warn(&format!(
                    "the watchdog was killed, and another cannot be started: {error}; the command is killed"
                ));
                let now = SystemClock.now();
                self.lost.get_or_insert(self.held.plan.at_once(now, now));
                self.command.signal(Signal::KILL);
            }
        }
    }

    /// Handles a stop of the command. This job stops with it, if another process would continue this
    /// job.
    fn handle_stop(&mut self, signal: Option<Signal>) {
        let asks = matches!(signal, Some(Signal::TTIN | Signal::TTOU));
        let leads = terminal::own_group() == Some(getpid());
        if let Some(terminal) = &mut self.terminal {
            self.wants_terminal |= asks;
            if asks && terminal.is_ours() {
                return self.continue_command();
            }
            if terminal.is_lent() || leads {
                if terminal::is_orphan() {
                    return self.command.signal(Signal::CONT);
                }
                terminal.take_back();
                // This returns when the shell continues the job.
                let _ = kill_current_process_group(Signal::STOP);
                return self.continue_command();
            }
        }
        if std::mem::take(&mut self.stops_with_command) {
            let _ = kill_process(getpid(), Signal::STOP);
            self.continue_command();
        } else if asks {
            stderr::warn(
                "the command asks for the terminal, which this job does not have; it is stopped until `fg` continues the job",
            );
        }
    }

    fn continue_command(&mut self) {
        self.stops_with_command = false;
        if self.wants_terminal
            && let Some(terminal) = &mut self.terminal
        {
            terminal.lend(self.command.group());
        }
        self.command.signal(Signal::CONT);
    }
}
