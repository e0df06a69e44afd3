#![allow(unused)]

use lockkeeper::{Error, LockKeeper, locked};

#[locked("a", keeper = keeper)]
fn work(keeper: &LockKeeper) {}

fn main() {}
