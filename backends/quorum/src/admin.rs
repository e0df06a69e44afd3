//! The interface for operators: the combined answers of a majority of the members.

use std::collections::BTreeMap;
use std::fmt;

use lockkeeper_core::{Admin, Error, Finding, HeldName, Holder, HostInstant, LockName};

use crate::ballot::majority;
use crate::member::ask_all;
use crate::provider::{Quorum, few_members};

/// The largest difference between the epochs of one grant, since a member may count in microseconds.
const SAME_GRANT: u64 = 17;
/// A question of an operator to one member.
type Question<T> = fn(&dyn Admin, &Asked) -> Result<T, Error>;

/// The arguments of a question.
#[derive(Clone)]
struct Asked {
    name: Option<LockName>,
    deadline: HostInstant,
    /// The hold to end.
    held: Option<HeldName>,
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum").finish_non_exhaustive()
    }
}

impl Quorum {
    /// Asks all members at the same time. Returns the answer or the error of each member.
    fn ask<T: Send + 'static>(
        &self,
        asked: &Asked,
        question: Question<T>,
    ) -> Vec<Result<T, Error>> {
        let (deadline, asked) = (asked.deadline, asked.clone());
        ask_all(
            &self.members,
            &*self.clock,
            deadline,
            move |member| match member.open()?.admin() {
                Some(admin) => question(admin, &asked),
                None => Err(Error::unreachable(
                    "the member has no answers for operators",
                )),
            },
        )
    }

    /// Returns the answers, if a majority of the members gave one.
    fn ask_majority<T: Send + 'static>(
        &self,
        asked: &Asked,
        question: Question<T>,
    ) -> Result<Vec<T>, Error> {
        let mut answers = Vec::new();
        let mut errors = Vec::new();
        for answer in self.ask(asked, question) {
            errors.push(answer.map(|answer| answers.push(answer)).err());
        }
        match answers.len() >= majority(self.members.len()) {
            true => Ok(answers),
            false => Err(few_members(self, &errors)),
        }
    }

    /// Returns how many of the members that answered must have a grant, if a majority may hold it.
    fn needed(&self, answered: usize) -> usize {
        let silent = self.members.len() - answered;
        majority(self.members.len()).saturating_sub(silent).max(1)
    }

    /// Returns the grants that a majority may hold. Members that did not answer may have any of them.
    ///
    /// All leases of one process count as one grant, since a regained lease has another epoch. So there may be a
    /// grant without a guard: leases that a process left at a majority of the members. A release without a reply or
    /// a failed vote leaves such leases. They are shown until their ttl is over.
    fn majority_of<K: Ord>(&self, answers: Vec<Vec<(K, HeldName)>>) -> Vec<(K, HeldName)> {
        let needed = self.needed(answers.len());
        let mut names: BTreeMap<(K, String), Vec<(usize, HeldName)>> = BTreeMap::new();
        for (member, answer) in answers.into_iter().enumerate() {
            for (key, held) in answer {
                let of_name = names.entry((key, held.name.clone())).or_default();
                of_name.push((member, held));
            }
        }
        let held = names.into_iter().filter_map(|((key, _), mut held)| {
            held.sort_by_key(|(_, it)| it.epoch);
            let groups = held.chunk_by(|(_, a), (_, b)| {
                let (at, next) = (a.epoch.unwrap_or_default(), b.epoch.unwrap_or_default());
                next - at < SAME_GRANT || is_same_process(&a.holder, &b.holder)
            });
            let grant = groups.max_by_key(|group| group.len())?;
            // The largest epoch is that of a member that counts as finely as the proposals.
            let (_, finest) = grant.last().filter(|_| grant.len() >= needed)?;
            let epoch = finest.epoch.unwrap_or_default();
            // The first member was the first to grant the name, so it knows its age best.
            let (_, first) = grant.iter().min_by_key(|(member, _)| member)?;
            let remaining = grant.iter().filter_map(|(_, it)| it.remaining).min();
            // A caller waits at one member.
            let waiting = grant.iter().filter_map(|(_, it)| it.waiting);
            let waiting = waiting.reduce(|all, it| all + it);
            Some((
                key,
                HeldName {
                    mark: epoch.to_string(),
                    epoch: finest.epoch,
                    remaining,
                    waiting,
                    ..first.clone()
                },
            ))
        });
        held.collect()
    }
}

/// Returns whether two leases of a name are of one process. If a member granted a lease again, the epochs differ.
fn is_same_process(a: &Holder, b: &Holder) -> bool {
    a.pid.is_some() && a.host.is_some() && (a.pid, &a.host) == (b.pid, &b.host)
}

impl Admin for Quorum {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let asked = Asked {
            name: name.cloned(),
            deadline,
            held: None,
        };
        let answers = self.ask_majority(&asked, |admin, asked| {
            let held = admin.held(asked.name.as_ref(), asked.deadline)?;
            Ok(held.into_iter().map(|held| ((), held)).collect::<Vec<_>>())
        })?;
        let held = self.majority_of(answers).into_iter();
        Ok(held.map(|(_, held)| held).collect())
    }

    fn held_in_all_namespaces(
        &self,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let asked = Asked {
            name: None,
            deadline,
            held: None,
        };
        let ask: Question<_> = |admin, asked| admin.held_in_all_namespaces(asked.deadline);
        let answers = self.ask_majority(&asked, ask)?;
        Ok(self.majority_of(answers))
    }

    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let asked = Asked {
            name: Some(LockName::new(held.name.as_str())?),
            deadline,
            held: Some(held.clone()),
        };
        let ended = self.ask_majority(&asked, |admin, asked| {
            let wanted = asked
                .held
                .as_ref()
                .and_then(|held| held.mark.parse::<u64>().ok());
            let is_of_holder = |held: &HeldName| {
                let wanted = asked.held.as_ref().map(|held| &held.holder);
                wanted.is_some_and(|wanted| is_same_process(wanted, &held.holder))
            };
            // The mark is the largest epoch of the grant. A later grant of the process stays.
            let is_same = |held: &HeldName| match (held.epoch, wanted) {
                (Some(epoch), Some(wanted)) => {
                    epoch.abs_diff(wanted) < SAME_GRANT || epoch < wanted && is_of_holder(held)
                }
                _ => false,
            };
            let found = admin.held(asked.name.as_ref(), asked.deadline)?;
            let mut ended = false;
            for held in found.iter().filter(|held| is_same(held)) {
                ended |= admin.force_release(held, asked.deadline)?;
            }
            Ok(ended)
        })?;
        // A single member may have kept the lease of a hold that has ended.
        let needed = self.needed(ended.len());
        Ok(ended.into_iter().filter(|ended| *ended).count() >= needed)
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        let asked = Asked {
            name: None,
            deadline,
            held: None,
        };
        let answers = self.ask(&asked, |admin, asked| admin.examine(asked.deadline));
        let mut findings = Vec::new();
        let mut answered = 0;
        for (member, answer) in self.members.iter().zip(answers) {
            let location = member.source.location();
            match answer {
                Ok(found) => {
                    answered += 1;
                    findings.extend(found.into_iter().map(|finding| Finding {
                        what: format!("{location}: {}", finding.what),
                        ..finding
                    }));
                }
                Err(error) => {
                    findings.push(Finding::warning(
                        "member",
                        format!("{location}: {}", error.message()),
                        "its vote is missing, and the locks end when a majority of the members fails",
                        "see to this member",
                    ));
                }
            }
        }
        let (members, needed) = (self.members.len(), majority(self.members.len()));
        let what = format!("{answered} of {members} members answer");
        let summary = match answered >= needed {
            true => Finding::fine("quorum", what),
            false => Finding::unusable("quorum", what, "nothing is granted", "see to the others"),
        };
        findings.insert(0, summary);
        Ok(findings)
    }
}
