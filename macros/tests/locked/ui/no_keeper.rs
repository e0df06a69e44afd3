#![allow(unused)]

use lockkeeper::{Error, LockKeeper, locked};

#[locked("a")]
fn work(keeper: &LockKeeper) -> Result<(), Error> {
    Ok(())
}

fn main() {}
