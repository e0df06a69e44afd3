//! What a campaign prints.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::checker::{Evidence, Rule, Violation};
use crate::faults::Fault;
use crate::history::{Call, Grant, What};
use crate::plan::Plan;
use crate::round::Outcome;

/// How many violations of one rule are printed.
const SHOWN: usize = 3;

/// What happened on one store so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    rounds: u64,
    grants: u64,
    handed_over: u64,
    shared: u64,
    permits: u64,
    lost: u64,
    refusals: BTreeMap<String, u64>,
    released: BTreeMap<&'static str, u64>,
    faults: BTreeMap<&'static str, u64>,
    broken: BTreeMap<Rule, u64>,
    excused: u64,
    longest_excused: u64,
    /// How often something had to be granted beside a fault, and the longest time in which nothing was.
    watched: u64,
    longest_gap: u64,
    /// How many losses the store knew of, and the longest time until a guard was notified.
    told: u64,
    longest_told: u64,
    /// The longest time in which nothing was granted, in nanoseconds, and the faults of that time.
    longest_pause: (u64, String),
    longest: BTreeMap<&'static str, Call>,
}

impl Tally {
    /// Adds a round.
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        let Outcome {
            history,
            faults,
            found,
            ..
        } = outcome;
        self.rounds += 1;
        for grant in &history.grants {
            self.grants += 1;
            self.handed_over += u64::from(grant.token & 127 != 0);
            self.shared += u64::from(grant.is_shared);
            self.permits += u64::from(Plan::permits(grant.name).is_some());
            self.lost += u64::from(grant.lost.is_some());
        }
        for (why, count) in &history.refusals {
            *self.refusals.entry(why.clone()).or_default() += count;
        }
        for (what, count) in &history.released {
            *self.released.entry(what).or_default() += count;
        }
        for fault in faults {
            *self.faults.entry(fault.kind).or_default() += 1;
        }
        for violation in &found.violations {
            *self.broken.entry(violation.rule).or_default() += 1;
        }
        self.excused += found.excused;
        self.longest_excused = self.longest_excused.max(found.longest_excused);
        self.watched += found.gaps.len() as u64;
        self.longest_gap = found.gaps.iter().copied().fold(self.longest_gap, u64::max);
        self.told += found.told.len() as u64;
        self.longest_told = found.told.iter().copied().fold(self.longest_told, u64::max);
        let pause = longest_pause(&history.grants, outcome.ended);
        if let Some((from, to)) = pause.filter(|(from, to)| to - from > self.longest_pause.0) {
            self.longest_pause = (to - from, kinds(faults, from, to));
        }
        for call in &history.calls {
            let longest = self
                .longest
                .entry(kind(call))
                .or_insert_with(|| call.clone());
            if call.overrun > longest.overrun {
                longest.clone_from(call);
            }
        }
    }

    pub(crate) fn grants(&self) -> u64 {
        self.grants
    }

    pub(crate) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Returns whether a rule was broken.
    pub(crate) fn is_broken(&self) -> bool {
        !self.broken.is_empty() || self.grants == 0
    }

    /// Returns the closing lines.
    pub(crate) fn lines(&self) -> String {
        let broken = |rule| self.broken.get(&rule).copied().unwrap_or(0).to_string();
        let mut rows = vec![
            (
                "grants",
                format!(
                    "{} ({} handed over, {} shared, {} permits)",
                    self.grants, self.handed_over, self.shared, self.permits
                ),
            ),
            ("not granted", counts(&self.refusals)),
            ("guards lost", self.lost.to_string()),
            ("released", counts(&self.released)),
            ("faults", counts(&self.faults)),
            ("overlaps", broken(Rule::Overlap)),
            ("slots beyond the limit", broken(Rule::Slot)),
            (
                "allowed overlaps",
                format!(
                    "{} leases that the store forgot; held beside a later one for {} at most",
                    self.excused,
                    time(self.longest_excused)
                ),
            ),
            ("repeated tokens", broken(Rule::RepeatedToken)),
            ("tokens out of order", broken(Rule::TokenOrder)),
            ("held after a loss", broken(Rule::Revived)),
            (
                "grants beside a fault",
                format!(
                    "stopped in {} of {} times; none for {} at most",
                    broken(Rule::Stalled),
                    self.watched,
                    time(self.longest_gap)
                ),
            ),
            (
                "losses in a row",
                format!(
                    "{}, of which {} told late; told after {} at most",
                    self.told,
                    broken(Rule::ToldLate),
                    time(self.longest_told)
                ),
            ),
            ("longest without grants", {
                let (pause, faults) = &self.longest_pause;
                format!("{}, during: {faults}", time(*pause))
            }),
        ];
        for (what, call) in &self.longest {
            rows.push((what, overrun(call)));
        }
        rows.extend([
            ("hung calls", broken(Rule::Overrun)),
            ("unexpected errors", broken(Rule::UnexpectedError)),
            ("leftovers", broken(Rule::Leftover)),
            ("workers that failed", broken(Rule::Worker)),
        ]);
        let mut text = String::new();
        for (what, value) in rows {
            // A String takes everything.
            let _ = writeln!(text, "  {what:<22} {value}");
        }
        text
    }
}

/// Returns the longest time between two grants of workers, whatever their names: from the first of them to the second.
fn longest_pause(grants: &[Grant], ended: u64) -> Option<(u64, u64)> {
    let times = grants.iter().map(|grant| grant.granted);
    // The search for leftovers acquires each name after that.
    let mut times: Vec<_> = times.filter(|granted| *granted < ended).collect();
    times.sort_unstable();
    let pauses = times.iter().zip(times.iter().skip(1));
    let longest = pauses.max_by_key(|(from, to)| *to - *from);
    longest.map(|(from, to)| (*from, *to))
}

/// Returns the kinds of the faults between two times.
fn kinds(faults: &[Fault], from: u64, to: u64) -> String {
    let during = faults
        .iter()
        .filter(|fault| fault.to >= from && fault.from <= to);
    let kinds: Vec<_> = during.map(|fault| fault.kind).collect();
    match kinds.is_empty() {
        true => "no fault".to_owned(),
        false => kinds.join(", "),
    }
}

/// Returns the name of the row of the longest call of its kind.
fn kind(call: &Call) -> &'static str {
    match call.what {
        What::Acquire if call.limit == 0 => "longest single attempt",
        What::Acquire => "longest overrun",
        What::Drop => "longest drop",
        What::Release => "longest release",
    }
}

/// Returns the evidence of a round's violations: the first few of each rule.
pub(crate) fn evidence(outcome: &Outcome) -> String {
    let mut shown: BTreeMap<Rule, usize> = BTreeMap::new();
    let mut text = String::new();
    for Violation { rule, evidence } in &outcome.found.violations {
        let shown = shown.entry(*rule).or_default();
        *shown += 1;
        if *shown > SHOWN {
            continue;
        }
        let _ = match evidence {
            Evidence::Text(what) => writeln!(text, "{rule:?}: {what}"),
            Evidence::Call(call) => {
                let to = call
                    .began
                    .saturating_add(call.limit)
                    .saturating_add(call.overrun);
                let around = around(outcome, call.began, to);
                let began = at(call.began, outcome);
                write!(
                    text,
                    "{rule:?}: {}, called {began}\n{around}",
                    overrun(call)
                )
            }
            Evidence::Grant(one) => writeln!(text, "{rule:?}:\n  {}", grant(one, outcome)),
            Evidence::Grants(pair) => {
                let (first, second) = (&pair.0, &pair.1);
                let last = |one: &Grant| one.held.or(one.lost).unwrap_or(one.granted);
                let from = first.asked.min(second.asked);
                let around = around(outcome, from, last(first).max(last(second)));
                let [first_line, second_line] = [first, second].map(|one| grant(one, outcome));
                write!(
                    text,
                    "{rule:?} of seat:{}:\n  {first_line}\n  {second_line}\n{around}",
                    first.name
                )
            }
        };
    }
    text
}

/// Returns the faults between two times, and those of the second before.
fn around(outcome: &Outcome, from: u64, to: u64) -> String {
    let from = from.saturating_sub(1_000_000_000);
    let is_around = |fault: &&Fault| fault.to >= from && fault.from <= to;
    faults(outcome, outcome.faults.iter().filter(is_around))
}

/// Returns all faults of a round, one in a line.
pub(crate) fn all_faults(outcome: &Outcome) -> String {
    faults(outcome, outcome.faults.iter())
}

fn faults<'a>(outcome: &Outcome, faults: impl Iterator<Item = &'a Fault>) -> String {
    let lines = faults.map(|fault| {
        let (from, to) = (at(fault.from, outcome), at(fault.to, outcome));
        format!("    fault from {from} to {to}: {}\n", fault.kind)
    });
    lines.collect()
}

fn grant(grant: &Grant, outcome: &Outcome) -> String {
    let at = |time| at(time, outcome);
    let held = grant.held.map_or_else(
        || "never held".to_owned(),
        |held| format!("held until {}", at(held)),
    );
    let lost = grant
        .lost
        .map_or_else(String::new, |lost| format!(", lost by {}", at(lost)));
    let shared = if grant.is_shared { ", shared" } else { "" };
    let slot =
        Plan::permits(grant.name).map_or_else(String::new, |_| format!(", slot {}", grant.slot));
    format!(
        "token {} (lease {:x}, hand-over {}{shared}{slot}) of process {}, thread {}: asked {}, granted {}, {held}{lost}",
        grant.token,
        grant.epoch(),
        grant.token & 127,
        grant.process,
        grant.thread,
        at(grant.asked),
        at(grant.granted),
    )
}

/// Returns a time in seconds since the round began.
fn at(time: u64, outcome: &Outcome) -> String {
    let since = time.saturating_sub(outcome.began);
    format!("{:.6}", Duration::from_nanos(since).as_secs_f64())
}

fn overrun(call: &Call) -> String {
    let (process, thread, name) = (&call.process, call.thread, call.name);
    let of = match call.limit {
        0 => String::new(),
        limit => format!(" beyond a wait of {}", time(limit)),
    };
    let (overrun, returned) = (time(call.overrun), &call.returned);
    format!("{overrun}{of}, {returned} (process {process}, thread {thread}, seat:{name})")
}

fn time(nanos: u64) -> String {
    format!("{:.1} ms", Duration::from_nanos(nanos).as_secs_f64() * 1e3)
}

fn counts<K: AsRef<str>>(counts: &BTreeMap<K, u64>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    let each = counts
        .iter()
        .map(|(what, count)| format!("{} {count}", what.as_ref()));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::Found;
    use crate::history::History;

    fn grant_of(token: u64, asked: u64) -> Grant {
        Grant {
            process: format!("{token} (pid 1)"),
            thread: 2,
            name: 7,
            is_shared: true,
            slot: 2,
            token,
            asked,
            granted: asked + 1_000_000,
            held: Some(asked + 2_000_000),
            ..Grant::default()
        }
    }

    #[test]
    fn evidence_has_both_grants_and_the_faults_around_them() {
        let fault = |kind, from| Fault {
            kind,
            from,
            to: from,
        };
        let pair = (grant_of(128, 5_000_000_000), grant_of(257, 5_001_000_000));
        let mut found = Found::default();
        for _ in 0..SHOWN + 1 {
            let pair = Box::new(pair.clone());
            found.add(Rule::Overlap, Evidence::Grants(pair));
        }
        let outcome = Outcome {
            began: 1_000_000_000,
            faults: vec![fault("long before", 0), fault("near", 5_000_000_000)],
            found,
            ..Outcome::default()
        };
        let text = evidence(&outcome);
        for part in [
            "Overlap of seat:7",
            "token 128 (lease 1, hand-over 0, shared) of process 128 (pid 1), thread 2",
            "token 257 (lease 2, hand-over 1, shared)",
            "asked 4.000000, granted 4.001000, held until 4.002000",
            "fault from 4.000000 to 4.000000: near",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("long before"), "{text}");
        assert_eq!(text.matches("Overlap").count(), SHOWN);
    }

    #[test]
    fn tally_adds_rounds_and_keeps_the_longest_call() {
        let call = |overrun, limit| Call {
            process: "1".to_owned(),
            thread: 2,
            name: 3,
            limit,
            overrun,
            returned: "busy".to_owned(),
            ..Call::default()
        };
        let mut tally = Tally::default();
        assert!(tally.is_broken(), "a campaign without grants shows nothing");
        for overrun in [2_000_000, 7_000_000, 3_000_000] {
            tally.add(&Outcome {
                history: History {
                    grants: vec![grant_of(128, 0), grant_of(129, 0)],
                    calls: vec![call(overrun, 5_000_000), call(1, 0)],
                    ..History::default()
                },
                ..Outcome::default()
            });
        }
        assert!(!tally.is_broken());
        let lines = tally.lines();
        for part in [
            "6 (3 handed over, 6 shared, 0 permits)",
            "7.0 ms beyond a wait of 5.0 ms, busy (process 1, thread 2, seat:3)",
            "longest single attempt 0.0 ms",
        ] {
            assert!(lines.contains(part), "{part}\n{lines}");
        }
    }
}
