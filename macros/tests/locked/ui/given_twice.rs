#![allow(unused)]

use lockkeeper::{Error, LockKeeper, locked};

#[locked("a", keeper = keeper, wait = "1s", wait = "2s")]
fn work(keeper: &LockKeeper) -> Result<(), Error> {
    Ok(())
}

fn main() {}
