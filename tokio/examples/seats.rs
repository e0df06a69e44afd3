//! Five customers want one seat, which is sold to one. Run it with `scripts/examples seats`.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_tokio::AsyncKeeper;

/// Stands for a database.
type Seat = Arc<AtomicBool>;

async fn book(keeper: AsyncKeeper, is_sold: Seat) -> Result<bool, lockkeeper::Error> {
    let guard = keeper.lock("seat:42").await?;
    if is_sold.load(Ordering::Relaxed) {
        return Ok(false); // the drop of the guard releases the lock
    }
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(50)) => {} // the payment
        () = guard.lost() => {}
    }
    guard.ensure_held()?;
    is_sold.store(true, Ordering::Relaxed);
    guard.release().await?;
    Ok(true)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let open = || lockkeeper::open("memory:?wait=5s");
    let keeper = AsyncKeeper::new(tokio::task::spawn_blocking(open).await??);
    let is_sold = Seat::default();
    let customers = (0..5).map(|_| tokio::spawn(book(keeper.clone(), is_sold.clone())));
    let mut sold = 0;
    for customer in customers.collect::<Vec<_>>() {
        sold += u32::from(customer.await??);
    }
    println!("{sold} of 5 customers got the seat");
    assert_eq!(sold, 1);

    // A future that is dropped ends its wait.
    let guard = keeper.lock("seat:42").await?;
    let late = tokio::time::timeout(Duration::from_millis(50), keeper.lock("seat:42"));
    assert!(late.await.is_err(), "the seat is locked");
    drop(guard);
    println!("the wait of a customer that went away has ended");
    Ok(())
}
