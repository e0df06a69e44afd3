//! Calls that continue after their caller has stopped waiting: a call that is cut short leaves its
//! connection in doubt, and with it the locks of other callers.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

enum State<T> {
    Running,
    Done(T),
    Abandoned,
}

/// A call that runs on a thread of its own.
pub(crate) struct Call<T>(Arc<(Mutex<State<T>>, Condvar)>);

/// Starts `work` on a thread. If the caller has stopped waiting, the result goes to `late`. Returns
/// `None` if no thread can be started.
pub(crate) fn start<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(T) + Send + 'static,
) -> Option<Call<T>> {
    let shared = Arc::new((Mutex::new(State::Running), Condvar::new()));
    let theirs = Arc::clone(&shared);
    thread::Builder::new()
        .name("lockkeeper-mysql-call".to_owned())
        .spawn(move || {
            let value = work();
            let (state, done) = &*theirs;
            let mut state = state.lock();
            if matches!(*state, State::Abandoned) {
                drop(state);
                late(value);
            } else {
                *state = State::Done(value);
                done.notify_one();
            }
        })
        .ok()?;
    Some(Call(shared))
}

impl<T> Call<T> {
    /// Waits for the result until `until`. After `None` the call continues, and ends with `late`.
    pub(crate) fn wait(self, until: Instant) -> Option<T> {
        let (state, done) = &*self.0;
        let mut state = state.lock();
        while matches!(*state, State::Running) {
            if done.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        match std::mem::replace(&mut *state, State::Abandoned) {
            State::Done(value) => Some(value),
            State::Running | State::Abandoned => None,
        }
    }
}

/// Returns the time after `left`, or after a day: an `Instant` ends before a `Duration`.
pub(crate) fn after(left: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(left.min(Duration::from_secs(86_400)))
        .unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn result_in_time_is_returned_and_late_one_is_handed_on() {
        let call = start(|| 1, |_| unreachable!()).unwrap();
        assert_eq!(call.wait(after(Duration::from_secs(60))), Some(1));

        let (go, gone) = channel::<()>();
        let (tell, told) = channel();
        let call = start(
            move || gone.recv().map_or(2, |()| 3),
            move |late| tell.send(late).unwrap(),
        );
        assert_eq!(call.unwrap().wait(Instant::now()), None);
        drop(go);
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(2));
    }
}
