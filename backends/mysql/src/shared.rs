//! Shared locks, requested and waited for on a connection, and exclusive ones beside readers.

use std::slice;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(doc)]
use lockkeeper_remote::sessions::SessionConnection;
use lockkeeper_remote::sessions::{Attempt, Attempted, Taken};
use lockkeeper_remote::{Backoff, Failure, unavailable};
use mysql::Row;

use crate::connection::{Connection, number};
use crate::locks::DISTURBED;
use crate::names::EncodedName;
use crate::permits::Template;
use crate::readers::{FIRST_SLOTS, Found, MAX_READERS, Readers};
use crate::statements::EPOCH_BITS;

/// The longest wait of one statement for a reader. While a writer waits for one, the server ends the session after
/// [`LONGEST_SILENCE`] without a statement, so that a process that was stopped does not keep readers out.
const TURN: Duration = Duration::from_secs(1);
const LONGEST_SILENCE: u64 = 2;

/// The pauses of an attempt that makes way for readers that waited.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

impl Connection {
    /// Tries to take a slot of the lock's readers. An attempt that the server refused may have taken a part of it.
    pub(crate) fn attempt_shared(
        &mut self,
        lock: &EncodedName,
    ) -> Result<Attempted<EncodedName>, Failure> {
        let readers = Readers::of(lock);
        let mut slots = FIRST_SLOTS;
        let mut holder = None;
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let began = Instant::now();
        while began.elapsed() < self.limit {
            let template = readers.attempt_shared(slots, &self.flag().name);
            let row = match self.execute(&template.sql, &template.names) {
                Err(failure @ Failure::Refused(_)) => return Ok(Err(failure)),
                row => row?,
            };
            match found(&row, 0) {
                Ok(Found::Slot(slot)) => return Ok(taken(&readers, slot, &row, 1)),
                Ok(Found::Full) if slots < MAX_READERS => slots = MAX_READERS,
                // It keeps the name for the time of a statement, and nothing tells when that is over.
                Ok(Found::Passing) => thread::sleep(pauses.next_pause()),
                // One reader may have passed after the other while the statement looked: a writer is there twice.
                Ok(Found::Busy) if holder.is_none() || holder != number(&row, 4) => {
                    holder = number(&row, 4);
                }
                Ok(Found::Full | Found::Busy) => return Ok(Ok(None)),
                Err(failure) => return Ok(Err(failure)),
            }
        }
        Ok(Err(Failure::Refused(unavailable(
            "readers that had waited came first for as long as a reply may take; try again",
        ))))
    }

    /// Waits for a slot of the lock's readers: see [`SessionConnection::wait`]. If all slots are in use, the wait ends
    /// early.
    pub(crate) fn wait_shared(
        &mut self,
        lock: &EncodedName,
        wait: Duration,
        grace: Duration,
    ) -> Attempted<EncodedName> {
        let (readers, timed) = (Readers::of(lock), self.dialect.timed(wait));
        let preferred = fastrand::u32(0..MAX_READERS);
        self.limit = wait + TURN + grace;
        let row = self.query_until(&readers.wait_shared(&timed, preferred, &self.flag().name));
        self.limit = grace;
        let Some(row) = row? else {
            // It may have been granted just before the statement was ended.
            self.query(&readers.undo_wait())?;
            return Ok(None);
        };
        match found(&row, 1)? {
            Found::Slot(slot) => taken(&readers, slot, &row, 2),
            Found::Full | Found::Passing | Found::Busy => Ok(None),
        }
    }

    /// Gives back those of the names that were granted which readers hold.
    pub(crate) fn make_way_for_readers(
        &mut self,
        attempts: &[Attempt<EncodedName>],
        attempted: &mut [Attempted<EncodedName>],
    ) -> Result<(), Failure> {
        let granted = attempts.iter().zip(attempted);
        let granted = granted.filter(|(_, attempted)| matches!(attempted, Ok(Some(_))));
        let granted: Vec<_> = granted.collect();
        if granted.is_empty() {
            return Ok(());
        }
        let mut template = Template::default();
        let mut before = "SELECT ";
        for (attempt, _) in &granted {
            template.add(before);
            Readers::of(&attempt.name).keep_or_release(&mut template, "1");
            before = ",";
        }
        let row = match self.query(&template.pasted()) {
            Err(failure @ Failure::Refused(_)) => Err(failure),
            row => Ok(row?),
        };
        for (at, (_, attempted)) in granted.into_iter().enumerate() {
            match row.as_ref().map(|row| number(row, at)) {
                Ok(Some(1)) => {}
                Ok(Some(_)) => *attempted = Ok(None),
                Ok(None) => *attempted = Err(Failure::Refused(unavailable(DISTURBED))),
                Err(failure) => *attempted = Err(failure.clone()),
            }
        }
        Ok(())
    }

    /// Waits until no reader has the lock whose name the session took, for at most `wait`. Meanwhile the session keeps
    /// the name, so that later readers wait behind it. Returns false after it has released the name.
    pub(crate) fn outlast_readers(
        &mut self,
        lock: &EncodedName,
        wait: Duration,
        grace: Duration,
    ) -> Result<bool, Failure> {
        let (slots, began) = (Readers::of(lock).slots(), Instant::now());
        let idle_seconds = self.idle_seconds;
        let has_it = loop {
            let Some((slot, _)) = self.holders_of(&slots)?.into_iter().next() else {
                break true;
            };
            let left = wait.saturating_sub(began.elapsed());
            if left.is_zero() {
                self.release_all(slice::from_ref(lock))?;
                break false;
            }
            self.set_idle_seconds(LONGEST_SILENCE)?;
            let turn = left.min(TURN);
            self.limit = turn + grace;
            let row = self.query_until(&self.dialect.timed(turn).outlast(&slot));
            self.limit = grace;
            if row?.is_none() {
                // It may have been granted just before the statement was ended.
                self.release_all(&[slot])?;
            }
        };
        if let Some(seconds) = idle_seconds {
            self.set_idle_seconds(seconds)?;
        }
        Ok(has_it)
    }
}

/// Returns what a column says, or that the server was disturbed.
fn found(row: &Row, at: usize) -> Result<Found, Failure> {
    let column = number(row, at);
    let disturbed = || Failure::Refused(unavailable(DISTURBED));
    column.map(Readers::found).ok_or_else(disturbed)
}

/// Returns the grant of a slot; `at` is the column of the epoch.
fn taken(readers: &Readers, slot: u32, row: &Row, at: usize) -> Attempted<EncodedName> {
    let epoch = number(row, at).ok_or_else(|| Failure::Refused(unavailable(DISTURBED)))?;
    Ok(Some(Taken {
        name: readers.slot(slot),
        epoch: epoch & EPOCH_BITS,
        slot: 0,
    }))
}
