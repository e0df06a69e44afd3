//! Acquiring several names, all or none.
//!
//! All callers lock names in the same order, so they never wait for each other in a circle. Free names are
//! requested in one batch for each part of the store. Grants behind the first busy name are released: during the
//! wait for a name, only names before it are held.

use std::sync::Arc;

use crate::cancel::CancelToken;
use crate::clock::HostInstant;
use crate::contract::provider::AcquireRequest;
use crate::error::{Error, ErrorKind};
use crate::mode::Mode;
use crate::name::LockName;
use crate::options::{AcquireOptions, LeaseTerms, Outage};

use super::Engine;
use super::head::{HeadPermit, expired};
use super::hold::HoldState;
use super::hold::acquired::Acquired;
use super::key::Key;
use super::report::AcquisitionReport;
use super::travel::request::AttemptAnswer;
use super::travel::sender::Queued;
use super::waiter::Given;

/// The names that are held so far. They are released if the other names are not acquired.
struct Taken<'a> {
    engine: &'a Arc<Engine>,
    acquired: Vec<Acquired>,
    /// The end of the acquisition, after which it sends nothing.
    end: HostInstant,
}

impl<'a> Taken<'a> {
    fn none(engine: &'a Arc<Engine>, end: HostInstant) -> Self {
        Self {
            engine,
            acquired: Vec::new(),
            end,
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.engine.release_all_dropped(&self.acquired, self.end);
    }
}

/// How the acquisition of several names ended.
pub(crate) enum AcquiredSet<'a> {
    All(Vec<Acquired>),
    /// Another holder had this name until the end of the wait.
    Busy(&'a LockName, Mode),
}

/// One of the names that are acquired together.
enum Step<'a> {
    HandedOver(Acquired),
    Asks(HeadPermit<'a>, Box<AcquireRequest<'a>>, Queued),
}

impl Engine {
    /// Acquires names, which are sorted and different. The wait counts from `began`, which is now.
    pub(crate) fn acquire_all<'a>(
        self: &Arc<Self>,
        names: &'a [(LockName, Mode)],
        options: &AcquireOptions,
        began: HostInstant,
    ) -> Result<AcquiredSet<'a>, Error> {
        let check_mode = |(_, mode): &(LockName, Mode)| mode.check(&self.capabilities);
        options
            .check(&self.capabilities)
            .and_then(|()| names.iter().try_for_each(check_mode))
            .and_then(|()| self.start_timer())
            .map_err(|error| self.located_all(names, error))?;
        let deadline = self.deadline(options, began);
        let mut taken = Taken::none(self, self.end_of(deadline, began));
        loop {
            let rest = names.get(taken.acquired.len()..).unwrap_or_default();
            // In an outage, one acquisition asks for all threads.
            let is_down = self.parts.iter().any(|part| part.health.is_down());
            if rest.len() > 1 && self.capabilities.batch() > 1 && !is_down {
                let (acquired, end) = self.acquire_free(rest, options, deadline);
                taken.acquired.extend(acquired);
                if let (Some(end), Some((next, mode))) = (end, names.get(taken.acquired.len())) {
                    let report = AcquisitionReport::begin(self, next, *mode, began);
                    if end.is_none() {
                        report.contended();
                    }
                    let mut result = end.map_or(Ok(None), Err);
                    report.end(&mut result);
                    return result.map(|_none| AcquiredSet::Busy(next, *mode));
                }
            }
            let Some((next, mode)) = names.get(taken.acquired.len()) else {
                break;
            };
            let options = options.clone().mode(*mode);
            match self.acquire(next, &options, (deadline, None), self.clock.now())? {
                Some(acquired) => taken.acquired.push(acquired),
                None => return Ok(AcquiredSet::Busy(next, *mode)),
            }
        }
        let now = self.clock.now();
        let is_lost = |acquired: &&Acquired| acquired.state(now) != HoldState::Held;
        if let Some(lost) = taken.acquired.iter().find(is_lost) {
            let text = "the lock was lost while others of the same call were waited for, so none is held; try again";
            return Err(self.located(&lost.hold.name, Error::new(ErrorKind::Lost, text)));
        }
        Ok(AcquiredSet::All(std::mem::take(&mut taken.acquired)))
    }

    /// Acquires the first names in one batch, up to the first that another thread or process holds. Also
    /// returns the error of that name, if there is one; without an error, another holder has the name.
    fn acquire_free(
        self: &Arc<Self>,
        names: &[(LockName, Mode)],
        options: &AcquireOptions,
        deadline: Option<HostInstant>,
    ) -> (Vec<Acquired>, Option<Option<Error>>) {
        let terms = self.terms(options);
        let closing = &self.closing;
        let own = options.cancel.as_ref();
        let own = own.map(|own| own.with_parent(&closing.token));
        let token = own.as_ref().unwrap_or(&closing.token);
        let began = self.clock.now();
        let end = self.end_of(deadline, began);
        let steps = self.begin(names, terms, end, token);
        let [mut taken, mut unwanted] = [(); 2].map(|()| Taken::none(self, end));
        let mut refusal = None;
        for step in steps {
            let mut answer = match step {
                Step::HandedOver(acquired) => Ok(Some(acquired)),
                Step::Asks(permit, request, queued) => {
                    let terms = LeaseTerms {
                        mode: request.mode,
                        ..terms
                    };
                    let answer = self.wait_for_grant(&request, &queued);
                    self.take_grant(permit, &request, terms, answer)
                }
            };
            if let Ok(Some(acquired)) = &answer {
                let hold = Arc::clone(&acquired.hold);
                let report = AcquisitionReport::begin(self, &hold.name, hold.mode, began);
                report.end(&mut answer);
            }
            match answer {
                Ok(Some(acquired)) => {
                    let of_order = if refusal.is_none() {
                        &mut taken
                    } else {
                        &mut unwanted
                    };
                    of_order.acquired.push(acquired);
                }
                Ok(None) => refusal = refusal.or(Some(None)),
                Err(error) => refusal = refusal.or(Some(Some(error))),
            }
        }
        let outage = options.outage.unwrap_or(self.settings.outage);
        let is_over = deadline.is_none_or(|at| self.clock.now() >= at);
        // A batch asks once; a single acquisition may ask again.
        let ends = |refusal: &Option<Error>| match refusal {
            _ if token.is_cancelled() => false,
            None => is_over,
            Some(error) if error.kind() == ErrorKind::PoolExhausted || error.is_of_name() => false,
            Some(_) => is_over || outage == Outage::Fail,
        };
        (std::mem::take(&mut taken.acquired), refusal.filter(ends))
    }

    /// Applies the answer to an attempt.
    fn take_grant(
        self: &Arc<Self>,
        mut permit: HeadPermit<'_>,
        request: &AcquireRequest<'_>,
        terms: LeaseTerms,
        answer: AttemptAnswer,
    ) -> Result<Option<Acquired>, Error> {
        let hold = match answer {
            Ok(Some(grant)) => match self.confirm_grant(request, terms, grant) {
                Ok(None) => Err(expired()),
                confirmed => confirmed,
            },
            Ok(None) => {
                if !request.is_cancelled() {
                    self.queue.contended(Key::new(request.name(), terms.mode));
                }
                Ok(None)
            }
            Err(error) => {
                if error.kind() == ErrorKind::Unknown {
                    permit.abandon(request);
                }
                Err(error)
            }
        };
        permit.end(hold.map_err(|error| self.located(request.name(), error)))
    }

    /// Enters the queues of the first names, up to the first with other threads, and sends the requests.
    fn begin<'a>(
        self: &'a Arc<Self>,
        names: &'a [(LockName, Mode)],
        terms: LeaseTerms,
        end: HostInstant,
        token: &'a CancelToken,
    ) -> Vec<Step<'a>> {
        let mut steps = Vec::new();
        for (name, mode) in names {
            let mode = *mode;
            let (key, terms) = (Key::new(name, mode), LeaseTerms { mode, ..terms });
            match self.queue.enter_free(key, terms) {
                Some(Given::Hold(hold, number)) => {
                    steps.push(Step::HandedOver(Acquired::new(hold, number)));
                }
                Some(Given::HeadPermit) => {
                    let request = AcquireRequest {
                        mode,
                        cancel: Some(token),
                        end,
                        ..AcquireRequest::attempt(name, terms.policy.ttl(), &*self.clock)
                    };
                    let part = self.part_of(name, mode);
                    let permit = HeadPermit::new(self, key, part);
                    let queued = self.attempt_of(&request, part);
                    steps.push(Step::Asks(permit, Box::new(request), queued));
                }
                Some(Given::Nothing(_)) | None => break,
            }
        }
        let attempts = steps.iter().filter_map(|step| match step {
            Step::Asks(_, _, queued) => Some(queued),
            Step::HandedOver(_) => None,
        });
        self.send(&attempts.collect::<Vec<_>>());
        steps
    }
}
