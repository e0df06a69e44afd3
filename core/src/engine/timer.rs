//! A thread that calls a closure at due times.
//!
//! The closure of a keeper's timer must not call the store. A call that hangs would delay the notice of every
//! loss.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::{Clock, HostInstant};
use crate::error::{Error, ErrorKind};
use crate::sync::{lock, wait};

/// The longest sleep before a deadline. Condvar time-outs do not advance while the host is
/// suspended, so a deadline is noticed this late after a suspend.
pub(crate) const MAX_SLEEP: Duration = Duration::from_secs(1);
/// The clock has jumped if it is ahead of the time that a Condvar counts by more than this.
const JUMP: Duration = Duration::from_millis(100);
/// The next poll of a thread that was not started, or has no due time. Every due time is earlier.
const NONE_DUE: u64 = u64::MAX;

/// A thread that calls a closure when something is due by a [`Clock`], for keepers and backends.
///
/// The closure returns its next due time. [`note`](Timer::note) moves that time forward, and a
/// clock that jumps makes the closure due at once.
pub struct Timer {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    /// When the closure is due next, in nanoseconds.
    next: AtomicU64,
    /// The clock has reported that it jumped.
    jumped: AtomicBool,
    state: Mutex<State>,
    alarm: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Running,
    Stopped,
}

/// One call of a [`Timer`]'s closure.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    /// The time by the timer's clock.
    pub now: HostInstant,
    /// Whether the clock has jumped since the last call: by its own report, or because the host was
    /// suspended.
    pub jumped: bool,
}

impl Timer {
    /// Makes a timer without a thread.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let shared = Arc::new(Shared {
            next: AtomicU64::new(NONE_DUE),
            jumped: AtomicBool::new(false),
            state: Mutex::new(State::New),
            alarm: Condvar::new(),
            clock,
        });
        let weak = Arc::downgrade(&shared);
        shared.clock.on_jump(Arc::new(move || {
            if let Some(shared) = weak.upgrade() {
                shared.jumped.store(true, Ordering::Release);
                shared.note(0);
            }
        }));
        Self { shared }
    }

    /// Makes the closure due at `due` at the latest. The call is cheap if the closure is due earlier.
    pub fn note(&self, due: HostInstant) {
        self.shared.note(due.as_nanos());
    }

    /// Starts the thread, named `name`, unless it was started before.
    ///
    /// `poll` is called at once, and then whenever the time that it has returned is reached; `None`
    /// ends the thread. Let `poll` keep a weak reference to the timer's owner, so that the owner can
    /// end.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the system starts no thread.
    pub fn start(
        &self,
        name: &str,
        poll: impl FnMut(Tick) -> Option<HostInstant> + Send + 'static,
    ) -> Result<(), Error> {
        let mut state = lock(&self.shared.state);
        if *state != State::New {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        // Read here, so that a jump before the thread's first poll is noticed, too.
        let began = (shared.clock.now(), Instant::now());
        spawn(name, move || shared.run(began, poll))?;
        *state = State::Running;
        Ok(())
    }

    /// Ends the thread without waiting for it.
    pub fn stop(&self) {
        *lock(&self.shared.state) = State::Stopped;
        self.shared.alarm.notify_one();
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").finish_non_exhaustive()
    }
}

impl Shared {
    fn note(&self, due: u64) {
        if due < self.next.load(Ordering::SeqCst)
            && due < self.next.fetch_min(due, Ordering::AcqRel)
        {
            let _state = lock(&self.state);
            self.alarm.notify_one();
        }
    }

    fn run(
        &self,
        began: (HostInstant, Instant),
        mut poll: impl FnMut(Tick) -> Option<HostInstant>,
    ) {
        let mut last = began;
        loop {
            // This precedes the poll, so that a due time that is noted from here on is not missed.
            self.next.store(NONE_DUE, Ordering::SeqCst);
            // A Condvar counts by `Instant`, which does not advance while the host is suspended.
            let now = (self.clock.now(), Instant::now());
            let by_condvar = now.1.saturating_duration_since(last.1);
            let jumped = self.jumped.swap(false, Ordering::AcqRel)
                || now.0.saturating_since(last.0) > by_condvar + JUMP;
            last = now;
            let Some(next) = poll(Tick { now: now.0, jumped }) else {
                return;
            };
            self.next.fetch_min(next.as_nanos(), Ordering::AcqRel);
            let state = lock(&self.state);
            if *state == State::Stopped {
                return;
            }
            let next = self.next.load(Ordering::Acquire);
            let left = HostInstant::from_nanos(next).saturating_since(self.clock.now());
            if !left.is_zero() {
                let limit = (next != NONE_DUE).then(|| left.min(MAX_SLEEP));
                drop(wait(&self.alarm, state, limit));
            }
        }
    }
}

pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(drop)
        .map_err(|error| {
            let text = format!("the thread `{name}` cannot be started; raise the limit of threads");
            Error::new(ErrorKind::Unavailable, text).with_source(error)
        })
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

    use super::*;
    use crate::clock::{ManualClock, SystemClock};

    /// Ends a test's wait that would last forever.
    const LIMIT: Duration = Duration::from_secs(30);

    /// Starts a timer, and returns the channel on which each poll tells whether the clock has jumped.
    fn jumps(timer: &Timer) -> Receiver<bool> {
        let (sender, polled) = channel();
        let poll = move |tick: Tick| {
            sender.send(tick.jumped).ok()?;
            Some(HostInstant::NEVER)
        };
        timer.start("test-timer", poll).unwrap();
        polled
    }

    #[test]
    fn note_during_a_poll_is_not_missed() {
        let timer = Arc::new(Timer::new(Arc::new(SystemClock)));
        let (sender, polled) = channel();
        let noting = Arc::clone(&timer);
        let poll = move |tick: Tick| {
            noting.note(tick.now);
            sender.send(()).ok()?;
            Some(HostInstant::NEVER)
        };
        timer.start("test-timer", poll).unwrap();
        for _ in 0..3 {
            polled.recv_timeout(LIMIT).unwrap();
        }
        timer.stop();
    }

    #[test]
    fn clock_that_is_moved_by_hand_tells_of_the_smallest_jump() {
        let clock = ManualClock::new();
        let timer = Timer::new(Arc::new(clock.clone()));
        let polled = jumps(&timer);
        assert_eq!(polled.recv_timeout(LIMIT), Ok(false));
        clock.advance(Duration::from_nanos(1));
        assert_eq!(polled.recv_timeout(LIMIT), Ok(true));
    }

    #[test]
    fn thread_ends_with_its_timer_or_when_that_is_stopped() {
        for is_dropped in [true, false] {
            let mut timer = Some(Timer::new(Arc::new(SystemClock)));
            let polled = jumps(timer.as_ref().unwrap());
            polled.recv_timeout(LIMIT).expect("it polls once");
            match is_dropped {
                true => timer = None,
                false => timer.as_ref().unwrap().stop(),
            }
            let ended = iter::repeat_with(|| polled.recv_timeout(LIMIT)).find_map(Result::err);
            assert_eq!(ended, Some(RecvTimeoutError::Disconnected));
            drop(timer);
        }
    }

    /// A clock that reports no jump.
    #[derive(Debug)]
    struct Silent(ManualClock);

    impl Clock for Silent {
        fn now(&self) -> HostInstant {
            self.0.now()
        }
    }

    #[test]
    fn long_jump_is_noticed_also_where_the_clock_reports_none() {
        let clock = ManualClock::new();
        let timer = Timer::new(Arc::new(Silent(clock.clone())));
        let polled = jumps(&timer);
        assert_eq!(polled.recv_timeout(LIMIT), Ok(false));
        for (moved, jumps) in [(0, false), (1, false), (3_600_000, true)] {
            clock.advance(Duration::from_millis(moved));
            timer.note(HostInstant::default());
            assert_eq!(polled.recv_timeout(LIMIT), Ok(jumps), "{moved} ms");
        }
    }
}
