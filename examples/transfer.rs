//! Transfers money between accounts, each time under the locks of both accounts. The threads name the accounts
//! in different orders, and none waits for another in a circle.
//!
//! `cargo run --example transfer`

use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use lockkeeper::{Error, LockKeeper};

struct Account {
    name: &'static str,
    balance: AtomicI64,
}

impl Account {
    const fn new(name: &'static str) -> Self {
        let balance = AtomicI64::new(100);
        Self { name, balance }
    }

    fn balance(&self) -> i64 {
        self.balance.load(Ordering::Relaxed)
    }
}

/// Transfers 1. Both balances are read, and then written back.
fn transfer(keeper: &LockKeeper, from: &Account, to: &Account) -> Result<(), Error> {
    // Both or none, within one wait. Hold no other lock here: the order of the names is right only among them.
    let accounts = keeper.lock_all([from.name, to.name])?;
    let (left, arrived) = (from.balance() - 1, to.balance() + 1);
    thread::yield_now();
    accounts.ensure_held()?; // fails if one of them is lost
    from.balance.store(left, Ordering::Relaxed);
    to.balance.store(arrived, Ordering::Relaxed);
    accounts.release().map(|_| ())
}

fn main() -> Result<(), Error> {
    let keeper = lockkeeper::open("memory:?wait=5s")?;
    let [ann, ben, eve] = ["ann", "ben", "eve"].map(Account::new);

    thread::scope(|scope| {
        for (from, to) in [(&ann, &ben), (&ben, &ann), (&ben, &eve), (&eve, &ann)] {
            let keeper = &keeper;
            scope.spawn(move || (0..50).try_for_each(|_| transfer(keeper, from, to)));
        }
    });

    // Each name has a fencing token of its own, for the data that it protects.
    let accounts = keeper.lock_all(["eve", "ann", "ann"])?;
    for (name, token) in accounts.tokens() {
        println!("{name} has token {token}");
    }
    assert_eq!(accounts.tokens().count(), 2);
    let balances = [&ann, &ben, &eve].map(Account::balance);
    println!("200 transfers: {balances:?}");
    assert_eq!(balances, [100 + 50, 100 - 50, 100]);
    Ok(())
}
