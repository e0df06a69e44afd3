//! What a row costs its store, by the store's own count.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use lockkeeper::Usage;

use crate::error::Failure;

/// Servers notice only after a moment that a connection was closed: the count is looked at again
/// after this time, until it stays.
const SETTLES: Duration = Duration::from_millis(10);
/// On a server that others use, too, it may never stay.
const LOOKS: usize = 20;

/// A server that counts.
pub(crate) trait Counter: fmt::Debug + Send + Sync {
    /// Commands that were sent to it so far, without those for the state and for counting.
    fn commands(&self) -> Result<u64, Failure>;

    /// Connections to it now, of whomever.
    fn connections(&self) -> Result<u32, Failure>;
}

/// What a run costs; where no server counts, the strategy has to.
#[derive(Debug)]
pub(crate) struct Meter<'a> {
    counters: Vec<Count<'a>>,
}

#[derive(Debug)]
struct Count<'a> {
    counter: Box<dyn Counter + 'a>,
    /// Before anything was opened.
    connections: u32,
    /// When everything was; `None`: the server does not answer.
    commands: Mutex<Option<u64>>,
}

impl<'a> Meter<'a> {
    /// To be made before the strategy is opened.
    pub(crate) fn new(counters: Vec<Box<dyn Counter + 'a>>) -> Result<Self, Failure> {
        let count = |counter: Box<dyn Counter + 'a>| {
            Ok(Count {
                connections: settled(counter.as_ref())?,
                commands: Mutex::new(None),
                counter,
            })
        };
        Ok(Self {
            counters: counters
                .into_iter()
                .map(count)
                .collect::<Result<_, Failure>>()?,
        })
    }

    /// What was sent until now does not count.
    pub(crate) fn restart(&self) -> Result<(), Failure> {
        for count in &self.counters {
            // One that was killed for the scenario counts nothing.
            let now = count.counter.commands().ok();
            *count
                .commands
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = now;
        }
        Ok(())
    }

    /// What was sent since, and the connections that have come since the beginning; `None` where
    /// no server counts.
    pub(crate) fn read(&self) -> Result<Option<Usage>, Failure> {
        let mut sum = Usage::default();
        for count in &self.counters {
            let before = *count
                .commands
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let Some(before) = before else { continue };
            sum.commands += count.counter.commands()?.saturating_sub(before);
            sum.connections += count
                .counter
                .connections()?
                .saturating_sub(count.connections);
        }
        Ok((!self.counters.is_empty()).then_some(sum))
    }
}

/// The connections that stay when those of the row before are gone.
fn settled(counter: &dyn Counter) -> Result<u32, Failure> {
    let mut last = counter.connections()?;
    for _ in 0..LOOKS {
        thread::sleep(SETTLES);
        let now = counter.connections()?;
        if now == last {
            break;
        }
        last = now;
    }
    Ok(last)
}
