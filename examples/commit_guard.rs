//! Refuses late commits. The last step of the application's transaction renews the guard in the lock
//! store. If the guard is lost, the transaction is rolled back.
//!
//! `cargo run --example commit_guard`
//!
//! Here data and locks are two SQLite files; any other lock store works as well. If data and locks are
//! on one MySQL, MariaDB or PostgreSQL server, the transaction itself can check the lock instead: see
//! `examples/diesel/src/bin/mysql.rs`.
//!
//! If the data is in Redis, a script compares tokens, as in the example `fencing`.

use std::error::Error;
use std::path::Path;
use std::thread;
use std::time::Duration;

use lockkeeper::{AcquireOptions, ErrorKind, LeasePolicy, LockGuard};
use rusqlite::{Connection, TransactionBehavior};

/// Sells one item. Returns `false` if none is left, or if a later holder has written already. An error
/// changes nothing.
fn sell(data: &Path, guard: &LockGuard, work: impl FnOnce()) -> Result<bool, Box<dyn Error>> {
    let mut data = Connection::open(data)?;
    // A transaction that begins to write later would fail if another connection wrote in between.
    let transaction = data.transaction_with_behavior(TransactionBehavior::Immediate)?;
    work();
    let changed = transaction.execute(
        "UPDATE product SET stock = stock - 1, token = ?1 WHERE id = 7 AND stock > 0 AND token <= ?1",
        [guard.token().as_i64()],
    )?;
    // The keeper uses its own connection, because this transaction may read an old snapshot. On an
    // error, the transaction is dropped, which rolls it back.
    guard.renew()?;
    transaction.commit()?;
    Ok(changed == 1)
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.db");
    let data = Connection::open(&file)?;
    data.execute_batch(
        "CREATE TABLE product(id INTEGER PRIMARY KEY, stock INTEGER, token INTEGER NOT NULL);
         INSERT INTO product VALUES(7, 5, 0)",
    )?;
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let keeper = lockkeeper::open(&url)?;

    // The work takes longer than the lease, and the next holder is granted the lock meanwhile.
    let ttl = Duration::from_millis(200);
    let short = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let late = keeper.acquire("product:7", &short)?.ok_or("busy")?;
    let mut next = None;
    let too_late = sell(&file, &late, || next = keeper.lock("product:7").ok());
    let refused = too_late.err().ok_or("a late commit was accepted")?;
    println!("too late: {refused}");
    let kind = refused.downcast_ref().map(lockkeeper::Error::kind);
    assert!(kind == Some(ErrorKind::Lost) && next.is_some());
    drop(next);

    // These commits are in time: five of a hundred buyers get an item.
    let buy = || -> Result<bool, String> {
        let guard = keeper.lock("product:7").map_err(|it| it.to_string())?;
        sell(&file, &guard, || {}).map_err(|it| it.to_string())
    };
    let sold = thread::scope(|scope| -> Result<usize, Box<dyn Error>> {
        let buyers: Vec<_> = (0..100).map(|_| scope.spawn(buy)).collect();
        let mut sold = 0;
        for buyer in buyers {
            sold += usize::from(buyer.join().map_err(|_| "a buyer panicked")??);
        }
        Ok(sold)
    })?;
    let stock: i64 = data.query_row("SELECT stock FROM product", [], |row| row.get(0))?;
    println!("sold: {sold}, stock: {stock}");
    assert_eq!((sold, stock), (5, 0));
    Ok(())
}
