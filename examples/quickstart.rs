//! Ten threads add to a number that nothing but the lock protects.
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
                guard.ensure_held()?; // before what must not happen without the lock
                sold.store(before + 1, Ordering::Relaxed);
                Ok(()) // dropped: released
            });
        }
    });

    println!("10 threads, {} sold", sold.load(Ordering::Relaxed));
    assert_eq!(sold.load(Ordering::Relaxed), 10);
    Ok(())
}
