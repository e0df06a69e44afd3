//! Lets three calls at a time through to a server, over connections that are numbered by the slots of the permits.
//!
//! `cargo run --example connection_limiter`

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::{Error, ErrorKind};

const LIMIT: u32 = 3;

fn main() -> Result<(), Error> {
    // On `redis://…` it is three in all processes together. All of them use the same limit.
    let keeper = lockkeeper::open("memory:?wait=5s")?;
    let connections = keeper.semaphore("reports-server", LIMIT)?;
    // How often each connection was used. Adding in two steps is right only while no other thread has it.
    let used = [const { AtomicU32::new(0) }; LIMIT as usize];

    thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| -> Result<(), Error> {
                let permit = connections.acquire()?; // at most 5 s, else ErrorKind::TimedOut
                // From 0 to 2, and no other permit that is held has the same.
                if let Some(connection) = used.get(permit.slot() as usize) {
                    let before = connection.load(Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(5)); // the call
                    permit.ensure_held()?; // a permit can be lost, as a lock can
                    connection.store(before + 1, Ordering::Relaxed);
                }
                Ok(()) // the permit is dropped, which releases it
            });
        }
    });

    let used = used.map(AtomicU32::into_inner);
    println!("12 calls over {LIMIT} connections: {used:?}");
    assert_eq!(used.iter().sum::<u32>(), 12);

    // A program that uses another limit gets an error while permits are held.
    let permit = connections.acquire()?;
    let refused = keeper.semaphore("reports-server", 5)?.acquire();
    if let Err(error) = &refused {
        println!("a limit of 5: {error}");
    }
    let kind = refused.err().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::LimitMismatch));
    drop(permit);
    Ok(())
}
