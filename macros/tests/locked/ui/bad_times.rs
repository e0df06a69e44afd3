#![allow(unused)]

use lockkeeper::{Error, LockKeeper, locked};

#[locked("a", keeper = keeper, wait = "5 parsecs")]
fn wait(keeper: &LockKeeper) -> Result<(), Error> {
    Ok(())
}

#[locked("a", keeper = keeper, ttl = "forever")]
fn ttl(keeper: &LockKeeper) -> Result<(), Error> {
    Ok(())
}

fn main() {}
