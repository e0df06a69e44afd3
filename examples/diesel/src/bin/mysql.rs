//! Sells 5 seats to 100 buyers with Diesel and MariaDB or MySQL: the lock, the token in the row, and the
//! commit proof as the last statement of the transaction. Data and locks are on one server.
//!
//! `scripts/examples diesel` runs it.

use std::thread;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::r2d2::{ConnectionManager, Pool};
use lockkeeper::LockGuard;
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer};

type Error = Box<dyn std::error::Error + Send + Sync>;

diesel::table! {
    concert (id) { id -> BigInt, free -> BigInt, token -> BigInt }
}
use self::concert::dsl::*;

/// The row of a commit proof.
#[derive(QueryableByName)]
struct Proof {
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    held: i64,
}

/// Sells one seat. Returns `false` if none is left, or if a later holder has written already. An error
/// changes nothing.
fn sell(data: &mut MysqlConnection, guard: &LockGuard) -> Result<bool, Error> {
    let proof = guard.commit_proof()?;
    data.transaction(|data| {
        let mine = guard.token().as_i64();
        let seat = concert.filter(id.eq(7).and(free.gt(0)).and(token.le(mine)));
        let sold = diesel::update(seat)
            .set((free.eq(free - 1), token.eq(mine)))
            .execute(data)?;
        // The last statement before the commit. If the lock is lost, the error rolls back.
        let row: Proof = diesel::sql_query(proof.sql()).get_result(data)?;
        proof.check(row.held)?;
        Ok(sold == 1)
    })
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
