#![allow(unused)]

use lockkeeper::{Error, LockKeeper, locked};

#[locked(keeper = keeper)]
fn work(keeper: &LockKeeper) -> Result<(), Error> {
    Ok(())
}

fn main() {}
