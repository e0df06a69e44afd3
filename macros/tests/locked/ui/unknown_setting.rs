#![allow(unused)]

use lockkeeper::{Error, LockKeeper, locked};

#[locked("a", keeper = keeper, tll = "5s")]
fn work(keeper: &LockKeeper) -> Result<(), Error> {
    Ok(())
}

fn main() {}
