//! A few threads that take jobs from one queue.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::sync::{lock, wait};
use crate::timer::spawn;

/// The most threads that run jobs at the same time, and so the most jobs that may hang without
/// delaying the others.
const MAX_WORKERS: usize = 4;
/// The time after which untaken jobs bring in more threads.
pub(crate) const MAX_QUEUED: Duration = Duration::from_millis(5);

/// The queue of jobs and its threads: one, and further ones only while jobs hang, so that a store call
/// that hangs does not delay the others.
pub(crate) struct Workers<J> {
    state: Mutex<State<J>>,
    work: Condvar,
}

struct State<J> {
    stopped: bool,
    jobs: VecDeque<J>,
    idle: usize,
    threads: usize,
    /// The number of jobs taken so far.
    taken: u64,
    /// When jobs were first seen untaken, after `taken` before.
    stalled: Option<(u64, Instant)>,
}

impl<J> State<J> {
    /// Returns whether all threads hang: none is idle, and none has taken a job for [`MAX_QUEUED`].
    fn is_stuck(&mut self) -> bool {
        if self.idle > 0 {
            self.stalled = None;
            return false;
        }
        match self.stalled {
            Some((taken, since)) if taken == self.taken => since.elapsed() >= MAX_QUEUED,
            _ => {
                self.stalled = Some((self.taken, Instant::now()));
                false
            }
        }
    }
}

impl<J: Send + 'static> Workers<J> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                stopped: false,
                jobs: VecDeque::new(),
                idle: 0,
                threads: 0,
                taken: 0,
                stalled: None,
            }),
            work: Condvar::new(),
        })
    }

    /// Queues `jobs`, and starts another thread if all of them hang. `run` does one job; false ends
    /// the thread. Returns true if jobs are queued and more threads could join: call it again, after
    /// [`MAX_QUEUED`].
    pub(crate) fn push(
        self: &Arc<Self>,
        jobs: Vec<J>,
        run: &(impl Fn(J) -> bool + Clone + Send + 'static),
    ) -> bool {
        let mut state = lock(&self.state);
        state.jobs.extend(jobs);
        let queued = state.jobs.len();
        if queued == 0 {
            state.stalled = None;
            return false;
        }
        // One for each job, since any of them may hang. A thread that finds no job sleeps again.
        for _ in 0..queued.min(state.idle) {
            self.work.notify_one();
        }
        let missing = if state.threads == 0 {
            1
        } else if state.is_stuck() {
            queued.min(MAX_WORKERS - state.threads)
        } else {
            0
        };
        for _ in 0..missing {
            let (workers, run) = (Arc::clone(self), run.clone());
            // If the system starts no thread, the next call tries again while the lease lasts.
            if spawn("lockkeeper-renew", move || workers.work(run)).is_ok() {
                state.threads += 1;
                state.stalled = None;
            }
        }
        state.threads < MAX_WORKERS
    }

    fn work(&self, run: impl Fn(J) -> bool) {
        let mut state = lock(&self.state);
        while !state.stopped {
            let Some(job) = state.jobs.pop_front() else {
                state.idle += 1;
                state = wait(&self.work, state, None);
                state.idle -= 1;
                continue;
            };
            state.taken += 1;
            drop(state);
            if !run(job) {
                return;
            }
            state = lock(&self.state);
        }
    }

    /// Ends the threads without waiting for them.
    pub(crate) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.work.notify_all();
    }
}
