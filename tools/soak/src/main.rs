//! A long campaign of faults against lockkeeper.
//!
//! `args` reads the command line. A `round` starts the processes of `worker`, which lock names as their `plan` says
//! and write what guards said to a `log`. Meanwhile `faults` breaks workers, network and `store`. Then `history`
//! merges the records, and `checker` applies the rules of the contract to them. `forgot` decides where an overlap
//! is allowed, and `watched` says which grants must go on during a fault. `leftovers` looks for what was left
//! behind. `report` prints the results.

mod args;
mod checker;
mod faults;
mod forgot;
mod guards;
mod history;
mod leftovers;
mod log;
mod plan;
mod report;
mod round;
mod store;
mod threads;
mod watched;
mod worker;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;

use crate::args::{Args, StoreChoice};
use crate::checker::Checker;
use crate::log::nanos;
use crate::report::Tally;
use crate::round::Rounds;

/// The longest round: the records of one fit into memory and a folder for temporary files.
const ROUND: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let result = if std::env::args().nth(1).as_deref() == Some(worker::ROLE) {
        worker::run().map(|()| false)
    } else {
        campaign(&Args::parse())
    };
    match result {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Runs all stores, and returns whether a rule was broken.
fn campaign(args: &Args) -> Result<bool, Box<dyn Error>> {
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let interrupted = Arc::clone(&is_interrupted);
    ctrlc::set_handler(move || interrupted.store(true, Ordering::Relaxed))?;
    let seed = args.seed();
    let (stores, may_be_missing) = args.stores();
    let mut is_broken = false;
    for store in stores {
        match store::missing(store) {
            Some(why) if may_be_missing => println!("{}: left out: {why}", store.name()),
            _ if is_interrupted.load(Ordering::Relaxed) => break,
            _ => is_broken |= run(args, store, seed, &is_interrupted)?,
        }
    }
    Ok(is_broken)
}

/// Runs one store, and returns whether a rule was broken.
fn run(
    args: &Args,
    choice: StoreChoice,
    seed: u64,
    is_interrupted: &AtomicBool,
) -> Result<bool, Box<dyn Error>> {
    let store = store::start(choice, args)?;
    let rounds = Rounds {
        args,
        store: &store,
        is_interrupted,
    };
    let mut checker = Checker::new(nanos(args.ttl));
    let mut tally = Tally::default();
    let mut left = args.length();
    let mut repeat = args.repeat(choice, seed, left);
    let mut seed = seed;
    let name = choice.name();
    println!("{name}: {left:?} of faults, seed {seed}");
    while !left.is_zero() && !is_interrupted.load(Ordering::Relaxed) {
        let length = left.min(ROUND);
        left -= length;
        let folder = tempfile::Builder::new().prefix("lk-soak-").tempdir()?;
        let outcome = rounds.run(folder.path(), seed, length, &mut checker)?;
        tally.add(&outcome);
        let (round, grants) = (tally.rounds(), tally.grants());
        println!("{name}: round {round} of {length:?}, seed {seed}: {grants} grants so far");
        if tally.is_broken() {
            let logs = folder.keep();
            print!("{}", report::evidence(&outcome));
            std::fs::write(logs.join("faults"), report::all_faults(&outcome))?;
            println!(
                "the records of all processes, and the faults, are in {}",
                logs.display()
            );
            repeat = args.repeat(choice, seed, length);
            break;
        }
        seed = seed.wrapping_add(1);
    }
    print!("{}", tally.lines());
    println!("  repeated by            {repeat}");
    Ok(tally.is_broken())
}
