//! Reads a price list in many threads while another thread changes it: readers beside each other, the writer
//! alone.
//!
//! `cargo run --example price_list`

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use lockkeeper::Error;

fn main() -> Result<(), Error> {
    let keeper = lockkeeper::open("memory:?wait=5s")?;
    // Two prices that must agree. Nothing but the lock keeps them together.
    let (net, gross) = (AtomicU64::new(100), AtomicU64::new(119));
    let torn = AtomicU64::new(0);

    // Any number of readers, and no writer beside them.
    let readers = [keeper.lock_shared("prices")?, keeper.lock_shared("prices")?];
    assert!(keeper.try_lock("prices")?.is_none());
    drop(readers);

    let read = || -> Result<(), Error> {
        let _reading = keeper.lock_shared("prices")?;
        let seen = net.load(Ordering::Relaxed);
        thread::yield_now();
        if gross.load(Ordering::Relaxed) != seen * 119 / 100 {
            torn.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let change = || -> Result<(), Error> {
        // Readers that come later wait behind this one, so it need not wait until there are none.
        let writing = keeper.lock("prices")?;
        let price = net.load(Ordering::Relaxed) + 100;
        net.store(price, Ordering::Relaxed);
        thread::yield_now();
        gross.store(price * 119 / 100, Ordering::Relaxed);
        writing.release().map(|_| ())
    };
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..100).try_for_each(|_| read()));
        }
        scope.spawn(|| (0..10).try_for_each(|_| change()));
    });

    let (net, gross, torn) = (net.into_inner(), gross.into_inner(), torn.into_inner());
    println!("8 readers beside 10 changes: {net} and {gross}, {torn} saw half of a change");
    assert_eq!((net, gross, torn), (1_100, 1_309, 0));
    Ok(())
}
