//! Sells 5 seats to 100 buyers with Diesel and MariaDB or MySQL: the lock, the token in the row, and a commit
//! under the guard. Data and locks are on one server, so a statement in the transaction proves the lock.
//!
//! `scripts/examples diesel` runs it.

use std::thread;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::r2d2::{ConnectionManager, Pool};
use lockkeeper::LockGuard;
use lockkeeper::transactions::CommitIn;
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer};

type Error = Box<dyn std::error::Error + Send + Sync>;

diesel::table! {
    concert (id) { id -> BigInt, free -> BigInt, token -> BigInt }
}
use self::concert::dsl::*;

/// Sells one seat. Returns `false` if none is left, or if a later holder has written already. After an error
/// nothing is changed, unless the server did not reply to the commit.
fn sell(data: &mut MysqlConnection, guard: &LockGuard) -> Result<bool, Error> {
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
    // Your program has a URL instead: mysql://USER:PASSWORD@HOST/DATABASE.
    let server = MySqlServer::start(MySqlKind::MariaDb10, &MySqlOptions::new())?;
    let data = Pool::new(ConnectionManager::<MysqlConnection>::new(server.url()))?;
    data.get()?.batch_execute(
        "CREATE TABLE concert(id BIGINT PRIMARY KEY, free BIGINT NOT NULL, token BIGINT NOT NULL);
         INSERT INTO concert VALUES(7, 5, 0)",
    )?;
    let keeper = lockkeeper::open(&server.url())?;

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
    println!("MariaDB: sold {sold}, left {left}");
    assert_eq!((sold, left), (5, 0));
    Ok(())
}
