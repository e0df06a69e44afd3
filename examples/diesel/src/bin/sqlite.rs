//! Sells 5 seats to 100 buyers with Diesel and SQLite: the lock, the token in the row, and a commit under the
//! guard, which renews the guard as the last step of the transaction.
//!
//! `scripts/examples diesel` runs it.

use std::thread;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::r2d2::{ConnectionManager, Pool};
use lockkeeper::LockGuard;
use lockkeeper::transactions::CommitIn;

type Error = Box<dyn std::error::Error + Send + Sync>;

diesel::table! {
    concert (id) { id -> BigInt, free -> BigInt, token -> BigInt }
}
use self::concert::dsl::*;

/// Sells one seat. Returns `false` if none is left, or if a later holder has written already. An error
/// changes nothing.
fn sell(data: &mut SqliteConnection, guard: &LockGuard) -> Result<bool, Error> {
    let mine = guard.token().as_i64();
    let sold = guard.commit_in(data, |data| {
        let seat = concert.filter(id.eq(7).and(free.gt(0)).and(token.le(mine)));
        diesel::update(seat)
            .set((free.eq(free - 1), token.eq(mine)))
            .execute(data)
    })?;
    Ok(sold == 1)
}

fn main() -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name).display().to_string();
    let data = Pool::new(ConnectionManager::<SqliteConnection>::new(file("shop.db")))?;
    data.get()?.batch_execute(
        "CREATE TABLE concert(id INTEGER PRIMARY KEY, free INTEGER NOT NULL, token INTEGER NOT NULL);
         INSERT INTO concert VALUES(7, 5, 0)",
    )?;
    // The locks are in a file of their own, which Diesel never opens.
    let keeper = lockkeeper::open(&format!("sqlite:{}", file("locks.db")))?;

    let buy = || -> Result<bool, Error> {
        let guard = keeper.lock("concert:7")?; // before the connection, which no waiting buyer needs
        sell(&mut *data.get()?, &guard)
    };
    let sold = thread::scope(|scope| -> Result<usize, Error> {
        let buyers: Vec<_> = (0..100).map(|_| scope.spawn(buy)).collect();
        let mut sold = 0;
        for buyer in buyers {
            sold += usize::from(buyer.join().map_err(|_| "a buyer panicked")??);
        }
        Ok(sold)
    })?;
    let left: i64 = concert.select(free).first(&mut data.get()?)?;
    println!("SQLite: sold {sold}, left {left}");
    assert_eq!((sold, left), (5, 0));
    Ok(())
}
