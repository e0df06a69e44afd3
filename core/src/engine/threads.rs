//! Threads of a keeper, which take jobs from one queue.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::engine::timer::spawn;
use crate::sync::{lock, wait};

/// The most threads that run jobs at the same time.
const MAX_THREADS: usize = 16;
/// The time after which untaken jobs bring in more threads.
pub(crate) const MAX_QUEUED: Duration = Duration::from_millis(5);

/// Jobs that wait for a thread. Each job has a kind `K`. Jobs of one kind use only some of the threads, so that a kind
/// whose jobs hang does not delay the others. The kinds take turns.
pub(crate) struct JobQueue<K, J> {
    /// The most threads for the jobs of one kind, and so the most of them that may hang without delaying the others.
    most_of_kind: usize,
    kinds: Vec<JobsOfKind<K, J>>,
}

struct JobsOfKind<K, J> {
    kind: K,
    jobs: VecDeque<J>,
    /// How many are under way.
    running: usize,
}

impl<K: Copy + Eq, J> JobQueue<K, J> {
    pub(crate) fn new(most_of_kind: usize) -> Self {
        Self {
            most_of_kind,
            kinds: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, kind: K, job: J) {
        match self.kinds.iter_mut().find(|it| it.kind == kind) {
            Some(it) => it.jobs.push_back(job),
            None => self.kinds.push(JobsOfKind {
                kind,
                jobs: VecDeque::from([job]),
                running: 0,
            }),
        }
    }

    fn is_empty(&self) -> bool {
        self.kinds.iter().all(|it| it.jobs.is_empty())
    }

    fn running(&self) -> usize {
        self.kinds.iter().map(|it| it.running).sum()
    }

    /// Returns how many jobs could be under way, with enough threads.
    pub(crate) fn runnable(&self) -> usize {
        let of_kind = |it: &JobsOfKind<K, J>| (it.running + it.jobs.len()).min(self.most_of_kind);
        self.kinds
            .iter()
            .map(of_kind)
            .sum::<usize>()
            .min(MAX_THREADS)
    }

    /// Takes a job: call [`end`](Self::end) after it.
    pub(crate) fn take(&mut self) -> Option<(K, J)> {
        let is_ready =
            |it: &JobsOfKind<K, J>| !it.jobs.is_empty() && it.running < self.most_of_kind;
        let at = self.kinds.iter().position(is_ready)?;
        let mut taken = self.kinds.remove(at);
        taken.running += 1;
        let job = taken.jobs.pop_front()?;
        let kind = taken.kind;
        self.kinds.push(taken);
        Some((kind, job))
    }

    pub(crate) fn end(&mut self, kind: K) {
        self.kinds.retain_mut(|it| {
            it.running -= usize::from(it.kind == kind);
            it.running > 0 || !it.jobs.is_empty()
        });
    }

    /// Keeps the jobs of some kinds alone.
    fn keep(&mut self, keeps: impl Fn(&K) -> bool) {
        for it in &mut self.kinds {
            if !keeps(&it.kind) {
                it.jobs.clear();
            }
        }
    }

    /// Takes all jobs that no thread has taken.
    fn clear(&mut self) -> Vec<J> {
        let jobs = self.kinds.iter_mut().map(|it| std::mem::take(&mut it.jobs));
        jobs.flatten().collect()
    }
}

/// A queue of jobs and its threads: one, and further ones only while jobs hang.
pub(crate) struct Threads<K, J> {
    name: &'static str,
    state: Mutex<State<K, J>>,
    work: Condvar,
}

struct State<K, J> {
    stopped: bool,
    queue: JobQueue<K, J>,
    idle: usize,
    threads: usize,
    /// When a job was last taken, a thread started, or a job came into the empty queue.
    progress: Instant,
}

impl<K: Copy + Eq + Send + 'static, J: Send + 'static> Threads<K, J> {
    pub(crate) fn new(name: &'static str, most_of_kind: usize) -> Arc<Self> {
        Arc::new(Self {
            name,
            state: Mutex::new(State {
                stopped: false,
                queue: JobQueue::new(most_of_kind),
                idle: 0,
                threads: 0,
                progress: Instant::now(),
            }),
            work: Condvar::new(),
        })
    }

    /// Queues `jobs`, and starts more threads if all of them hang; `may_hang` starts them at once. `run` does one job.
    /// Returns true if jobs are queued and more threads could join: call it again, after [`MAX_QUEUED`].
    pub(crate) fn push(
        self: &Arc<Self>,
        jobs: Vec<(K, J)>,
        may_hang: bool,
        run: &(impl Fn(J) + Clone + Send + 'static),
    ) -> bool {
        let mut state = lock(&self.state);
        if state.queue.is_empty() {
            state.progress = Instant::now();
        }
        for (kind, job) in jobs {
            state.queue.push(kind, job);
        }
        if state.queue.is_empty() {
            return false;
        }
        let running = state.queue.running();
        let ready = state.queue.runnable() - running;
        // One for each job, since any of them may hang. A thread that finds no job sleeps again.
        for _ in 0..ready.min(state.idle) {
            self.work.notify_one();
        }
        let is_stuck = state.idle == 0 && state.progress.elapsed() >= MAX_QUEUED;
        let missing = match state.threads {
            threads if is_stuck || may_hang => {
                // On a busy machine, the threads of the last call may not have begun. The sum stays within MAX_THREADS, since
                // no more jobs than that are runnable.
                let starting = threads.saturating_sub(running);
                ready.saturating_sub(starting)
            }
            0 => ready.min(1),
            _ => 0,
        };
        for _ in 0..missing {
            let (threads, run) = (Arc::clone(self), run.clone());
            // If the system starts no thread, the next call tries again while the lease lasts.
            if spawn(self.name, move || threads.work(run)).is_ok() {
                state.threads += 1;
                state.progress = Instant::now();
            }
        }
        ready > 0 && state.threads < MAX_THREADS
    }

    fn work(&self, run: impl Fn(J)) {
        let mut state = lock(&self.state);
        loop {
            let Some((kind, job)) = state.queue.take() else {
                if state.stopped {
                    state.threads -= 1;
                    return;
                }
                state.idle += 1;
                state = wait(&self.work, state, None);
                state.idle -= 1;
                continue;
            };
            state.progress = Instant::now();
            drop(state);
            run(job);
            state = lock(&self.state);
            state.queue.end(kind);
        }
    }

    /// Ends the threads without waiting for them, after all jobs of the kinds that last. Returns the jobs of these
    /// kinds for which there is no thread.
    pub(crate) fn stop(&self, lasts: impl Fn(&K) -> bool) -> Vec<J> {
        let mut state = lock(&self.state);
        state.stopped = true;
        state.queue.keep(lasts);
        self.work.notify_all();
        match state.threads {
            0 => state.queue.clear(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn kind_is_bounded_while_one_of_its_jobs_runs() {
        let mut queue = JobQueue::new(2);
        queue.push('a', 1);
        queue.push('a', 2);
        assert_eq!(queue.take(), Some(('a', 1)));
        assert_eq!(queue.take(), Some(('a', 2)));
        queue.end('a');
        queue.push('a', 3);
        queue.push('a', 4);
        assert_eq!(queue.take(), Some(('a', 3)));
        assert_eq!(queue.take(), None);
        queue.end('a');
        assert_eq!(queue.take(), Some(('a', 4)));
        queue.end('a');
        queue.end('a');
        assert!(queue.kinds.is_empty(), "no kind stays without jobs");
    }

    /// Ends a test's wait that would last forever.
    fn until(is_true: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_true() {
            assert!(began.elapsed() < Duration::from_secs(60));
            thread::yield_now();
        }
    }

    #[test]
    fn threads_join_only_after_a_time_without_progress() {
        let threads = Threads::new("test-work", 1);
        let (end, ended) = channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let run = move |is_hanging: bool| {
            if is_hanging {
                let _ = lock(&ended).recv();
            }
        };
        threads.push(vec![('a', false)], false, &run);
        until(|| lock(&threads.state).idle == 1);
        threads.push(vec![('a', true)], false, &run);
        until(|| lock(&threads.state).queue.running() == 1);
        assert!(
            !threads.push(vec![('a', true)], false, &run),
            "one of a kind"
        );
        lock(&threads.state).progress = Instant::now() + Duration::from_secs(3600);
        assert!(threads.push(vec![('b', true)], false, &run));
        assert_eq!(lock(&threads.state).threads, 1, "it was just taken");
        lock(&threads.state).progress = Instant::now() - MAX_QUEUED;
        threads.push(Vec::new(), false, &run);
        assert_eq!(lock(&threads.state).threads, 2);
        assert!(threads.stop(|_| false).is_empty());
        drop(end);
    }

    #[test]
    fn threads_join_up_to_the_limit_while_jobs_hang() {
        let threads = Threads::new("test-work", 1);
        let (end, ended) = channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let run = move |_: usize| {
            let _ = lock(&ended).recv();
        };
        let jobs = (0..MAX_THREADS + 3).map(|kind| (kind, kind)).collect();
        assert!(
            threads.push(jobs, false, &run),
            "further threads could join"
        );
        assert_eq!(lock(&threads.state).threads, 1);
        while threads.push(Vec::new(), false, &run) {
            thread::yield_now();
        }
        assert_eq!(lock(&threads.state).threads, MAX_THREADS);
        assert!(threads.stop(|_| false).is_empty());
        drop(end);
    }
}
