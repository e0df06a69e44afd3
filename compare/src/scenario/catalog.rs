//! Readers and writers of a price list of two rows that must agree. Nine of ten threads read, and go on
//! reading until all writers are done. Each reads both rows with a pause in between; a writer reads both,
//! thinks, and changes both.
//!
//! Right: no reader sees the rows disagree, no update is lost, and a writer need not wait until there are no
//! readers. If every writer has to, they starve: the readers stop after a number of rounds only
//! so that the scenario ends.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::context::{Context, Program, RunResult, total_cost};
use crate::error::Error;
use crate::strategy::lock::LockRequest;
use crate::threads::barrier_start;
use lockkeeper::Mode;

/// One thread of so many writes.
const WRITERS: u32 = 10;
/// The smallest number of readers: enough that one of them reads at any time.
const MIN_READERS: u32 = 10;
/// How often each reader reads at least.
const MIN_ROUNDS: u32 = 3;
/// How often each reader reads at most once all writers have asked for the lock.
const MAX_ROUNDS: u32 = 100;
/// The two rows.
const ROWS: [u32; 2] = [0, 1];

pub(super) fn run(context: &Context<'_>) -> Result<RunResult, Error> {
    let program = context.program()?;
    context.state.reset(&ROWS.map(|_| 0))?;
    let writers = (context.settings.threads / WRITERS).max(1);
    let readers = (context.settings.threads - writers).max(MIN_READERS);
    let catalog = Catalog {
        program: &program,
        writers,
        asked: AtomicU32::new(0),
        done: AtomicU32::new(0),
        readers_stopped: AtomicBool::new(false),
        beside_readers: AtomicU32::new(0),
        torn: AtomicU64::new(0),
    };
    let (rounds, elapsed) = barrier_start(writers + readers, |number| match number < writers {
        true => catalog.write(),
        false => catalog.read(),
    })?;

    let mut run = RunResult {
        admitted: rounds.iter().sum(),
        elapsed,
        cost: total_cost(&[&program])?,
        ..RunResult::default()
    };
    let (torn, written) = (catalog.torn.into_inner(), context.state.read(0)?);
    let lost = u64::from(writers).saturating_sub(u64::try_from(written).unwrap_or_default());
    run.oversold = torn + lost;
    if torn > 0 {
        run.fault(format!("{torn} readers saw rows that disagree"));
    }
    if lost > 0 {
        run.fault(format!("{lost} of {writers} updates were lost"));
    }
    if context.state.read(1)? != written {
        run.fault("the rows disagree at the end");
    }
    if catalog.beside_readers.into_inner() == 0 {
        run.fault(format!(
            "the writers starved: none got in until all readers had stopped, after {MAX_ROUNDS} rounds"
        ));
    }
    Ok(run)
}

struct Catalog<'a> {
    program: &'a Program<'a>,
    writers: u32,
    /// Writers that have asked for the lock.
    asked: AtomicU32,
    /// Writers that have written.
    done: AtomicU32,
    /// Whether a reader stopped although there are writers left.
    readers_stopped: AtomicBool,
    /// Writers that got in before that.
    beside_readers: AtomicU32,
    /// Reads of rows that disagree.
    torn: AtomicU64,
}

impl Catalog<'_> {
    /// Writes once; returns the number of grants.
    fn write(&self) -> Result<u64, Error> {
        let context = self.program.context;
        let state = context.state;
        self.asked.fetch_add(1, Ordering::SeqCst);
        let held = self.program.must_acquire(context.long_wait())?;
        if !self.readers_stopped.load(Ordering::SeqCst) {
            self.beside_readers.fetch_add(1, Ordering::SeqCst);
        }
        let values = ROWS.map(|row| state.read(row));
        context.cancel.sleep(context.settings.held)?;
        for (row, value) in ROWS.into_iter().zip(values) {
            state.write(row, value? + 1)?;
        }
        held.release()?;
        self.done.fetch_add(1, Ordering::SeqCst);
        Ok(1)
    }

    /// Reads until the writers are done or the rounds are over; returns the number of grants.
    fn read(&self) -> Result<u64, Error> {
        let (mut rounds, mut rounds_with_writers) = (0, 0);
        loop {
            self.read_once()?;
            rounds += 1;
            let all = |writers: &AtomicU32| writers.load(Ordering::SeqCst) == self.writers;
            if all(&self.done) && rounds >= MIN_ROUNDS {
                break;
            }
            rounds_with_writers += u32::from(all(&self.asked));
            if rounds_with_writers >= MAX_ROUNDS {
                self.readers_stopped.store(true, Ordering::SeqCst);
                break;
            }
        }
        Ok(u64::from(rounds))
    }

    fn read_once(&self) -> Result<(), Error> {
        let context = self.program.context;
        let request = LockRequest {
            mode: Mode::Shared,
            ..context.long_wait()
        };
        let held = self.program.must_acquire(request)?;
        let [first, second] = ROWS;
        let before = context.state.read(first)?;
        context.cancel.sleep(context.settings.held)?;
        if context.state.read(second)? != before {
            self.torn.fetch_add(1, Ordering::SeqCst);
        }
        held.release()
    }
}
