//! Rule 17: a steady stream of one mode starves no waiter of another one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::Mode;

use crate::modes::{Pair, take_in};
use crate::rig::{Outcome, Rig, build};

/// How long a thread holds the name, so that all other keepers of the stream wait for it meanwhile.
const WORK: Duration = Duration::from_millis(1);
/// How long a reader holds the name until another one has come.
const OVERLAP: Duration = Duration::from_millis(10);

/// Threads of two keepers hold the name in the mode `stream` without a pause. Meanwhile a third keeper, and
/// then one of the two, acquires it in the mode `rival`. The holds of readers overlap, so that the name is
/// free of readers only when they are held back.
fn pass_stream(rig: &Rig<'_>, pair: Pair) {
    let (name, stream, rival) = (&pair.name(), pair.held, pair.rival);
    let keepers = [(); 3].map(|()| build(rig.builder().handover_max(3)));
    let (stop, grants) = (&AtomicBool::new(false), &AtomicU64::new(0));
    thread::scope(|scope| {
        let _stop = StopOnDrop(stop);
        for number in 0..4 {
            let keeper = &keepers[number % 2];
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let _guard = take_in(keeper, name, stream);
                    let own = grants.fetch_add(1, Ordering::SeqCst) + 1;
                    thread::sleep(WORK);
                    let end = Instant::now() + OVERLAP;
                    let is_last = || grants.load(Ordering::SeqCst) == own;
                    while stream == Mode::Shared && is_last() && Instant::now() < end {
                        thread::park_timeout(Duration::from_micros(200));
                    }
                }
            });
        }
        rig.until("the stream runs", || grants.load(Ordering::SeqCst) >= 20);
        for keeper in [&keepers[2], &keepers[0]] {
            for _ in 0..3 {
                drop(take_in(keeper, name, rival));
            }
        }
    });
}

/// Ends the stream also when the case fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub(super) fn stream_of_one_mode_starves_no_waiter(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| {
        pass_stream(rig, pair);
        Ok(())
    })
}
