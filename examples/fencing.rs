//! Refuses late writers in the data itself. Every write has the token of its guard. A write with a
//! smaller token than an earlier write changes nothing.
//!
//! `cargo run --example fencing`

use std::time::Duration;

use lockkeeper::{AcquireOptions, FencingToken, LeasePolicy};
use rusqlite::{Connection, params};

/// Writes the stock. Returns `false` if a later holder has written already.
fn write(data: &Connection, stock: i64, token: FencingToken) -> rusqlite::Result<bool> {
    let changed = data.execute(
        "UPDATE product SET stock = ?1, token = ?2 WHERE id = 7 AND token <= ?2",
        params![stock, token.as_i64()],
    )?;
    Ok(changed == 1)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let data = Connection::open(folder.path().join("shop.db"))?;
    data.execute_batch(
        "CREATE TABLE product(id INTEGER PRIMARY KEY, stock INTEGER, token INTEGER NOT NULL);
         INSERT INTO product VALUES(7, 100, 0)",
    )?;
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let keeper = lockkeeper::open(&url)?;

    // The lease of the first holder expires, and the holder writes without a check.
    let ttl = Duration::from_millis(200);
    let short = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let late = keeper.acquire("product:7", &short)?.ok_or("busy")?;
    let in_time = keeper.lock("product:7")?; // waits until the lease expires

    assert!(write(&data, 99, in_time.token())?);
    assert!(
        !write(&data, 42, late.token())?,
        "the late write was accepted"
    );
    let stock: i64 = data.query_row("SELECT stock FROM product", [], |row| row.get(0))?;
    println!(
        "token {} wrote, token {} was refused: stock is {stock}",
        in_time.token(),
        late.token()
    );
    assert_eq!(stock, 99);
    Ok(())
}
