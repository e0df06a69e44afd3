#![allow(unused)]

use lockkeeper::{Error, LockKeeper, locked};

struct Shop {
    keeper: LockKeeper,
}

#[locked("a", keeper = shop)]
fn work(shop: &Shop) -> Result<(), Error> {
    Ok(())
}

fn main() {}
