//! Those who wait.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::ErrorKind;

use super::{HANG, Witness};

/// Somebody with a keeper of its own who waits for `a`.
pub(crate) struct Waiting {
    answer: Receiver<Result<u64, ErrorKind>>,
    until: Instant,
}

impl Waiting {
    pub(crate) fn start(url: &str, wait: Duration, witness: &Witness) -> Self {
        let (tell, answer) = channel();
        let keeper = lockkeeper::open(url).unwrap();
        let witness = witness.clone();
        let until = Instant::now() + wait;
        thread::spawn(move || {
            let granted = match keeper.try_lock_for("a", wait) {
                Ok(Some(guard)) => {
                    witness.enter(&guard);
                    Ok(guard.token().get())
                }
                Ok(None) => Err(ErrorKind::TimedOut),
                Err(error) => Err(error.kind()),
            };
            let _ = tell.send(granted);
        });
        Self { answer, until }
    }

    /// The token, or why there is none.
    #[track_caller]
    pub(crate) fn answer(self) -> Result<u64, ErrorKind> {
        let left = self.until.saturating_duration_since(Instant::now()) + HANG;
        let answer = self.answer.recv_timeout(left);
        answer.expect("an answer by its deadline, and no panic")
    }
}
