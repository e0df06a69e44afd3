#![allow(unused)]

use lockkeeper::{Error, LockKeeper, locked};

#[locked("a", keeper = keeper)]
fn work(keeper: &LockKeeper) -> Result<(), std::num::ParseIntError> {
    Ok(())
}

fn main() {}
