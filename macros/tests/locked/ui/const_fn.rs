#![allow(unused)]

use lockkeeper::{Error, LockKeeper, locked};

#[locked("a", keeper = keeper)]
const fn work(keeper: &LockKeeper) -> Result<(), Error> {
    Ok(())
}

fn main() {}
