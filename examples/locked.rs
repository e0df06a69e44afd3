//! The attribute `#[locked]`: a booking service whose methods run under locks.
//!
//! Run it with `cargo run --features macros --example locked`.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Mutex;
use std::thread::{self, ScopedJoinHandle};

use lockkeeper::{LockKeeper, locked};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

struct Seats {
    keeper: LockKeeper,
    /// Stands for a table: who has each seat, and the token of the last write.
    sold: Mutex<HashMap<u32, (String, u64)>>,
}

impl Seats {
    /// Sells a seat once. The lock is released when the method has returned.
    #[locked("seat:{seat}", keeper = self.keeper, wait = "5s", ttl = "30s", guard = lock)]
    fn book(&self, seat: u32, customer: &str) -> Result<bool> {
        if self.sold()?.contains_key(&seat) {
            return Ok(false);
        }
        // The payment takes a while here.
        lock.ensure_held()?;
        let row = (customer.to_owned(), lock.token().get());
        self.sold()?.insert(seat, row);
        Ok(true)
    }

    /// Makes a report. At most two run at the same time, in all programs together.
    #[locked("report", keeper = self.keeper, permits = 2)]
    fn report(&self) -> Result<usize> {
        Ok(self.sold()?.len())
    }

    fn sold(&self) -> Result<std::sync::MutexGuard<'_, HashMap<u32, (String, u64)>>> {
        self.sold.lock().map_err(|_| "a booking panicked".into())
    }
}

fn main() -> Result<()> {
    let seats = Seats {
        keeper: lockkeeper::open("memory:")?,
        sold: Mutex::default(),
    };
    let customers = ["Ada", "Grace", "Linus"];
    let booked = thread::scope(|scope| {
        let seats = &seats;
        let threads = customers.map(|customer| scope.spawn(move || seats.book(42, customer)));
        let joined = threads.into_iter().map(ScopedJoinHandle::join);
        joined
            .filter(|booked| matches!(booked, Ok(Ok(true))))
            .count()
    });
    println!("{booked} of {} customers got the seat", customers.len());
    if booked != 1 || seats.report()? != 1 {
        return Err("the seat was not sold once".into());
    }
    Ok(())
}
