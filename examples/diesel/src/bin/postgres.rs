//! Sells 5 seats to 100 buyers with Diesel and PostgreSQL. Half of the buyers commit under a guard, and half under
//! a lock that the transaction takes. Both take one lock. Data and locks are on one server, so a statement proves
//! that the guard holds its lock.
//!
//! A buyer that waits for the lock in a transaction keeps a connection meanwhile. So those buyers have a pool of their own.
//! In one pool with the others, they could use up all connections while the holder of the guard waits for one.
//!
//! `scripts/examples diesel` runs it.

use std::thread;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::r2d2::{ConnectionManager, Pool};
use lockkeeper::transactions::{CommitIn, LockInTransaction};
use lockkeeper::{FencingToken, LockKeeper};
use lockkeeper_testkit::{PostgresKind, PostgresOptions, PostgresServer};

type Error = Box<dyn std::error::Error + Send + Sync>;

diesel::table! {
    concert (id) { id -> BigInt, free -> BigInt, token -> BigInt }
}
use self::concert::dsl::*;

/// Takes one seat. Changes no row if none is left, or if a later holder has written already.
fn take(data: &mut PgConnection, mine: FencingToken) -> QueryResult<usize> {
    let mine = mine.as_i64();
    let seat = concert.filter(id.eq(7).and(free.gt(0)).and(token.le(mine)));
    diesel::update(seat)
        .set((free.eq(free - 1), token.eq(mine)))
        .execute(data)
}

/// Sells a seat under a guard, which can also protect work outside of the transaction.
fn sell(keeper: &LockKeeper, data: &Pool<ConnectionManager<PgConnection>>) -> Result<usize, Error> {
    let guard = keeper.lock("concert:7")?; // before the connection, which no waiting buyer needs
    let mine = guard.token();
    Ok(guard.commit_in(&mut *data.get()?, |data| take(data, mine))?)
}

/// Sells a seat under a lock that ends with the transaction.
fn sell_in_transaction(keeper: &LockKeeper, data: &mut PgConnection) -> Result<usize, Error> {
    data.transaction(|data| {
        let mine = keeper.lock_in_transaction(data, "concert:7", Duration::from_secs(10))?;
        Ok(take(data, mine)?)
    })
}

fn main() -> Result<(), Error> {
    // Your program has a URL instead: postgres://USER:PASSWORD@HOST/DATABASE.
    let server = PostgresServer::start(PostgresKind::Postgres15, &PostgresOptions::new())?;
    let pool = || Pool::new(ConnectionManager::<PgConnection>::new(server.url()));
    let (data, waiting) = (pool()?, pool()?);
    data.get()?.batch_execute(
        "CREATE TABLE concert(id BIGINT PRIMARY KEY, free BIGINT NOT NULL, token BIGINT NOT NULL);
         INSERT INTO concert VALUES(7, 5, 0)",
    )?;
    let keeper = lockkeeper::open(&server.url())?;

    let buy = |buyer: usize| match buyer % 2 {
        0 => sell(&keeper, &data),
        _ => sell_in_transaction(&keeper, &mut *waiting.get()?),
    };
    let sold = thread::scope(|scope| -> Result<usize, Error> {
        let buyers: Vec<_> = (0..100)
            .map(|buyer| scope.spawn(move || buy(buyer)))
            .collect();
        let mut sold = 0;
        for buyer in buyers {
            sold += buyer.join().map_err(|_| "a buyer panicked")??;
        }
        Ok(sold)
    })?;
    let left: i64 = concert.select(free).first(&mut data.get()?)?;
    println!("PostgreSQL: sold {sold}, left {left}");
    assert_eq!((sold, left), (5, 0));
    Ok(())
}
