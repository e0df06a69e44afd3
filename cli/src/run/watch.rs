//! While the command runs: signals to it, deadlines to the watchdog, and the end of it all.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use lockkeeper::{Clock, LeasePolicy, LockGuard, SystemClock};
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};

use super::job::{self, Job, State, Status};
use super::plan::{Deadline, Plan};
use super::signals::{Event, ends_a_wait, is_ignored};
use super::terminal::{self, Terminal};
use super::voice::Voice;
use super::watchdog::Watchdog;

/// How often it is looked whether a group that was killed is gone. Looks are counted, not time: a host
/// that stands still takes it from the group, too.
const LOOKS: u32 = 50;
/// Those of a group whose parent lives on are nobody's children here: no signal tells their end.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// How the command ended.
pub(super) struct Ended {
    pub(super) status: Status,
    /// The lock had to be taken for lost before the command had ended.
    pub(super) lost: bool,
    /// A signal asked for an end, whether or not the command was still there to hear it.
    pub(super) told: bool,
    /// The key of the terminal that ended it.
    pub(super) key: Option<Signal>,
    /// Whether the command alone has had that.
    pub(super) passes_on: bool,
}

pub(super) struct Watch<'a> {
    job: &'a Job,
    watchdog: Watchdog,
    plan: Plan,
    guard: &'a LockGuard,
    events: &'a Receiver<Event>,
    voice: Voice,
    terminal: Option<Terminal>,
    wants_terminal: bool,
    /// A stop was passed on to the command, so this process is to stop with it.
    stops_too: bool,
    /// What the watchdog was told last.
    last: Deadline,
    /// When the command of a lost lock is over.
    lost: Option<Deadline>,
    ending: bool,
    /// The signals that asked for an end.
    heard: Vec<Signal>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        job: &'a Job,
        watchdog: Watchdog,
        plan: Plan,
        guard: &'a LockGuard,
        events: &'a Receiver<Event>,
        voice: Voice,
    ) -> Self {
        Self {
            watchdog,
            job,
            plan,
            guard,
            events,
            voice,
            terminal: Terminal::find(),
            // A script that started this with `&` means to keep it; Ctrl-C is not for this, then.
            // Who ignores TTIN is not stopped for reading without it, so nobody would hear it ask.
            wants_terminal: (terminal::is_alone()
                || terminal::is_read() && is_ignored(Signal::TTIN))
                && !is_ignored(Signal::INT),
            stops_too: false,
            last: Deadline::NEVER,
            lost: None,
            ending: false,
            heard: Vec::new(),
        }
    }

    /// Lets the prepared command go. `None`: the lock is lost, and it never may.
    pub(super) fn begin(mut self) -> Option<Self> {
        // All of this may have stood still since the grant.
        let Some(deadline) = self.plan.deadline_of(self.guard) else {
            self.job.signal(Signal::KILL);
            self.watchdog.dismiss();
            self.job.status();
            return None;
        };
        self.last = deadline;
        if self.watchdog.guard(self.job.group(), deadline).is_err() {
            self.replace_watchdog();
        }
        self.go_on();
        Some(self)
    }

    /// Until the command has ended, and all of its group where the lock was lost.
    pub(super) fn finish(mut self) -> Ended {
        loop {
            match self.job.look() {
                State::Ended => break,
                State::Stopped(signal) => self.stopped(signal),
                State::Running => {}
            }
            let limit = self.check_lock();
            match self.events.recv_timeout(limit) {
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => {}
                // The thread that listens is gone: nothing is heard any more, so look.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
            }
        }
        // Whoever has ended need not be ended, so all of the lease counts.
        if self.is_ending() || self.guard.remaining().is_zero() {
            self.check_lock();
        }
        let was_lent = self.terminal.as_mut().is_some_and(Terminal::take_back);
        let status = match self.lost.filter(|_| self.plan.ends_the_lost()) {
            None => {
                self.watchdog.dismiss();
                self.job.status()
            }
            Some(deadline) => {
                let status = self.job.status();
                let mut looks = 0;
                while !self.job.is_over() && looks < LOOKS {
                    // The end of each of a crowd is an event, and no time in which the others could end.
                    let is_quiet = self.events.recv_timeout(LOOK).is_err();
                    if SystemClock.now() >= deadline.kill {
                        self.job.signal(Signal::KILL);
                        looks += u32::from(is_quiet);
                    }
                }
                self.watchdog.dismiss();
                status
            }
        };
        if let (Some(terminal), Status::Signal(_)) = (&self.terminal, status) {
            terminal.restore();
        }
        let is_heard = |key: &Signal| self.heard.contains(key);
        let key = self.key(status).filter(|key| was_lent || is_heard(key));
        Ended {
            status,
            lost: self.lost.is_some(),
            told: !self.heard.is_empty() || key.is_some(),
            key,
            passes_on: !key.as_ref().is_some_and(is_heard),
        }
    }

    /// The key of the terminal that the command may have ended by.
    fn key(&self, status: Status) -> Option<Signal> {
        let Status::Signal(signal) = status else {
            return None;
        };
        let is_ours = self.terminal.as_ref().is_some_and(Terminal::is_ours);
        let is_its_own = self.lost.is_none() || !self.plan.ends_the_lost();
        Signal::from_named_raw(signal)
            .filter(|signal| is_ours && is_its_own && terminal::is_key(*signal))
    }

    /// Whether a watchdog has begun to end the command.
    fn is_ending(&mut self) -> bool {
        self.ending |= self.watchdog.is_ending();
        self.ending
    }

    /// Finds out whether the lock is lost, and how long it is not, if nothing happens.
    fn check_lock(&mut self) -> Duration {
        let now = SystemClock.now();
        if let Some(deadline) = self.lost {
            // The watchdog does that, unless somebody hinders it.
            if self.plan.ends_the_lost() && now >= deadline.kill {
                self.job.signal(Signal::KILL);
            }
            return LOOK;
        }
        let is_ending = self.is_ending();
        let remaining = self.guard.remaining();
        let deadline = self.plan.deadline(now + remaining);
        if now < deadline.term && !remaining.is_zero() && !is_ending {
            let next = deadline.term.saturating_since(now).min(remaining);
            return next.max(Duration::from_millis(1));
        }
        // It may have ended before this process stood still, and that may have been after the last look.
        if !remaining.is_zero() && !is_ending && self.job.has_ended() {
            return Duration::ZERO;
        }
        let why = if let LeasePolicy::Fixed { .. } = self.plan.policy {
            "is not kept any longer: its --lease is over"
        } else if !self.guard.is_held() {
            "is lost: the store was out of reach for too long, or somebody took it away"
        } else if is_ending {
            "was not kept in time: lockkeeper stood still"
        } else {
            "cannot be kept: the store has not renewed it in time"
        };
        let deadline = match remaining {
            Duration::ZERO => self.plan.at_once(now, self.last.kill),
            _ => Deadline {
                term: now,
                ..deadline
            },
        };
        self.lost = Some(deadline);
        let name = self.guard.name();
        let (deadline, so) = if self.plan.ends_the_lost() {
            (deadline, "its command is ended")
        } else {
            (Deadline::WITHOUT_LOCK, "its command goes on without it")
        };
        let text = format!("the lock {name:?} {why}; {so}");
        self.tell(deadline);
        self.voice.warn(&text);
        LOOK
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Renewed if self.lost.is_none() => {
                if let Some(deadline) = self.renewed() {
                    self.tell(deadline);
                }
            }
            Event::Renewed | Event::Lost => {}
            Event::Continued => self.go_on(),
            // Nobody would continue who stops, so it is for a command alone that handles it. Of the
            // group some might: a shell that waits for its child to begin does not stop, the child
            // does, and the one never hears of the other again.
            Event::Signal(Signal::TSTP) if terminal::is_orphan() => self.job.offer(Signal::TSTP),
            Event::Signal(Signal::TSTP) => {
                self.stops_too = true;
                self.job.signal(Signal::TSTP);
            }
            Event::Signal(signal) => {
                if ends_a_wait(signal) && !self.heard.contains(&signal) {
                    self.heard.push(signal);
                }
                self.job.signal(signal);
                if matches!(signal, Signal::TERM | Signal::HUP) {
                    // One that is stopped would not hear it.
                    self.job.signal(Signal::CONT);
                }
            }
            Event::Child => {
                if self.watchdog.is_gone() {
                    self.replace_watchdog();
                }
                job::reap_orphans(&[self.job.group(), self.watchdog.pid()]);
            }
        }
    }

    /// By when the command has to end as things are. `None`: the lock is lost, which is found by
    /// `check_lock`.
    fn renewed(&self) -> Option<Deadline> {
        // The time first: standing still in between must not make it later.
        let now = SystemClock.now();
        let remaining = self.guard.remaining();
        (!remaining.is_zero()).then(|| self.plan.deadline(now + remaining))
    }

    fn tell(&mut self, deadline: Deadline) {
        self.last = deadline;
        if self.watchdog.tell(deadline).is_err() {
            self.replace_watchdog();
        }
    }

    /// Somebody has killed it.
    fn replace_watchdog(&mut self) {
        // What that one has begun, the other does not know.
        self.is_ending();
        let started = self.watchdog.start_another(self.job.group());
        if let Some(deadline) = self.renewed().filter(|_| self.lost.is_none()) {
            self.last = deadline;
        }
        let started = started.and_then(|mut watchdog| {
            watchdog.tell(self.last)?;
            Ok(watchdog)
        });
        match started {
            Ok(watchdog) => std::mem::replace(&mut self.watchdog, watchdog).dismiss(),
            Err(error) => {
                self.voice.warn(&format!(
                    "the watchdog was killed, and there can be no other: {error}; the command is killed"
                ));
                let now = SystemClock.now();
                self.lost.get_or_insert(self.plan.at_once(now, now));
                self.job.signal(Signal::KILL);
            }
        }
    }

    /// The command was stopped: so is all of this job, where somebody would continue it.
    fn stopped(&mut self, signal: Option<Signal>) {
        let asks = matches!(signal, Some(Signal::TTIN | Signal::TTOU));
        let leads = terminal::own_group() == Some(getpid());
        if let Some(terminal) = &mut self.terminal {
            self.wants_terminal |= asks;
            if asks && terminal.is_ours() {
                return self.go_on();
            }
            if terminal.is_lent() || leads {
                if terminal::is_orphan() {
                    return self.job.signal(Signal::CONT);
                }
                terminal.take_back();
                // Returns when the shell continues it.
                let _ = kill_current_process_group(Signal::STOP);
                return self.go_on();
            }
        }
        if std::mem::take(&mut self.stops_too) {
            let _ = kill_process(getpid(), Signal::STOP);
            self.go_on();
        } else if asks {
            self.voice.warn(
                "the command asks for the terminal, which is not this job's, and stands still until it is",
            );
        }
    }

    fn go_on(&mut self) {
        self.stops_too = false;
        if self.wants_terminal
            && let Some(terminal) = &mut self.terminal
        {
            terminal.lend(self.job.group());
        }
        self.job.signal(Signal::CONT);
    }
}
