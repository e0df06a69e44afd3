//! Reacts to the loss of a lock: here a fixed lease expires during the work.
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
        .ok_or("the lock is held by another")?;

    // A program learns of the loss by a callback, by waiting for the signal, or by a check.
    let (send, lost) = mpsc::channel();
    guard.lost_signal().on_lost(move || {
        let _ = send.send(());
    });

    let mut steps = 0;
    while guard.ensure_held().is_ok() {
        // One step of the work. Waiting for the signal instead of sleeping ends the step early.
        if guard.lost_signal().wait(Duration::from_millis(30)) == WaitOutcome::Lost {
            break;
        }
        steps += 1;
    }
    lost.recv_timeout(Duration::from_secs(10))?;
    println!("lost after {steps} steps; the next holder does the rest");

    // The next holder acquires the lock, and the late release does not take it away.
    let next = keeper.lock("export")?;
    assert_eq!(guard.release()?, Released::AlreadyLost);
    next.ensure_held()?;
    println!(
        "the next holder still holds the lock, with token {}",
        next.token()
    );
    Ok(())
}
