//! The events of a keeper as a test receives them, and a clock that jumps without a report.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};

use lockkeeper_core::{
    Clock, Error, FencingToken, HostInstant, LockKeeper, LockKeeperBuilder, ManualClock,
    ObservedLock, Observer,
};

use crate::steps::*;

/// An event that an observer received.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Event {
    Contended,
    RenewalUnknown,
    Lost(FencingToken),
}

struct SendEvents(Mutex<Sender<Event>>);

impl SendEvents {
    fn send(&self, event: Event) {
        let _ = self.0.lock().unwrap().send(event);
    }
}

impl Observer for SendEvents {
    fn contended(&self, _: &ObservedLock<'_>) {
        self.send(Event::Contended);
    }

    fn renewal_unknown(&self, _: &ObservedLock<'_>, _: FencingToken, _: &Error) {
        self.send(Event::RenewalUnknown);
    }

    fn lost(&self, _: &ObservedLock<'_>, token: FencingToken) {
        self.send(Event::Lost(token));
    }
}

/// The events of one keeper.
pub(crate) struct Events(Receiver<Event>);

impl Events {
    /// Waits for the next event, which must be `event`.
    pub(crate) fn expect(&self, event: Event) {
        assert_eq!(self.0.recv_timeout(LIMIT).unwrap(), event);
    }

    /// Returns whether there is no further event so far.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.try_recv().is_err()
    }
}

pub(crate) fn observed(builder: LockKeeperBuilder) -> (LockKeeper, Events) {
    let (sender, receiver) = mpsc::channel();
    let observer = Arc::new(SendEvents(Mutex::new(sender)));
    let keeper = builder.observer(observer).build().unwrap();
    (keeper, Events(receiver))
}

/// A clock that jumps without a report, as the host's does when it was suspended.
#[derive(Clone, Debug)]
pub(crate) struct JumpingClock(pub(crate) ManualClock);

impl Clock for JumpingClock {
    fn now(&self) -> HostInstant {
        self.0.now()
    }
}
