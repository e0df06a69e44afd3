#![allow(unused)]

use lockkeeper::{Error, LockKeeper, locked};

#[locked("seat:{row_of_seats}", keeper = keeper)]
fn work(keeper: &LockKeeper, seat: u32) -> Result<u32, Error> {
    Ok(seat)
}

fn main() {}
