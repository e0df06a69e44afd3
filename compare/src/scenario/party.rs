//! Friends book seats next to each other, all or none, and their sets overlap: each set is three
//! neighbours of a round table. Locks are taken one by one, in the order of the seats, so that
//! nobody waits for somebody who waits for them.
//!
//! Right: no seat is booked twice, no set by half, and everybody gets an answer. Without a lock, the
//! writes of two parties mix: both were told that they have their seats, and one of them has not.

use std::collections::BTreeSet;

use super::contest::Tally;
use super::context::{Run, Site, settle};
use crate::error::Failure;
use crate::strategy::Outcome;
use crate::threads;

/// At the table.
const SEATS: u32 = 12;
/// That belong together.
const SET: u32 = 3;
/// No more threads than that: with every set wanted by so many, more only take longer.
const PARTIES: u32 = 36;

/// Plays it once.
pub(super) fn play(site: &Site<'_>) -> Result<Run, Failure> {
    let program = site.program()?;
    site.state.reset(&[0; SEATS as usize])?;
    let parties = site.sizes.threads.min(PARTIES);
    let (outcomes, span) = threads::all_at_once(parties, |party| {
        let name = i64::from(party) + 1;
        program.update(party, &seats_of(party), site.patient(), |read| {
            let free = read.iter().all(|&seat| seat == 0);
            free.then(|| vec![name; read.len()])
        })
    })?;

    let tally = Tally::of(&outcomes);
    let mut run = Run {
        admitted: tally.admitted,
        turned_away: tally.turned_away,
        span,
        account: settle([program])?,
        ..Run::default()
    };
    tally.add_faults("", &mut run);
    let mut taken = Vec::new();
    for seat in 0..SEATS {
        taken.push(site.state.read(seat)?);
    }
    check(&outcomes, &taken, &mut run);
    let recorded = site.state.recorded()?;
    run.fault_if(u64::try_from(recorded) != Ok(tally.admitted), || {
        format!("{} told so, {recorded} recorded", tally.admitted)
    });
    Ok(run)
}

/// Three neighbours, in ascending order.
fn seats_of(party: u32) -> Vec<u32> {
    let seats: BTreeSet<_> = (0..SET).map(|next| (party + next) % SEATS).collect();
    seats.into_iter().collect()
}

/// Who was told that they have their seats must have all of them, everybody else none; and as long
/// as three neighbours are free, nobody may have been sent away.
fn check(outcomes: &[Outcome], taken: &[i64], run: &mut Run) {
    let (mut robbed, mut halves) = (0, 0);
    for (party, outcome) in (0_u32..).zip(outcomes) {
        let name = i64::from(party) + 1;
        let has = taken.iter().filter(|&&who| who == name).count();
        match outcome {
            Outcome::Done if has < SET as usize => robbed += 1,
            Outcome::Declined | Outcome::Busy | Outcome::Broken(_) if has > 0 => halves += 1,
            _ => {}
        }
    }
    run.oversold = robbed;
    run.fault_if(robbed > 0, || {
        format!("{robbed} parties were told that they have their seats, and have not")
    });
    run.fault_if(halves > 0, || {
        format!("{halves} parties were sent away, and have seats")
    });
    run.fault_if(run.admitted == 0, || "nobody got a seat".to_owned());
}
