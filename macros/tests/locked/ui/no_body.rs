#![allow(unused)]

use lockkeeper::{Error, LockKeeper, locked};

trait Shop {
    #[locked("a", keeper = keeper)]
    fn work(&self, keeper: &LockKeeper) -> Result<(), Error>;
}

fn main() {}
