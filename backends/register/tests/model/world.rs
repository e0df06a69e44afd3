//! A store with one name, the processes that lock it, and the steps that they can make.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::{LockName, Mode};

use crate::decide::{self, Answer, Attempt, Kind};
use crate::entry::{Contents, Lease};
use crate::key::Key;

/// How often what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bounds {
    /// How often each process acquires the name.
    pub(crate) rounds: u8,
    /// Writes whose replies are lost, or that arrive late.
    pub(crate) faults: u8,
    pub(crate) deaths: u8,
    /// Sessions that end while their processes live.
    pub(crate) ends: u8,
    pub(crate) sweeps: u8,
    pub(crate) unlocks: u8,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            rounds: 1,
            faults: 0,
            deaths: 0,
            ends: 0,
            sweeps: 0,
            unlocks: 0,
        }
    }
}

type Version = u64;

/// A write under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Write {
    seen: Option<Version>,
    also: Option<Version>,
    session: Option<String>,
    value: Option<Contents>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Idle,
    /// In the queue, as far as the process knows; or its last write may be under way.
    Waiting {
        in_doubt: bool,
    },
    Writing(Write, Then),
    Holding,
    /// It releases or gives up. `settles` if an earlier write may arrive late.
    Leaving {
        settles: bool,
    },
    Done,
    Dead,
}

/// What follows a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    Hold(u64),
    Wait { in_doubt: bool },
    End { settles: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    mode: Mode,
    clock: u64,
    step: Step,
    session: String,
    round: u8,
    /// The epoch that it believes to hold, and the version in which it was alone.
    holds: Option<(u64, Option<Version>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    entry: Option<(Version, Contents)>,
    floor: (Version, u64),
    ended: BTreeSet<String>,
    processes: Vec<Process>,
    /// An entry that is being removed, with its last epoch, and whether the floor was raised.
    sweep: Option<(Version, u64, bool)>,
    late: Vec<Write>,
    /// The largest epoch so far.
    largest: u64,
    bounds: Bounds,
}

fn key() -> Key {
    Key::of(&LockName::new("a").unwrap(), Mode::Exclusive)
}

impl World {
    pub(crate) fn new(modes: &[Mode], bounds: Bounds) -> Self {
        let process = |(number, mode): (usize, &Mode)| Process {
            mode: *mode,
            // The first clock is ahead of the others.
            clock: if number == 0 { 100 } else { 1 },
            step: Step::Idle,
            session: format!("{number}"),
            round: 0,
            holds: None,
        };
        Self {
            entry: None,
            floor: (1, 0),
            ended: BTreeSet::new(),
            processes: modes.iter().enumerate().map(process).collect(),
            sweep: None,
            late: Vec::new(),
            largest: 0,
            bounds,
        }
    }

    /// Renames the versions, of which only equality counts, so that worlds that differ in nothing else are one.
    pub(crate) fn rename_versions(&mut self) {
        let mut names = BTreeMap::new();
        let mut rename = |version: &mut Version| {
            let next = names.len() as u64 + 1;
            *version = *names.entry(*version).or_insert(next);
        };
        self.each_version(&mut rename);
    }

    fn each_version(&mut self, visit: &mut impl FnMut(&mut Version)) {
        visit(&mut self.floor.0);
        self.entry.iter_mut().for_each(|it| visit(&mut it.0));
        self.sweep.iter_mut().for_each(|it| visit(&mut it.0));
        let mut writes: Vec<_> = self.late.iter_mut().collect();
        for process in &mut self.processes {
            if let Some((_, Some(version))) = &mut process.holds {
                visit(version);
            }
            if let Step::Writing(write, _) = &mut process.step {
                writes.push(write);
            }
        }
        for write in writes {
            write.seen.iter_mut().for_each(&mut *visit);
            write.also.iter_mut().for_each(&mut *visit);
        }
    }

    fn new_version(&mut self) -> Version {
        let mut largest = 0;
        self.each_version(&mut |version| largest = largest.max(*version));
        largest + 1
    }

    /// Carries a write of the entry out. Returns its new version, if the conditions hold.
    fn apply(&mut self, write: &Write) -> Option<Version> {
        let is_met = self.entry.as_ref().map(|it| it.0) == write.seen
            && write.also.is_none_or(|version| version == self.floor.0)
            && write
                .session
                .as_ref()
                .is_none_or(|it| !self.ended.contains(it));
        is_met.then(|| {
            let version = self.new_version();
            let leases = write.value.iter().flat_map(|it| &it.leases);
            let old = self.entry.as_ref().map(|it| &it.1);
            let is_new = |it: &&Lease| old.is_none_or(|old| old.lease(&it.owner).is_none());
            for lease in leases.filter(is_new) {
                assert!(
                    lease.epoch > self.largest,
                    "epochs grow: {self:#?}, {write:#?}"
                );
                self.largest = lease.epoch;
                let queue = old.map(|old| &*old.queue).unwrap_or_default();
                let earlier = queue.iter().take_while(|it| it.owner != lease.owner);
                let left = write.value.iter().flat_map(|it| &it.queue);
                let is_passed = earlier
                    .clone()
                    .any(|it| left.clone().any(|left| left == it));
                assert!(
                    !is_passed,
                    "an earlier waiter was passed: {self:#?}, {write:#?}"
                );
            }
            self.entry = write.value.clone().map(|value| (version, value));
            version
        })
    }

    fn owner(&self, process: usize) -> String {
        format!("{process}-{}", self.processes[process].round)
    }

    /// Returns all worlds that one step leads to.
    pub(crate) fn next(&self) -> Vec<World> {
        let mut next = Vec::new();
        for index in 0..self.processes.len() {
            self.step(index, &mut next);
        }
        for index in 0..self.late.len() {
            let mut arrives = self.clone();
            let write = arrives.late.remove(index);
            next.push(arrives.clone());
            if arrives.apply(&write).is_some() {
                next.push(arrives);
            }
        }
        self.sweep_step(&mut next);
        if let Some((version, contents)) = &self.entry
            && self.bounds.unlocks > 0
            && let Some(lease) = contents.leases.first()
        {
            let mut world = self.clone();
            world.bounds.unlocks -= 1;
            let value = decide::remove(contents, &lease.owner, None);
            let unlock = Write {
                seen: Some(*version),
                also: None,
                session: None,
                value,
            };
            world.apply(&unlock).expect("it is in one step");
            for (index, process) in world.processes.iter_mut().enumerate() {
                if lease.owner == format!("{index}-{}", process.round) {
                    process.holds = process.holds.map(|_| (0, None));
                }
            }
            next.push(world);
        }
        next
    }

    /// A sweep reads, raises the floor, and removes the entry.
    fn sweep_step(&self, next: &mut Vec<World>) {
        let mut world = self.clone();
        match (&self.entry, self.sweep) {
            (Some((version, contents)), None) if self.bounds.sweeps > 0 && contents.is_free() => {
                world.bounds.sweeps -= 1;
                world.sweep = Some((*version, contents.last, false));
            }
            (_, Some((version, last, false))) => {
                if self.floor.1 < last {
                    world.floor = (world.new_version(), last);
                }
                world.sweep = Some((version, last, true));
            }
            (_, Some((version, _, true))) => {
                world.sweep = None;
                let remove = Write {
                    seen: Some(version),
                    also: None,
                    session: None,
                    value: None,
                };
                if self.bounds.faults > 0 {
                    let mut late = world.clone();
                    late.bounds.faults -= 1;
                    late.late.push(remove.clone());
                    next.push(late);
                }
                world.apply(&remove);
            }
            _ => return,
        }
        next.push(world);
    }

    fn step(&self, index: usize, next: &mut Vec<World>) {
        let process = &self.processes[index];
        if process.step != Step::Dead {
            if self.bounds.deaths > 0 {
                let mut dies = self.clone();
                dies.bounds.deaths -= 1;
                if let Step::Writing(write, _) = &process.step {
                    dies.late.push(write.clone());
                }
                dies.processes[index].step = Step::Dead;
                dies.processes[index].holds = None;
                next.push(dies);
            }
            if self.bounds.ends > 0 && process.step != Step::Done {
                let mut ends = self.clone();
                ends.bounds.ends -= 1;
                ends.ended.insert(process.session.clone());
                let process = &mut ends.processes[index];
                process.session.push('+');
                // The guard is lost before the session ends.
                process.holds = process.holds.map(|_| (0, None));
                next.push(ends);
            }
        } else if !self.ended.contains(&process.session) {
            let mut ends = self.clone();
            ends.ended.insert(process.session.clone());
            next.push(ends);
        }
        match process.step.clone() {
            Step::Done | Step::Dead => {}
            Step::Idle => self.ask(index, false, next),
            Step::Waiting { in_doubt } => {
                self.ask(index, in_doubt, next);
                let mut leaves = self.clone();
                leaves.processes[index].step = Step::Leaving { settles: in_doubt };
                next.push(leaves);
            }
            Step::Writing(write, then) => self.write(index, &write, then, next),
            Step::Holding => {
                let mut releases = self.clone();
                let (epoch, alone_at) = process.holds.expect("it holds");
                let owner = self.owner(index);
                if let Some((version, contents)) = &self.entry
                    && contents.lease(&owner).is_some_and(|it| it.epoch == epoch)
                {
                    // A renewal.
                    let mut renews = self.clone();
                    let alone_at = contents.alone_at(&owner, *version);
                    renews.processes[index].holds = Some((epoch, alone_at));
                    next.push(renews);
                }
                releases.processes[index].step = match alone_at {
                    Some(_) => Step::Writing(
                        Write {
                            seen: alone_at,
                            also: None,
                            session: None,
                            value: Some(Contents::free(&key(), epoch)),
                        },
                        Then::End { settles: false },
                    ),
                    None => Step::Leaving { settles: false },
                };
                // It believes no longer that it holds the name.
                releases.processes[index].holds = None;
                next.push(releases);
            }
            Step::Leaving { settles } => self.leave(index, settles, next),
        }
    }

    /// Reads and decides, knowing of ended sessions or not, and with the patience for the first waiter over or not.
    fn ask(&self, index: usize, in_doubt: bool, next: &mut Vec<World>) {
        let process = &self.processes[index];
        let (key, found) = (key(), self.entry.as_ref().map(|it| &it.1));
        for knows in [false, true] {
            for skips in [false, true] {
                let attempt = Attempt {
                    key: &key,
                    lease: self.lease(index),
                    kind: Kind::Queues,
                    place: process.session.clone(),
                    least_epoch: process.clock.max(self.floor.1 + 1),
                };
                let ended = |session: &String| knows && self.ended.contains(session);
                let (value, answer) = decide::attempt(found, &attempt, ended, skips);
                let mut world = self.clone();
                let then = match answer {
                    Answer::Granted { epoch, .. } => Then::Hold(epoch),
                    Answer::Waits { .. } => Then::Wait { in_doubt },
                    Answer::Gone | Answer::Mismatch { .. } => panic!("{answer:?}"),
                };
                match value {
                    Some(value) => {
                        let seen = self.entry.as_ref().map(|it| it.0);
                        let write = Write {
                            seen,
                            also: seen.is_none().then_some(self.floor.0),
                            session: Some(process.session.clone()),
                            value: Some(value),
                        };
                        world.processes[index].step = Step::Writing(write, then);
                    }
                    // Renewed first, the lease of an ended session is lost.
                    None => match then {
                        Then::Hold(_) if self.is_own_lease_over(index) => continue,
                        _ => world.finish(index, then, None),
                    },
                }
                next.push(world);
            }
        }
    }

    fn is_own_lease_over(&self, index: usize) -> bool {
        let owner = self.owner(index);
        let found = self.entry.as_ref().and_then(|it| it.1.lease(&owner));
        found.is_some_and(|lease| self.ended.contains(&lease.session))
    }

    fn lease(&self, index: usize) -> Lease {
        let process = &self.processes[index];
        Lease {
            owner: self.owner(index),
            epoch: 0,
            mode: process.mode,
            slot: 0,
            session: process.session.clone(),
            host: String::new(),
            pid: 0,
            label: String::new(),
            since: 0,
        }
    }

    /// The write is carried out or refused, or its reply is lost, or it arrives later.
    fn write(&self, index: usize, write: &Write, then: Then, next: &mut Vec<World>) {
        if self.bounds.faults > 0 {
            let mut lost = self.clone();
            lost.bounds.faults -= 1;
            lost.processes[index].step = match then {
                Then::Hold(_) | Then::Wait { .. } => Step::Waiting { in_doubt: true },
                Then::End { settles } => Step::Leaving { settles },
            };
            let mut late = lost.clone();
            late.late.push(write.clone());
            next.push(late);
            lost.apply(write);
            next.push(lost);
        }
        let mut world = self.clone();
        let version = world.apply(write);
        if version.is_some() && matches!(then, Then::End { .. }) {
            let owner = self.owner(index);
            let queue = |world: &World| match &world.entry {
                Some((_, contents)) => contents.queue.clone(),
                None => Vec::new(),
            };
            let mut kept = queue(self);
            kept.retain(|it| it.owner != owner);
            assert_eq!(queue(&world), kept, "a release keeps the waiters");
        }
        match version {
            Some(version) => world.finish(index, then, Some(version)),
            None => {
                world.processes[index].step = match then {
                    Then::Hold(_) => Step::Waiting { in_doubt: false },
                    Then::Wait { in_doubt } => Step::Waiting { in_doubt },
                    // Another version: then no earlier write can be carried out.
                    Then::End { .. } => Step::Leaving { settles: false },
                };
            }
        }
        next.push(world);
    }

    /// Removes what the process has in the entry.
    fn leave(&self, index: usize, settles: bool, next: &mut Vec<World>) {
        let mut world = self.clone();
        let owner = self.owner(index);
        let found = self.entry.as_ref().map(|it| &it.1);
        let settled = || match found {
            Some(found) => found.clone(),
            None => {
                let clock = self.processes[index].clock;
                Contents::free(&key(), clock.max(self.floor.1 + 1))
            }
        };
        let removed = found.and_then(|found| decide::remove(found, &owner, None));
        match removed.or_else(|| settles.then(settled)) {
            Some(value) => {
                let seen = self.entry.as_ref().map(|it| it.0);
                let write = Write {
                    seen,
                    also: seen.is_none().then_some(self.floor.0),
                    session: None,
                    value: Some(value),
                };
                world.processes[index].step = Step::Writing(write, Then::End { settles });
            }
            None => world.finish(index, Then::End { settles }, None),
        }
        next.push(world);
    }

    /// The process learns what came of its write.
    fn finish(&mut self, index: usize, then: Then, version: Option<Version>) {
        let owner = self.owner(index);
        match then {
            Then::Wait { in_doubt } => self.processes[index].step = Step::Waiting { in_doubt },
            Then::End { .. } => {
                let process = &mut self.processes[index];
                process.holds = None;
                process.round += 1;
                process.step = match process.round < self.bounds.rounds {
                    true => Step::Idle,
                    false => Step::Done,
                };
            }
            Then::Hold(epoch) => {
                let contents = self.entry.as_ref().map(|it| &it.1);
                let alone_at = contents.zip(version);
                let alone_at = alone_at.and_then(|(it, version)| it.alone_at(&owner, version));
                self.processes[index].holds = Some((epoch, alone_at));
                self.processes[index].step = Step::Holding;
            }
        }
    }

    /// Checks what must always be.
    pub(crate) fn check(&self) {
        let believers: Vec<_> = self
            .processes
            .iter()
            .filter(|it| it.holds.is_some_and(|(epoch, _)| epoch > 0))
            .collect();
        let exclusive = believers.iter().filter(|it| it.mode == Mode::Exclusive);
        assert!(
            exclusive.count() == 0 || believers.len() == 1,
            "two hold it: {self:#?}"
        );
        if let Some((_, contents)) = &self.entry {
            let slots: BTreeSet<_> = contents.leases.iter().map(|it| it.slot).collect();
            let is_permit = contents.leases.iter().all(|it| it.mode.is_permit());
            assert!(
                !is_permit || slots.len() == contents.leases.len(),
                "{self:#?}"
            );
        }
        let is_over = |it: &Process| match it.step {
            Step::Done => true,
            Step::Dead => self.ended.contains(&it.session),
            _ => false,
        };
        if self.late.is_empty() && self.processes.iter().all(is_over) {
            self.check_nothing_left();
        }
        for index in 0..self.processes.len() {
            if matches!(self.processes[index].step, Step::Waiting { .. }) {
                self.check_is_not_blocked(index);
            }
        }
    }

    fn check_nothing_left(&self) {
        let Some((_, contents)) = &self.entry else {
            return;
        };
        let mut left = contents.clone();
        left.end(|session| self.ended.contains(session));
        assert!(left.is_free(), "something is left: {self:#?}");
    }

    /// Lets all others stand still, and their sessions end if they have a lease. A waiter gets the name then.
    fn check_is_not_blocked(&self, index: usize) {
        let mut world = self.clone();
        world.bounds.faults = 0;
        world.bounds.rounds = 9;
        let own = world.processes[index].session.clone();
        let leases = self.entry.iter().flat_map(|it| &it.1.leases);
        let others = leases.filter(|lease| lease.session != own);
        world
            .ended
            .extend(others.map(|lease| lease.session.clone()));
        for _ in 0..self.processes.len() + 2 {
            let mut next = Vec::new();
            world.ask(index, false, &mut next);
            // The last one knows of ended sessions, and has waited for the first waiter.
            let Some(asked) = next.pop() else {
                return;
            };
            world = asked;
            if let Step::Writing(write, then) = world.processes[index].step.clone() {
                let version = world.apply(&write).expect("all others stand still");
                world.finish(index, then, Some(version));
            }
            if world.processes[index].step == Step::Holding {
                return;
            }
        }
        panic!("the waiter {index} is blocked: {self:#?}");
    }
}
