//! Commits under a guard in one call, which says how the transaction ended.
//!
//! `cargo run --example commit_in --features transactions-rusqlite`
//!
//! Here data and locks are two SQLite files; any other lock store works as well. `examples/diesel` does the same with
//! Diesel, on servers that have both data and locks.

use std::error::Error;
use std::time::Duration;

use lockkeeper::transactions::{CommitError, CommitIn};
use lockkeeper::{AcquireOptions, ErrorKind, LeasePolicy, LockGuard};
use rusqlite::Connection;

type Ended = Result<usize, CommitError<rusqlite::Error, rusqlite::Error>>;

/// Sells one item, unless a later holder has written already. Returns the number of items that were sold.
fn sell(data: &mut Connection, guard: &LockGuard, then: impl FnOnce()) -> Ended {
    let token = guard.token().as_i64();
    guard.commit_in(data, |transaction| {
        // The token refuses a program that was stopped between the proof and its commit.
        let sql = "UPDATE product SET stock = stock - 1, token = ?1 WHERE token <= ?1";
        let sold = transaction.execute(sql, [token])?;
        then();
        Ok(sold)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut data = Connection::open(folder.path().join("shop.db"))?;
    data.execute_batch(
        "CREATE TABLE product(stock INTEGER NOT NULL CHECK (stock >= 0), token INTEGER NOT NULL);
         INSERT INTO product VALUES(1, 0)",
    )?;
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let keeper = lockkeeper::open(&url)?;

    // The work takes longer than the lease, and the next holder is granted the lock meanwhile.
    let ttl = Duration::from_millis(200);
    let short = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let late = keeper.acquire("product:7", &short)?.ok_or("busy")?;
    let mut next = None;
    let ended = sell(&mut data, &late, || next = keeper.lock("product:7").ok());
    println!("too late: {ended:?}");
    assert!(matches!(ended, Err(CommitError::Lock(error)) if error.kind() == ErrorKind::Lost));

    let guard = next.ok_or("the next holder did not get the lock")?;
    let ended = sell(&mut data, &guard, || {});
    println!("in time: {ended:?}");
    assert_eq!(ended?, 1);

    let ended = sell(&mut data, &guard, || {});
    println!("once more: {ended:?}");
    assert!(
        matches!(ended, Err(CommitError::Work(_))),
        "an item was sold twice"
    );
    let stock: i64 = data.query_row("SELECT stock FROM product", [], |row| row.get(0))?;
    assert_eq!(stock, 0);
    Ok(())
}
