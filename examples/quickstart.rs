//! Increments a number from ten threads, protected only by a lock.
//!
//! `cargo run --example quickstart`

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

fn main() -> Result<(), lockkeeper::Error> {
    let keeper = lockkeeper::open("memory:?ttl=30s&wait=5s")?;
    let sold = AtomicU64::new(0);

    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| -> Result<(), lockkeeper::Error> {
                let guard = keeper.lock("seat:42")?; // at most 5 s, else ErrorKind::TimedOut
                let before = sold.load(Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
                guard.ensure_held()?; // before an action that needs the lock
                sold.store(before + 1, Ordering::Relaxed);
                Ok(()) // the guard is dropped, which releases the lock
            });
        }
    });

    println!("10 threads, {} sold", sold.load(Ordering::Relaxed));
    assert_eq!(sold.load(Ordering::Relaxed), 10);
    Ok(())
}
