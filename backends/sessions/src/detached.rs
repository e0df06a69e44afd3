//! Calls that continue after their caller has stopped waiting. If a call is cut short, the state of its
//! connection is unknown, and so are the locks of other callers on it.
//!
//! A thread stays for the next call for some time. Compared with a pool of 100, 40 threads that lock pairs of
//! names on a pool of 10 need 1.1 to 1.9 times as long. With a new thread for each call, they needed up to 2.6
//! times.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::CancelToken;

use parking_lot::{Condvar, Mutex};

use lockkeeper_remote::{Failure, unavailable, unknown};

/// The interval at which the caller of a call checks for a cancel. A server replies sooner unless it hangs.
const SLICE: Duration = Duration::from_millis(20);

/// How long a thread without a call stays for the next one.
const LINGER: Duration = Duration::from_millis(20);

/// The result of a call: there already, or to come from another thread.
pub(crate) enum Pending<T> {
    Done(Result<T, Failure>),
    Started(Receiver<Result<T, Failure>>),
}

impl<T> Pending<T> {
    /// Returns the result if it is there within `left`, and before a cancel.
    pub(crate) fn reply(self, left: Duration, cancel: Option<&CancelToken>) -> Result<T, Failure> {
        let reply = match self {
            Self::Done(result) => return result,
            Self::Started(reply) => reply,
        };
        let began = Instant::now();
        loop {
            let left = left.saturating_sub(began.elapsed());
            let is_over = left.is_zero() || cancel.is_some_and(CancelToken::is_cancelled);
            let slice = cancel.map_or(left, |_| left.min(SLICE));
            match reply.recv_timeout(slice) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) if !is_over => {}
                Err(_) => {
                    return Err(unknown(
                        "no reply yet; the request is still in flight, and a lock that it takes is given back",
                    ));
                }
            }
        }
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// The threads that run calls: one for each call that is under way.
pub(crate) struct DetachedCalls(Arc<Shared>);

struct Shared {
    /// The name of the threads.
    name: String,
    queue: Mutex<Queue>,
    queued: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Calls for the idle threads, at most as many as idle threads.
    calls: VecDeque<Work>,
    idle: usize,
}

impl DetachedCalls {
    /// Makes the calls of a backend, without threads so far. The name of the backend is a part of the
    /// threads' names.
    pub(crate) fn new(backend: &str) -> Self {
        Self(Arc::new(Shared {
            name: format!("lockkeeper-{backend}-call"),
            queue: Mutex::default(),
            queued: Condvar::new(),
        }))
    }

    /// Runs `work` on another thread. `work` sends its result. If the caller has dropped the
    /// receiver, sending fails and returns the result.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        work: impl FnOnce(SyncSender<T>) + Send + 'static,
    ) -> Result<Receiver<T>, Failure> {
        // The channel has no buffer in which a result could stay.
        let (sender, receiver) = sync_channel(0);
        let call: Work = Box::new(move || work(sender));
        let mut queue = self.0.queue.lock();
        if queue.idle > queue.calls.len() {
            queue.calls.push_back(call);
            self.0.queued.notify_one();
            return Ok(receiver);
        }
        drop(queue);
        let shared = Arc::clone(&self.0);
        let thread = thread::Builder::new().name(shared.name.clone());
        let spawned = thread.spawn(move || shared.run(call));
        spawned.map(|_| receiver).map_err(|error| {
            let text = "the thread that asks the server cannot be started; is the limit of threads reached?";
            Failure::NotSent(unavailable(text).with_source(error))
        })
    }
}

impl Shared {
    /// Runs a call, and further calls until the thread was idle for too long.
    fn run(&self, first: Work) {
        let mut next = Some(first);
        while let Some(call) = next {
            call();
            let mut queue = self.queue.lock();
            queue.idle += 1;
            let is_empty = |queue: &mut Queue| queue.calls.is_empty();
            self.queued.wait_while_for(&mut queue, is_empty, LINGER);
            queue.idle -= 1;
            next = queue.calls.pop_front();
        }
    }
}
