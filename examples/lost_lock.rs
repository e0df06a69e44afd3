//! What to do when a lock is lost: here a fixed lease runs out under the work.
//!
//! `cargo run --example lost_lock`

use std::sync::mpsc;
use std::time::Duration;

use lockkeeper::{AcquireOptions, LeasePolicy, Released, WaitOutcome};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let keeper = lockkeeper::open("memory:")?;
    let ttl = Duration::from_millis(200);
    let options = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let guard = keeper
        .acquire("export", &options)?
        .ok_or("somebody else holds it")?;

    // Three ways to hear of it: be called back, wait, or ask.
    let (send, lost) = mpsc::channel();
    guard.lost_signal().on_lost(move || {
        let _ = send.send(());
    });

    let mut steps = 0;
    while guard.ensure_held().is_ok() {
        // A piece of work; between two of them the loss is noticed. Waiting for the signal
        // instead of sleeping ends a pause early.
        if guard.lost_signal().wait(Duration::from_millis(30)) == WaitOutcome::Lost {
            break;
        }
        steps += 1;
    }
    lost.recv_timeout(Duration::from_secs(10))?;
    println!("lost after {steps} steps; the rest is left to whoever holds it next");

    // The next one gets it, and the late release does not take it away again.
    let next = keeper.lock("export")?;
    assert_eq!(guard.release()?, Released::AlreadyLost);
    next.ensure_held()?;
    println!("the next holder is untouched, with token {}", next.token());
    Ok(())
}
