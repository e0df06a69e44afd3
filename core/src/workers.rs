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
    thread_name: &'static str,
    state: Mutex<State<J>>,
    work: Condvar,
}

struct State<J> {
    stopped: bool,
    jobs: VecDeque<J>,
    idle: usize,
    threads: usize,
    /// When a job was last taken, a thread started, or a job came into the empty queue.
    progress: Instant,
}

impl<J: Send + 'static> Workers<J> {
    pub(crate) fn new(thread_name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            thread_name,
            state: Mutex::new(State {
                stopped: false,
                jobs: VecDeque::new(),
                idle: 0,
                threads: 0,
                progress: Instant::now(),
            }),
            work: Condvar::new(),
        })
    }

    /// Queues `jobs`, and starts more threads if all of them hang. `run` does one job; false ends the
    /// thread. Returns true if jobs are queued and more threads could join: call it again, after
    /// [`MAX_QUEUED`].
    pub(crate) fn push(
        self: &Arc<Self>,
        jobs: Vec<J>,
        run: &(impl Fn(J) -> bool + Clone + Send + 'static),
    ) -> bool {
        let mut state = lock(&self.state);
        if state.jobs.is_empty() {
            state.progress = Instant::now();
        }
        state.jobs.extend(jobs);
        let queued = state.jobs.len();
        if queued == 0 {
            return false;
        }
        // One for each job, since any of them may hang. A thread that finds no job sleeps again.
        for _ in 0..queued.min(state.idle) {
            self.work.notify_one();
        }
        let is_stuck = state.idle == 0 && state.progress.elapsed() >= MAX_QUEUED;
        let missing = match state.threads {
            0 => 1,
            threads if is_stuck => queued.min(MAX_WORKERS - threads),
            _ => 0,
        };
        for _ in 0..missing {
            let (workers, run) = (Arc::clone(self), run.clone());
            // If the system starts no thread, the next call tries again while the lease lasts.
            if spawn(self.thread_name, move || workers.work(run)).is_ok() {
                state.threads += 1;
                state.progress = Instant::now();
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
            state.progress = Instant::now();
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
