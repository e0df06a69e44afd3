//! From the records of processes to grants and calls.

use std::collections::HashMap;

use crate::log::{Ending, Event, Kind, Record, Refusal};

/// The log of one process, and what was done to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessLog {
    /// A name for people, such as `2.1 (pid 4711)`.
    pub(crate) process: String,
    /// What its threads recorded.
    pub(crate) records: Vec<Record>,
    /// The number of its keepers; its threads use them in turn.
    pub(crate) keepers: u32,
    /// From when to when it was stopped.
    pub(crate) stops: Vec<(u64, u64)>,
    /// When it ended or was killed.
    pub(crate) ended: u64,
}

/// One grant, as its guard reported it. All times are nanoseconds of CLOCK_BOOTTIME.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) process: String,
    pub(crate) thread: u32,
    /// The number of the thread's keeper in the process.
    pub(crate) keeper: u32,
    pub(crate) name: u32,
    /// Whether it was shared.
    pub(crate) is_shared: bool,
    /// The slot of a permit; 0 of a lock.
    pub(crate) slot: u32,
    pub(crate) token: u64,
    /// Before the lock was requested.
    pub(crate) asked: u64,
    /// After the guard was returned.
    pub(crate) granted: u64,
    /// The last time at which the guard is known to have been held, if it ever said so.
    pub(crate) held: Option<u64>,
    /// When the guard had said that it is lost.
    pub(crate) lost: Option<u64>,
    /// Whether the guard said that it is held after it had said that it is lost.
    pub(crate) is_revived: bool,
}

impl Grant {
    /// Returns the time of which the guard said that it was held for all of it.
    pub(crate) fn interval(&self) -> Option<(u64, u64)> {
        // A time before the grant's return says that the guard was held then, and so at its return.
        self.held.map(|held| (self.granted, held.max(self.granted)))
    }

    /// Returns whether it and another grant of the same name and slot must not be held together.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        !(self.is_shared && other.is_shared)
    }

    /// Returns the number of the store's lease: hand-overs within a process keep it.
    pub(crate) fn epoch(&self) -> u64 {
        self.token >> 7
    }
}

/// A call that took its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) what: What,
    pub(crate) process: String,
    pub(crate) thread: u32,
    pub(crate) name: u32,
    /// Before the call.
    pub(crate) began: u64,
    /// How long it may take, in nanoseconds; it is the wait of an acquisition.
    pub(crate) limit: u64,
    /// How much longer it took, without the time in which its process was stopped. Of a call that never
    /// returned, until the process ended.
    pub(crate) overrun: u64,
    /// What it returned: `granted`, `busy`, the kind of an error, or what a release found.
    pub(crate) returned: String,
}

/// What a [`Call`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum What {
    #[default]
    Acquire,
    Drop,
    Release,
}

/// What the processes of a round did.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) grants: Vec<Grant>,
    pub(crate) calls: Vec<Call>,
    /// Why locks were not granted: `busy`, or the kind of the error.
    pub(crate) refusals: HashMap<String, u64>,
    /// What `release` found; a drop does not say.
    pub(crate) released: HashMap<&'static str, u64>,
    /// Errors that no fault explains, and what a store inside of a process still held at its end.
    pub(crate) unexpected: Vec<String>,
    pub(crate) left: Vec<String>,
}

/// Where a thread is between its records.
#[derive(Default)]
struct Progress {
    /// The call that has no answer so far.
    asked: Option<Call>,
    /// Whether that is for a shared lock.
    is_shared: bool,
    grant: Option<Grant>,
}

impl History {
    /// Adds the records of one process.
    ///
    /// # Errors
    /// The records of a thread do not follow each other as a worker writes them.
    pub(crate) fn add(&mut self, log: &ProcessLog) -> Result<(), String> {
        let mut threads: HashMap<u32, Progress> = HashMap::new();
        for record in &log.records {
            let progress = threads.entry(record.thread).or_default();
            self.follow(log, record, progress)
                .ok_or_else(|| format!("process {}: {record:?} cannot come here", log.process))?;
        }
        for progress in threads.into_values() {
            if let Some(asked) = progress.asked {
                self.returned(log, asked, log.ended, "nothing");
            }
            self.grants.extend(progress.grant);
        }
        Ok(())
    }

    fn follow(&mut self, log: &ProcessLog, record: &Record, progress: &mut Progress) -> Option<()> {
        let (at, thread) = (record.at, record.thread);
        let call = |what, name, began, limit| Call {
            what,
            process: log.process.clone(),
            thread,
            name,
            began,
            limit,
            ..Call::default()
        };
        match &record.event {
            Event::Asked {
                name,
                wait,
                is_shared,
            } => {
                self.grants.extend(progress.grant.take());
                progress.asked = Some(call(What::Acquire, *name, at, *wait));
                progress.is_shared = *is_shared;
            }
            Event::Granted { token, slot } => {
                let asked = progress.asked.take()?;
                progress.grant = Some(Grant {
                    process: log.process.clone(),
                    thread,
                    keeper: thread % log.keepers.max(1),
                    name: asked.name,
                    is_shared: progress.is_shared,
                    slot: *slot,
                    token: *token,
                    asked: asked.began,
                    granted: at,
                    ..Grant::default()
                });
                self.returned(log, asked, at, "granted");
            }
            Event::NotGranted { why } => {
                let asked = progress.asked.take()?;
                let why = match why {
                    Refusal::Busy => "busy".to_owned(),
                    Refusal::Error(kind) => self.error(log, thread, "acquire", kind),
                };
                self.returned(log, asked, at, &why);
                *self.refusals.entry(why).or_default() += 1;
            }
            Event::Held => {
                let grant = progress.grant.as_mut()?;
                grant.is_revived |= grant.lost.is_some();
                grant.held = Some(at);
            }
            Event::Lost => progress.grant.as_mut()?.lost = Some(at),
            Event::Renewed { error } => {
                progress.grant.as_ref()?;
                if let Some(kind) = error {
                    self.error(log, thread, "renew", kind);
                }
            }
            Event::Ended { began, how } => {
                let grant = progress.grant.take()?;
                let (what, found) = match how {
                    Ending::Dropped => (What::Drop, None),
                    Ending::Released => (What::Release, Some("done")),
                    Ending::AlreadyLost => (What::Release, Some("already lost")),
                    Ending::Unknown => (What::Release, Some("unknown")),
                };
                let call = call(what, grant.name, *began, 0);
                self.returned(log, call, at, found.unwrap_or("dropped"));
                if let Some(found) = found {
                    *self.released.entry(found).or_default() += 1;
                }
                self.grants.push(grant);
            }
            Event::NotOpened { error } => {
                self.error(log, thread, "open", error);
            }
            Event::Left { name } => {
                let process = &log.process;
                self.left.push(format!("process {process}: {name} is held"));
            }
        }
        Some(())
    }

    /// Returns the kind's name, and keeps the error if no fault explains it.
    fn error(&mut self, log: &ProcessLog, thread: u32, call: &str, kind: &Kind) -> String {
        if !kind.is_expected {
            let text = kind.text.as_deref().unwrap_or(&kind.name);
            let process = &log.process;
            self.unexpected.push(format!(
                "{call} in process {process}, thread {thread}: {text}"
            ));
        }
        kind.name.clone()
    }

    /// Adds a call with the time at which it returned, and what.
    fn returned(&mut self, log: &ProcessLog, call: Call, at: u64, returned: &str) {
        let due = call.began.saturating_add(call.limit);
        // The time after `due` in which the process could not return.
        let stopped = log.stops.iter().map(|(from, to)| {
            let (from, to) = ((*from).max(due), (*to).min(at));
            to.saturating_sub(from)
        });
        self.calls.push(Call {
            overrun: at.saturating_sub(due).saturating_sub(stopped.sum()),
            returned: returned.to_owned(),
            ..call
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Event {
        Event::Asked {
            name: 4,
            wait: 10,
            is_shared: false,
        }
    }

    fn granted(token: u64) -> Event {
        Event::Granted { token, slot: 0 }
    }

    fn log(events: impl IntoIterator<Item = (u64, Event)>) -> ProcessLog {
        let record = |(at, event)| Record {
            at,
            thread: 1,
            event,
        };
        ProcessLog {
            process: "0.0".to_owned(),
            records: events.into_iter().map(record).collect(),
            keepers: 2,
            stops: Vec::new(),
            ended: 1000,
        }
    }

    fn history(log: &ProcessLog) -> History {
        let mut history = History::default();
        history.add(log).unwrap();
        history
    }

    #[test]
    fn guard_is_held_from_its_grant_to_the_last_time_it_said_so() {
        let mut events = vec![(1, asked()), (5, granted(900))];
        let unheld = history(&log(events.clone()));
        assert_eq!(unheld.grants[0].interval(), None, "it never said so");
        events.extend([(6, Event::Held), (9, Event::Held), (30, Event::Lost)]);
        let killed = history(&log(events.clone()));
        assert_eq!(killed.grants[0].interval(), Some((5, 9)));
        assert!(!killed.grants[0].is_revived);
        assert_eq!(killed.grants[0].keeper, 1);
        events.push((31, Event::Held));
        assert!(history(&log(events)).grants[0].is_revived);
    }

    #[test]
    fn overrun_leaves_out_the_time_in_which_the_process_was_stopped() {
        let why = Refusal::Busy;
        let mut log = log([(100, asked()), (150, Event::NotGranted { why })]);
        assert_eq!(history(&log).calls[0].overrun, 40);
        // Half of the first stop is before the call had to return.
        log.stops = vec![(105, 115), (120, 140), (149, 200)];
        assert_eq!(history(&log).calls[0].overrun, 40 - 5 - 20 - 1);
    }

    #[test]
    fn call_that_never_returned_overruns_until_its_process_ended() {
        let log = log([(100, asked())]);
        assert_eq!(history(&log).calls[0].overrun, 890);
    }

    #[test]
    fn drop_and_release_are_calls_without_a_wait() {
        let log = log([
            (1, asked()),
            (5, granted(900)),
            (
                80,
                Event::Ended {
                    began: 60,
                    how: Ending::Unknown,
                },
            ),
        ]);
        let history = history(&log);
        let call = &history.calls[1];
        assert_eq!((call.what, call.overrun), (What::Release, 20));
        assert_eq!(history.released.get("unknown"), Some(&1));
    }

    #[test]
    fn errors_without_an_explanation_are_kept() {
        let kind = |is_expected| Kind {
            name: "K".to_owned(),
            is_expected,
            text: Some("why".to_owned()),
        };
        let refused = |is_expected| Event::NotGranted {
            why: Refusal::Error(kind(is_expected)),
        };
        let history = history(&log([
            (1, asked()),
            (2, refused(true)),
            (3, asked()),
            (4, refused(false)),
        ]));
        assert_eq!(history.refusals.get("K"), Some(&2));
        let [unexpected] = history.unexpected.as_slice() else {
            unreachable!()
        };
        assert!(unexpected.ends_with("thread 1: why"), "{unexpected}");
    }

    #[test]
    fn records_in_another_order_are_refused() {
        for event in [Event::Held, Event::Lost, granted(1)] {
            assert!(History::default().add(&log([(1, event)])).is_err());
        }
    }
}
