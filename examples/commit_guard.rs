//! A late commit is refused: the last statement of the application's own transaction asks the lock
//! store whether the guard still holds, and the transaction is rolled back unless it does.
//!
//! `cargo run --example commit_guard`
//!
//! Here data and locks are two SQLite files. On MySQL and MariaDB it is the same three lines, on the
//! application's own connection to the server that the locks are on:
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
//! On Redis the data's own script compares tokens instead: see the example `fencing`.

use std::time::Duration;

use lockkeeper::{AcquireOptions, CommitProof, LeasePolicy, ProofValue};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

/// Sells one, unless the lock is somebody else's by the time of the commit. `false`: rolled back.
fn sell(
    data: &mut Connection,
    proof: &CommitProof<'_>,
    think: impl FnOnce(),
) -> rusqlite::Result<bool> {
    let transaction = data.transaction()?;
    let stock: i64 = transaction.query_row("SELECT stock FROM product", [], |row| row.get(0))?;
    think();
    transaction.execute("UPDATE product SET stock = ?1", [stock - 1])?;
    let values = proof.params().iter().map(|value| match value {
        ProofValue::Text(text) => Value::from(text.clone()),
        ProofValue::Integer(number) => Value::from(*number),
    });
    let is_held: bool =
        transaction.query_row(proof.statement(), params_from_iter(values), |row| {
            row.get(0)
        })?;
    if is_held {
        transaction.commit()?;
    } else {
        transaction.rollback()?;
    }
    Ok(is_held)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let locks = folder.path().join("locks.db");
    let keeper = lockkeeper::open(&format!("sqlite:{}", locks.display()))?;
    let mut data = Connection::open(folder.path().join("shop.db"))?;
    data.execute_batch(
        "CREATE TABLE product(id INTEGER PRIMARY KEY, stock INTEGER);
         INSERT INTO product VALUES(7, 100)",
    )?;
    // By this name the proof looks for the locks.
    data.execute("ATTACH ?1 AS lockkeeper", [locks.to_string_lossy()])?;

    let ttl = Duration::from_millis(200);
    let short = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let guard = keeper.acquire("product:7", &short)?.ok_or("busy")?;
    let in_time = sell(&mut data, &guard.commit_proof()?, || {})?;
    guard.release()?;

    // This one thinks for longer than its lease lasts, and meanwhile the next was granted it.
    let late = keeper.acquire("product:7", &short)?.ok_or("busy")?;
    let proof = late.commit_proof()?;
    let mut next = None;
    let too_late = sell(&mut data, &proof, || next = keeper.lock("product:7").ok())?;

    let stock: i64 = data.query_row("SELECT stock FROM product", [], |row| row.get(0))?;
    println!("in time: {in_time}, too late: {too_late}, stock: {stock}");
    assert!(in_time && !too_late && next.is_some() && stock == 99);
    Ok(())
}
