#![allow(unused)]

use lockkeeper::{Error, LockKeeper, locked};

#[locked("a", keeper = keeper, shared, permits = 3)]
fn both(keeper: &LockKeeper) -> Result<(), Error> {
    Ok(())
}

#[locked("a", keeper = keeper, permits = 0)]
fn none(keeper: &LockKeeper) -> Result<(), Error> {
    Ok(())
}

fn main() {}
