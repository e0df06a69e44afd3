//! A few threads that take jobs from one queue.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::sync::{lock, wait};
use crate::timer::spawn;

/// The most threads that run jobs at the same time.
const MAX_WORKERS: usize = 12;
/// The time after which untaken jobs bring in more threads.
pub(crate) const MAX_QUEUED: Duration = Duration::from_millis(5);

/// The queue of jobs and its threads: one, and further ones only while jobs hang. Each job has a kind `K`. Jobs of one
/// kind use only some of the threads, so that a kind whose jobs hang does not delay the others.
pub(crate) struct Workers<K, J> {
    thread_name: &'static str,
    /// The most threads for the jobs of one kind, and so the most of them that may hang without delaying the others.
    most_of_kind: usize,
    state: Mutex<State<K, J>>,
    work: Condvar,
}

struct State<K, J> {
    stopped: bool,
    jobs: VecDeque<(K, J)>,
    /// The kind of each job that is under way.
    running: Vec<K>,
    idle: usize,
    threads: usize,
    /// When a job was last taken, a thread started, or a job came into the empty queue.
    progress: Instant,
}

impl<K: Copy + Eq, J> State<K, J> {
    /// Returns how many further jobs could be under way, with enough threads.
    fn ready(&self, most_of_kind: usize) -> usize {
        let mut running = self.running.clone();
        for (kind, _) in &self.jobs {
            if running.len() < MAX_WORKERS && count(&running, *kind) < most_of_kind {
                running.push(*kind);
            }
        }
        running.len() - self.running.len()
    }

    /// Takes the first job that may be taken.
    fn take(&mut self, most_of_kind: usize) -> Option<(K, J)> {
        let is_ready = |(kind, _): &(K, J)| count(&self.running, *kind) < most_of_kind;
        let at = self.jobs.iter().position(is_ready)?;
        let (kind, job) = self.jobs.remove(at)?;
        self.running.push(kind);
        Some((kind, job))
    }

    fn end(&mut self, kind: K) {
        if let Some(at) = self.running.iter().position(|other| *other == kind) {
            self.running.swap_remove(at);
        }
    }
}

fn count<K: Copy + Eq>(running: &[K], kind: K) -> usize {
    running.iter().filter(|other| **other == kind).count()
}

impl<K: Copy + Eq + Send + 'static, J: Send + 'static> Workers<K, J> {
    pub(crate) fn new(thread_name: &'static str, most_of_kind: usize) -> Arc<Self> {
        Arc::new(Self {
            thread_name,
            most_of_kind,
            state: Mutex::new(State {
                stopped: false,
                jobs: VecDeque::new(),
                running: Vec::new(),
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
        jobs: Vec<(K, J)>,
        run: &(impl Fn(J) -> bool + Clone + Send + 'static),
    ) -> bool {
        let mut state = lock(&self.state);
        if state.jobs.is_empty() {
            state.progress = Instant::now();
        }
        state.jobs.extend(jobs);
        if state.jobs.is_empty() {
            return false;
        }
        let ready = state.ready(self.most_of_kind);
        // One for each job, since any of them may hang. A thread that finds no job sleeps again.
        for _ in 0..ready.min(state.idle) {
            self.work.notify_one();
        }
        let is_stuck = state.idle == 0 && state.progress.elapsed() >= MAX_QUEUED;
        let missing = match state.threads {
            0 => ready.min(1),
            threads if is_stuck => {
                // On a busy machine, the threads of the last call may not have begun.
                let starting = threads.saturating_sub(state.running.len());
                ready.saturating_sub(starting).min(MAX_WORKERS - threads)
            }
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
        ready > 0 && state.threads < MAX_WORKERS
    }

    fn work(&self, run: impl Fn(J) -> bool) {
        let mut state = lock(&self.state);
        while !state.stopped {
            let Some((kind, job)) = state.take(self.most_of_kind) else {
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
            state.end(kind);
        }
    }

    /// Ends the threads without waiting for them.
    pub(crate) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.work.notify_all();
    }
}
