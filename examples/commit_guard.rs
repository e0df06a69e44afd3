//! A late commit is refused: as the last step of the application's own transaction the keeper asks
//! the lock store whether the guard still holds, and the transaction is rolled back unless it does.
//!
//! `cargo run --example commit_guard`
//!
//! Here data and locks are two SQLite files; it is the same wherever the locks are. Where data and
//! locks are on one MySQL or MariaDB server, the transaction itself can ask it instead:
//!
//! ```text
//! let proof = guard.commit_proof()?;          // borrows the guard: it cannot be released meanwhile
//! transaction.query_drop("UPDATE product SET stock = stock - 1 WHERE id = 7")?;
//! match transaction.query_first(proof.sql())? {
//!     Some(1) => transaction.commit()?,       // SELECT IS_USED_LOCK('shop:product:7') = 42 AND …
//!     _ => transaction.rollback()?,
//! }
//! ```
//!
//! For data in Redis the data's own script compares tokens: see the example `fencing`.

use std::error::Error;
use std::path::Path;
use std::thread;
use std::time::Duration;

use lockkeeper::{AcquireOptions, ErrorKind, LeasePolicy, LockGuard};
use rusqlite::{Connection, TransactionBehavior};

/// Sells one. `false`: there was none left, or a later holder has written already. After an error
/// nothing is changed.
fn sell(data: &Path, guard: &LockGuard, think: impl FnOnce()) -> Result<bool, Box<dyn Error>> {
    let mut data = Connection::open(data)?;
    // A writer from the start: one that becomes a writer later fails where another one wrote.
    let transaction = data.transaction_with_behavior(TransactionBehavior::Immediate)?;
    think();
    let changed = transaction.execute(
        "UPDATE product SET stock = stock - 1, token = ?1 WHERE id = 7 AND stock > 0 AND token <= ?1",
        [guard.token().as_i64()],
    )?;
    // By the keeper's own connection: what this transaction sees of a store may be old. Where it
    // fails, the transaction is dropped, and that rolls it back.
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

    // This one thinks for longer than its lease lasts, and meanwhile the next was granted it.
    let ttl = Duration::from_millis(200);
    let short = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let late = keeper.acquire("product:7", &short)?.ok_or("busy")?;
    let mut next = None;
    let too_late = sell(&file, &late, || next = keeper.lock("product:7").ok());
    let refused = too_late.err().ok_or("a late commit went through")?;
    println!("too late: {refused}");
    let kind = refused.downcast_ref().map(lockkeeper::Error::kind);
    assert!(kind == Some(ErrorKind::Lost) && next.is_some());
    drop(next);

    // And these are in time: of a hundred at once, five get one.
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
