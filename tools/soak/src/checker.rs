//! The rules that the grants of a round must keep. The checker knows only what the guards reported.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::faults::Noted;
use crate::forgot::Excuses;
use crate::history::{Call, Grant, History};
use crate::plan::Plan;
use crate::watched::{STALL, TOLD};

/// The lateness from which a call counts as hung, in nanoseconds. A smaller lateness depends on the load of
/// the machine, and is only reported.
pub(crate) const HANG: u64 = 5_000_000_000;

/// A broken rule of the contract, and the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) rule: Rule,
    pub(crate) evidence: Evidence,
}

/// The rules, by the way in which they are broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rule {
    /// Two guards that exclude each other were held at the same time.
    Overlap,
    /// A permit has a slot beyond the limit.
    Slot,
    /// A later grant has a smaller token.
    TokenOrder,
    /// Two grants have the same token.
    RepeatedToken,
    /// A call did not end on time.
    Overrun,
    /// A lost guard reported that it is held.
    Revived,
    /// Nothing was granted during a fault of other names or other servers.
    Stalled,
    /// A guard was notified late of a loss that the store knew of.
    ToldLate,
    /// An error that no fault explains.
    UnexpectedError,
    /// Something was left in the store.
    Leftover,
    /// A worker process ended by itself, or did not end in order.
    Worker,
}

/// The evidence of a broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// Two grants of one name, the smaller token first.
    Grants(Box<(Grant, Grant)>),
    Grant(Box<Grant>),
    Call(Box<Call>),
    Text(String),
}

/// What the checker found in the grants of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) violations: Vec<Violation>,
    /// The number of leases that were held beside a later one because the store had forgotten them.
    pub(crate) excused: u64,
    /// The longest time for which a guard of such a lease and a later guard were both held, in nanoseconds.
    pub(crate) longest_excused: u64,
    /// For each period that had to have grants: the longest time without a grant, in nanoseconds.
    pub(crate) gaps: Vec<u64>,
    /// For each loss that the store knew of: the time until the guard was notified, in nanoseconds. The longest
    /// time in which the store granted nothing is subtracted.
    pub(crate) told: Vec<u64>,
}

/// Checks the rounds of one store in order.
#[derive(Debug)]
pub(crate) struct Checker {
    /// The ttl of all leases, in nanoseconds.
    ttl: u64,
    /// The largest token of each name and slot in the earlier rounds.
    largest: HashMap<(u32, u32), u64>,
}

impl Checker {
    pub(crate) fn new(ttl: u64) -> Self {
        Self {
            ttl,
            largest: HashMap::new(),
        }
    }

    /// Checks a round.
    pub(crate) fn check(&mut self, history: &History, noted: &Noted) -> Found {
        // Each slot is checked like a lock. If no two guards hold the same slot, there are no more holders
        // than slots.
        let mut names: HashMap<(u32, u32), Vec<&Grant>> = HashMap::new();
        for grant in &history.grants {
            let name = (grant.name, grant.slot);
            names.entry(name).or_default().push(grant);
        }
        let mut found = Found::default();
        for (name, mut grants) in names {
            grants.sort_by_key(|grant| (grant.token, grant.asked));
            let key = name;
            let floor = self.largest.get(&key).copied().unwrap_or(0);
            let mut name = Name {
                excuses: Excuses::new(self.ttl, &grants, &noted.forgot),
                grants,
                found: &mut found,
            };
            name.check_tokens(floor);
            name.check_held();
            name.check_requests();
            if let Some(last) = name.grants.last() {
                self.largest.insert(key, last.token.max(floor));
            }
        }
        let is_beyond = |grant: &&Grant| grant.slot >= Plan::permits(grant.name).unwrap_or(1);
        for grant in history.grants.iter().filter(is_beyond) {
            found.add(Rule::Slot, Evidence::Grant(Box::new(grant.clone())));
        }
        for grant in history.grants.iter().filter(|grant| grant.is_revived) {
            found.add(Rule::Revived, Evidence::Grant(Box::new(grant.clone())));
        }
        for call in history.calls.iter().filter(|call| call.overrun > HANG) {
            found.add(Rule::Overrun, Evidence::Call(Box::new(call.clone())));
        }
        for watched in &noted.watched {
            let gap = watched.longest_gap(&history.grants);
            found.gaps.push(gap);
            if gap > STALL {
                let kind = watched.kind;
                let text = format!("no grant for {} ms beside: {kind}", gap / 1_000_000);
                found.add(Rule::Stalled, Evidence::Text(text));
            }
        }
        let told = noted.told.iter();
        let told = told.map(|it| it.length_with_grants(&history.grants));
        found.told = told.collect();
        for told in found.told.clone().into_iter().filter(|told| *told > TOLD) {
            let text = format!("a guard was told of its loss after {} ms", told / 1_000_000);
            found.add(Rule::ToldLate, Evidence::Text(text));
        }
        for text in &history.unexpected {
            found.add(Rule::UnexpectedError, Evidence::Text(text.clone()));
        }
        for text in &history.left {
            found.add(Rule::Leftover, Evidence::Text(text.clone()));
        }
        found
    }
}

impl Found {
    pub(crate) fn add(&mut self, rule: Rule, evidence: Evidence) {
        self.violations.push(Violation { rule, evidence });
    }

    fn add_pair(&mut self, rule: Rule, earlier: &Grant, later: &Grant) {
        let pair = Box::new((earlier.clone(), later.clone()));
        self.add(rule, Evidence::Grants(pair));
    }
}

/// The grants of one lock, or of one slot of a semaphore, in the order of their tokens.
struct Name<'a> {
    grants: Vec<&'a Grant>,
    excuses: Excuses<'a>,
    found: &'a mut Found,
}

impl Name<'_> {
    /// Checks that no token is repeated, and that all are larger than those of earlier rounds.
    fn check_tokens(&mut self, floor: u64) {
        for pair in self.grants.windows(2) {
            if let [first, second] = pair
                && first.token == second.token
            {
                self.found.add_pair(Rule::RepeatedToken, first, second);
            }
        }
        for grant in self.grants.iter().filter(|grant| grant.token <= floor) {
            let evidence = Evidence::Grant(Box::new((*grant).clone()));
            self.found.add(Rule::TokenOrder, evidence);
        }
    }

    /// Checks that guards that exclude each other do not overlap in time, and are in the order of their
    /// tokens.
    fn check_held(&mut self) {
        // The grants with smaller tokens, by the time until which they were held.
        let mut before: BTreeSet<(u64, usize)> = BTreeSet::new();
        let mut excused: HashSet<u64> = HashSet::new();
        for (index, later) in self.grants.iter().enumerate() {
            let Some((from, until)) = later.interval() else {
                continue;
            };
            for (held, earlier) in before.range((from, 0)..) {
                let Some(earlier) = self.grants.get(*earlier) else {
                    continue;
                };
                if !earlier.excludes(later) {
                    continue;
                }
                let overlap = held.min(&until).saturating_sub(from.max(earlier.granted));
                if self.excuses.has(earlier, later, *held) {
                    excused.insert(earlier.epoch());
                    self.found.longest_excused = self.found.longest_excused.max(overlap);
                } else if earlier.granted > until {
                    self.found.add_pair(Rule::TokenOrder, earlier, later);
                } else {
                    self.found.add_pair(Rule::Overlap, earlier, later);
                }
            }
            before.insert((until, index));
        }
        self.found.excused += excused.len() as u64;
    }

    /// Checks that a request that begins after another grant gets a larger token. Readers have no order among
    /// themselves. The rule also applies to guards that were lost before they reported anything.
    fn check_requests(&mut self) {
        let mut by_request = self.grants.clone();
        by_request.sort_by_key(|grant| grant.asked);
        let mut by_grant = self.grants.clone();
        by_grant.sort_by_key(|grant| grant.granted);
        let mut by_grant = by_grant.into_iter().peekable();
        let mut before: BTreeMap<u64, &Grant> = BTreeMap::new();
        for grant in by_request {
            while let Some(earlier) = by_grant.next_if(|earlier| earlier.granted < grant.asked) {
                before.insert(earlier.token, earlier);
            }
            for (_, larger) in before.range(grant.token + 1..) {
                // `check_held` has judged two guards that both reported to be held.
                let is_judged = grant.interval().is_some() && larger.interval().is_some();
                if grant.excludes(larger)
                    && !is_judged
                    && !self.excuses.has(grant, larger, grant.granted)
                {
                    self.found.add_pair(Rule::TokenOrder, grant, larger);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forgot::Forgot;
    use crate::watched::Watched;

    const TTL: u64 = 1000;

    /// Returns a grant that was requested at `granted` - 5.
    fn grant(token: u64, granted: u64, held: Option<u64>) -> Grant {
        Grant {
            process: format!("{token}"),
            keeper: 1,
            name: 3,
            token,
            asked: granted - 5,
            granted,
            held,
            ..Grant::default()
        }
    }

    fn forgot_at(from: u64, to: u64) -> Forgot {
        let keeper = None;
        Forgot { keeper, from, to }
    }

    fn check(grants: &[Grant], forgot: &[Forgot]) -> Found {
        let history = History {
            grants: grants.to_vec(),
            ..History::default()
        };
        let noted = Noted {
            forgot: forgot.to_vec(),
            ..Noted::default()
        };
        Checker::new(TTL).check(&history, &noted)
    }

    fn rules(found: &Found) -> Vec<Rule> {
        found.violations.iter().map(|it| it.rule).collect()
    }

    /// Checks grants of (token, time of the grant, last time held).
    fn rules_of(grants: &[(u64, u64, Option<u64>)]) -> Vec<Rule> {
        let grants = grants.iter();
        let grants = grants.map(|&(token, at, held)| grant(token, at, held));
        let grants: Vec<_> = grants.collect();
        rules(&check(&grants, &[]))
    }

    #[test]
    fn grants_of_a_lock_are_apart_and_in_the_order_of_their_tokens() {
        let one = (128, 100, Some(110));
        let apart = [
            one,
            (129, 111, Some(120)),
            (256, 119, None),
            (384, 130, Some(130)),
        ];
        assert_eq!(rules_of(&apart), []);
        let touching = [(128, 100, Some(150)), (256, 150, Some(160))];
        assert_eq!(rules_of(&touching), [Rule::Overlap]);
        assert_eq!(rules_of(&[one, (128, 200, None)]), [Rule::RepeatedToken]);
        let larger = (256, 100, Some(110));
        assert_eq!(
            rules_of(&[larger, (128, 200, Some(210))]),
            [Rule::TokenOrder]
        );
        assert_eq!(
            rules_of(&[larger, (128, 200, None)]),
            [Rule::TokenOrder],
            "never held"
        );
        // It was requested before the other was granted, so it may have been granted first.
        assert_eq!(rules_of(&[larger, (128, 103, None)]), []);
    }

    #[test]
    fn overlap_is_found_with_both_grants() {
        let mut grants = [
            grant(128, 100, Some(200)),
            grant(256, 150, Some(160)),
            grant(384, 170, Some(180)),
            grant(512, 300, Some(310)),
        ];
        let found = check(&grants, &[]);
        assert_eq!(rules(&found), [Rule::Overlap, Rule::Overlap]);
        let first = &found.violations[0].evidence;
        let pair = Box::new((grants[0].clone(), grants[1].clone()));
        assert_eq!(*first, Evidence::Grants(pair));
        grants[0].name = 4;
        assert_eq!(check(&grants, &[]), Found::default(), "of another name");
    }

    #[test]
    fn readers_overlap_and_exclude_writers() {
        let mut grants = [
            grant(128, 100, Some(200)),
            grant(129, 120, Some(160)),
            // Granted later, with the smaller token of another process's lease.
            grant(64, 170, Some(210)),
            grant(65, 180, None),
        ];
        for reader in &mut grants {
            reader.is_shared = true;
        }
        assert_eq!(check(&grants, &[]), Found::default());
        let writer = |token, granted, held| [&grants[..], &[grant(token, granted, held)]].concat();
        assert_eq!(rules(&check(&writer(256, 190, Some(195)), &[])).len(), 2);
        assert_eq!(check(&writer(256, 220, Some(225)), &[]), Found::default());
        let found = check(&writer(60, 220, None), &[]);
        assert!(rules(&found).iter().all(|rule| *rule == Rule::TokenOrder));
        assert_eq!(
            found.violations.len(),
            4,
            "its token is smaller than each before"
        );
    }

    #[test]
    fn permits_overlap_in_different_slots_up_to_the_limit() {
        let permit = |token, granted, slot| Grant {
            name: 2,
            slot,
            ..grant(token, granted, Some(200))
        };
        let permits = [
            permit(384, 100, 0),
            permit(256, 110, 1),
            permit(128, 120, 2),
        ];
        assert_eq!(check(&permits, &[]), Found::default());
        let with = |more| [&permits[..], &[more]].concat();
        let beyond = check(&with(permit(512, 130, 3)), &[]);
        assert_eq!(rules(&beyond), [Rule::Slot]);
        let twice = check(&with(permit(512, 130, 1)), &[]);
        assert_eq!(rules(&twice), [Rule::Overlap]);
        let again = check(&with(permit(300, 210, 0)), &[]);
        assert_eq!(rules(&again), [Rule::TokenOrder], "tokens of a slot grow");
    }

    #[test]
    fn token_of_an_earlier_round_is_found() {
        let mut checker = Checker::new(TTL);
        for (token, broken) in [(256, 0), (384, 0), (384, 1), (128, 1), (385, 0)] {
            let history = History {
                grants: vec![grant(token, 100, Some(110))],
                ..History::default()
            };
            let found = checker.check(&history, &Noted::default());
            assert_eq!(found.violations.len(), broken, "{token}");
        }
    }

    #[test]
    fn stall_beside_a_fault_and_a_loss_told_late_are_found() {
        let history = History {
            grants: (1..=2 * STALL / TOLD)
                .map(|number| (128 * number, number * TOLD / 2))
                .map(|(token, at)| grant(token, at, Some(at)))
                .collect(),
            ..History::default()
        };
        let until = |to| Watched {
            kind: "stopped",
            names: None,
            from: 0,
            to,
        };
        let check = |to, told| {
            let noted = Noted {
                watched: vec![until(to)],
                told: vec![until(told)],
                ..Noted::default()
            };
            rules(&Checker::new(TTL).check(&history, &noted))
        };
        // The store granted something every half of that time.
        let late = TOLD + TOLD / 2;
        assert_eq!(check(2 * STALL, late), []);
        assert_eq!(check(2 * STALL + 1, late), [Rule::Stalled]);
        assert_eq!(check(2 * STALL, late + 1), [Rule::ToldLate]);
        assert_eq!(check(2 * STALL, 2 * STALL), [Rule::ToldLate]);
    }

    #[test]
    fn overlap_is_excused_for_a_ttl_after_the_store_forgot() {
        let forgot = [forgot_at(140, 145)];
        let later = grant(256, 150, Some(5000));
        let overlapping = |held| [grant(128, 100, Some(held)), later.clone()];
        let found = check(&overlapping(145 + TTL), &forgot);
        assert_eq!(rules(&found), []);
        assert_eq!((found.excused, found.longest_excused), (1, 145 + TTL - 150));
        let found = check(&overlapping(146 + TTL), &forgot);
        assert_eq!(rules(&found), [Rule::Overlap], "it had to know by then");
    }

    #[test]
    fn overlap_is_excused_only_for_leases_that_were_forgotten() {
        let grants = [grant(128, 100, Some(200)), grant(256, 150, Some(160))];
        // Both were granted after the store forgot leases, or both before, or the store forgot leases of
        // another keeper.
        for (at, keeper) in [(90, None), (500, None), (140, Some(0))] {
            let forgot = Forgot {
                keeper,
                ..forgot_at(at, at + 1)
            };
            assert_eq!(rules(&check(&grants, &[forgot])), [Rule::Overlap], "{at}");
        }
        let forgot = Forgot {
            keeper: Some(1),
            ..forgot_at(140, 145)
        };
        assert_eq!(rules(&check(&grants, &[forgot])), []);
    }

    #[test]
    fn handed_over_lease_is_as_old_as_its_first_grant() {
        let forgot = [forgot_at(140, 145)];
        // 129 is requested after 256 was granted, and hands on the lease of 128.
        let grants = [
            grant(128, 100, Some(151)),
            grant(256, 150, Some(300)),
            grant(129, 160, Some(200)),
            grant(130, 170, None),
        ];
        let found = check(&grants, &forgot);
        assert_eq!(rules(&found), []);
        assert_eq!(found.excused, 1, "one lease");
        let own = &grants[1..];
        let rules = rules(&check(own, &forgot));
        assert_eq!(rules, [Rule::Overlap, Rule::TokenOrder]);
    }

    #[test]
    fn hang_revival_and_texts_are_violations() {
        let call = |overrun| Call {
            overrun,
            ..Call::default()
        };
        let mut revived = grant(128, 100, Some(110));
        revived.is_revived = true;
        let history = History {
            grants: vec![revived],
            calls: vec![call(HANG), call(HANG + 1)],
            unexpected: vec!["error".to_owned()],
            left: vec!["key".to_owned()],
            ..History::default()
        };
        let found = Checker::new(TTL).check(&history, &Noted::default());
        let expected = [
            Rule::Revived,
            Rule::Overrun,
            Rule::UnexpectedError,
            Rule::Leftover,
        ];
        assert_eq!(rules(&found), expected);
    }
}
