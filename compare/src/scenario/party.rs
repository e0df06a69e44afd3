//! Friends book seats next to each other, all or none, and their sets overlap: each set is three
//! neighbours at a round table. Locks are acquired one by one, in the order of the seats, so that no
//! two parties wait for each other.
//!
//! Right: no seat is booked twice, no set by half, and every party gets an answer. Without a lock,
//! the writes of two parties mix: both are promised their seats, and one of them does not have all
//! of its own.

use std::collections::BTreeSet;

use super::context::{Context, RunResult, total_cost};
use crate::error::Error;
use crate::strategy::transaction::Outcome;
use crate::threads::barrier_start;

/// Seats at the table.
const SEATS: u32 = 12;
/// Seats of a set.
const SET: u32 = 3;
/// The largest number of threads: more only take longer, since each set is wanted three times.
const MAX_PARTIES: u32 = 36;

pub(super) fn run(context: &Context<'_>) -> Result<RunResult, Error> {
    let program = context.program()?;
    context.state.reset(&[0; SEATS as usize])?;
    let parties = context.settings.threads.min(MAX_PARTIES);
    let (outcomes, elapsed) = barrier_start(parties, |party| {
        let name = name(party);
        let decide = |read: &[i64]| {
            let free = read.iter().all(|&seat| seat == 0);
            free.then(|| vec![name; read.len()])
        };
        let (seats, request) = (seats_of(party), context.long_wait());
        program.execute(party, &seats, request, decide, |_| Ok(()))
    })?;

    let mut run = RunResult {
        cost: total_cost(&[&program])?,
        ..RunResult::of(&outcomes, elapsed)
    };
    let taken = (0..SEATS).map(|seat| context.state.read(seat));
    check(&outcomes, &taken.collect::<Result<Vec<_>, _>>()?, &mut run);
    let (promised, recorded) = (run.admitted, context.state.recorded()?);
    if u64::try_from(recorded) != Ok(promised) {
        run.fault(format!(
            "{promised} parties were promised their seats, {recorded} are recorded"
        ));
    }
    Ok(run)
}

/// Returns what a party writes to its seats.
fn name(party: u32) -> i64 {
    i64::from(party) + 1
}

/// Returns three neighbours, in ascending order.
fn seats_of(party: u32) -> Vec<u32> {
    let seats: BTreeSet<_> = (0..SET).map(|next| (party + next) % SEATS).collect();
    seats.into_iter().collect()
}

/// Checks that each party has all its seats if it was promised them, and none if not.
fn check(outcomes: &[Outcome], taken: &[i64], run: &mut RunResult) {
    let (mut doubled, mut halves) = (0, 0);
    for (party, outcome) in (0_u32..).zip(outcomes) {
        let has = taken.iter().filter(|&&seat| seat == name(party)).count();
        match outcome {
            Outcome::Done if has < SET as usize => doubled += 1,
            Outcome::TurnedAway | Outcome::Broken(_) if has > 0 => halves += 1,
            _ => {}
        }
    }
    run.oversold = doubled;
    if doubled > 0 {
        run.fault(format!(
            "{doubled} parties were promised their seats, and do not have them"
        ));
    }
    if halves > 0 {
        run.fault(format!("{halves} parties were turned away, and have seats"));
    }
    if run.admitted == 0 {
        run.fault("no party got its seats");
    }
}
