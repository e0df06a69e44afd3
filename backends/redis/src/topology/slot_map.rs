//! The map of a cluster: which node owns which slot.
//!
//! Any node can be asked for it, and may lag behind. That does no harm: a node that does not own a slot refuses requests
//! for it, and names the owner if it knows that.
//!
//! `MOVED` corrects the map without a new question: the node that is asked next may lag behind and undo it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{CancelToken, Clock, Error, ErrorKind, HostInstant};
use lockkeeper_remote::{Counts, Endpoint, Failure, Pool, connect_until_cancelled, senseless};
use parking_lot::Mutex;
use redis::{Value, cmd};

use crate::connection::access::Access;
use crate::options::RedisOptions;
use crate::topology::slots::Slots;
use crate::wire::failure::{accepted, parse};
use crate::wire::keys::SLOTS;

/// The last known map, and where to ask for it.
pub(crate) struct SlotMap {
    options: RedisOptions,
    clock: Arc<dyn Clock>,
    /// What is asked for the map is not asked of the store.
    counts: Arc<Counts>,
    known: Mutex<Known>,
    /// The one slot is taken by the thread that asks; the others wait for its answer.
    asks: Pool<()>,
}

#[derive(Default)]
struct Known {
    answer: Slots,
    /// The nodes that take slots over. Their stores are kept.
    moves: HashMap<u16, Endpoint>,
    /// How often there was a reason to doubt the map, and how often when it was asked for last.
    doubts: u64,
    answered: Option<u64>,
    /// The nodes that have failed, and have served no new connection since; the last one at the end. They are asked last, in
    /// this order. Each with the number of the doubt.
    suspects: Vec<(Endpoint, u64)>,
    /// The number of the node that is asked first. A node that lags behind is not the first one twice.
    first: usize,
}

impl Known {
    fn rank(&self, node: &Endpoint) -> usize {
        let at = self.suspects.iter().position(|(it, _)| it == node);
        at.map_or(0, |at| at + 1)
    }
}

impl SlotMap {
    pub(crate) fn new(options: &RedisOptions, clock: Arc<dyn Clock>) -> Self {
        Self {
            options: options.clone(),
            clock,
            counts: Arc::default(),
            known: Mutex::default(),
            asks: Pool::new(1),
        }
    }

    /// Returns the node that owns a slot. If the owner by the last known map has failed, a map that is in doubt is
    /// asked for first, until `until` or a cancel. Where no node answers, the last known one serves. So nodes that hang delay no
    /// request to the others: an owner that has changed meanwhile says so itself.
    pub(crate) fn owner(
        self: &Arc<Self>,
        slot: u16,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Endpoint, Error> {
        if let Some(owner) = self.known_owner(slot) {
            return Ok(owner);
        }
        let asked = self.ask_if_in_doubt(until, cancel);
        let mut known = self.known.lock();
        if let Some(owner) = known.answer.owner(slot) {
            return Ok(owner.clone());
        }
        known.doubts += 1;
        asked?;
        let text = format!(
            "no node of the cluster owns slot {slot}, to which this name belongs; assign it by `redis-cli --cluster fix`"
        );
        Err(Error::new(ErrorKind::Unavailable, text))
    }

    /// Returns the node that owns a slot by the last known map, without asking anyone; `None` if it has failed, or none is
    /// known.
    pub(crate) fn known_owner(&self, slot: u16) -> Option<Endpoint> {
        let known = self.known.lock();
        let owner = known.answer.owner(slot);
        owner.filter(|owner| known.rank(owner) == 0).cloned()
    }

    /// Returns the number of the node that owns a slot by the last known map, which a new answer may change; 0 if none
    /// does.
    pub(crate) fn number_of_owner(&self, slot: u16) -> usize {
        let known = self.known.lock();
        let owner = known.answer.owners.get(usize::from(slot));
        owner.copied().flatten().unwrap_or_default()
    }

    /// Returns the nodes that own slots by a new answer, each with the number of its replicas.
    pub(crate) fn primaries(
        self: &Arc<Self>,
        until: HostInstant,
    ) -> Result<Vec<(Endpoint, usize)>, Error> {
        self.doubt(None);
        self.ask_if_in_doubt(until, None)?;
        let known = self.known.lock();
        let of_slots = |at| known.answer.owners.contains(&Some(at));
        let nodes = known.answer.nodes.iter().zip(&known.answer.replicas);
        let primaries = nodes.enumerate().filter(|(at, _)| of_slots(*at));
        Ok(primaries
            .map(|(_, (node, replicas))| (node.clone(), *replicas))
            .collect())
    }

    /// Returns how many slots no node owns.
    pub(crate) fn uncovered(&self) -> usize {
        let known = self.known.lock();
        let covered = known.answer.owners.iter().flatten().count();
        usize::from(SLOTS).saturating_sub(covered)
    }

    /// Returns whether a node owns slots, or takes one over.
    pub(crate) fn is_used(&self, node: &Endpoint) -> bool {
        let known = self.known.lock();
        let mut owners = known.answer.owners.iter().flatten();
        let at = known.answer.nodes.iter().position(|it| it == node);
        at.is_some_and(|at| owners.any(|owner| *owner == at))
            || known.moves.values().any(|it| it == node)
    }

    /// Returns 0 for a node that has not failed, and the more the later a node has failed.
    pub(crate) fn rank(&self, node: &Endpoint) -> usize {
        self.known.lock().rank(node)
    }

    /// Marks the map as doubtful: it is read anew before its next use. `suspect` is a node that failed.
    pub(crate) fn doubt(&self, suspect: Option<&Endpoint>) {
        let mut known = self.known.lock();
        known.doubts += 1;
        if let Some(suspect) = suspect {
            known.suspects.retain(|(it, _)| it != suspect);
            let at = known.doubts;
            known.suspects.push((suspect.clone(), at));
        }
    }

    /// Returns how often there was a reason to doubt the map.
    pub(crate) fn doubts(&self) -> u64 {
        self.known.lock().doubts
    }

    /// Notes that a node serves requests, so that it counts as failed no more, unless it has failed again since there were
    /// so many doubts. Returns whether it counts as failed.
    pub(crate) fn trust(&self, node: &Endpoint, doubts: u64) -> bool {
        let mut known = self.known.lock();
        known.suspects.retain(|(it, at)| it != node || *at > doubts);
        known.rank(node) > 0
    }

    /// Notes the owner of a slot, as the former one says.
    pub(crate) fn learn(&self, slot: u16, owner: Endpoint) {
        let mut known = self.known.lock();
        known.moves.remove(&slot);
        let at = known.answer.number(owner);
        if let Some(owner) = known.answer.owners.get_mut(usize::from(slot)) {
            *owner = Some(at);
        }
    }

    /// Notes the node that takes a slot over.
    pub(crate) fn note_move(&self, slot: u16, next: Endpoint) {
        self.known.lock().moves.insert(slot, next);
    }

    fn ask_if_in_doubt(
        self: &Arc<Self>,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<(), Error> {
        let is_in_doubt = |known: &Known| known.answered != Some(known.doubts);
        if !is_in_doubt(&self.known.lock()) {
            return Ok(());
        }
        let left = until.saturating_since(self.clock.now());
        let left = left.min(self.options.remote.connect_timeout);
        let Some(asks) = self.asks.checkout(left, cancel) else {
            let text = "no node of the cluster has replied yet with its map of the slots; see whether the nodes run";
            return Err(Error::new(ErrorKind::Unavailable, text));
        };
        let (nodes, doubts) = {
            let mut known = self.known.lock();
            if !is_in_doubt(&known) {
                return Ok(());
            }
            known.first = known.first.wrapping_add(1);
            (self.candidates(&known), known.doubts)
        };
        let map = Arc::clone(self);
        let ask = move || {
            let answer = map.ask_any(&nodes, left);
            answer.map(|answer| (answer, asks))
        };
        let (answer, _asks) = connect_until_cancelled(left, cancel, ask)?;
        let mut known = self.known.lock();
        known.answer = answer;
        known.moves.clear();
        known.answered = Some(doubts);
        Ok(())
    }

    /// Returns the nodes to ask: those that are known, and those that the options list.
    fn candidates(&self, known: &Known) -> Vec<Endpoint> {
        let mut nodes = known.answer.nodes.clone();
        let listed = self.options.nodes.iter().filter(|it| !nodes.contains(it));
        let listed: Vec<_> = listed.cloned().collect();
        nodes.extend(listed);
        let first = known.first % nodes.len().max(1);
        nodes.rotate_left(first);
        // The order of the others stays.
        nodes.sort_by_key(|node| known.rank(node));
        nodes
    }

    /// Asks the nodes in this order until one answers, each for an equal share of the time.
    fn ask_any(&self, nodes: &[Endpoint], limit: Duration) -> Result<Slots, Error> {
        let began = Instant::now();
        let mut failed: Option<Error> = None;
        for (at, node) in nodes.iter().enumerate() {
            let untried = u32::try_from(nodes.len() - at).unwrap_or(u32::MAX);
            let share = limit.saturating_sub(began.elapsed()) / untried;
            match self.ask(node, share) {
                Ok(answer) => return Ok(answer),
                Err(error) if failed.as_ref().is_none_or(Error::is_unreachable) => {
                    failed = Some(error);
                }
                Err(_) => {}
            }
        }
        Err(failed.unwrap_or_else(senseless))
    }

    fn ask(&self, node: &Endpoint, limit: Duration) -> Result<Slots, Error> {
        let began = Instant::now();
        let access = Access::to_server(&self.options.at(node.clone()), &self.counts)?;
        let mut connection = access.connect(limit)?;
        let question = cmd("CLUSTER").arg("SLOTS").get_packed_command();
        let left = limit.saturating_sub(began.elapsed());
        let answer = connection.ask(&question, left);
        let answer = answer.map_err(|failure| connection.nothing_granted(failure))?;
        if let Value::ServerError(error) = &answer {
            match (error.code(), error.details().unwrap_or_default()) {
                ("NOPERM", _) => {
                    let text = "the user may not ask which node owns which slot; in a cluster it needs +cluster|slots +asking, too";
                    return Err(Error::new(ErrorKind::PermissionDenied, text));
                }
                (_, details) if details.contains("cluster support disabled") => {
                    let text =
                        "the server is not in cluster mode; a single server is reached by redis:";
                    return Err(Error::new(ErrorKind::Incompatible, text));
                }
                _ => {}
            }
        }
        let ranges = accepted(answer).and_then(parse::<Vec<Vec<Value>>>);
        let ranges = ranges.map_err(Failure::into_error)?;
        if ranges.is_empty() {
            let text = format!("the node at {node} belongs to no cluster that has slots");
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        Slots::read(ranges, node).ok_or_else(senseless)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use lockkeeper_core::SystemClock;

    use super::*;

    #[test]
    fn nodes_that_hang_delay_no_request_to_the_others() {
        // The system accepts connections, and nothing replies.
        let hung = TcpListener::bind("127.0.0.1:0").unwrap();
        hung.set_nonblocking(true).unwrap();
        let port = hung.local_addr().unwrap().port();
        let [hung_node, other] = [port, 1].map(|port| Endpoint::tcp("127.0.0.1", port));
        let map = Arc::new(SlotMap::new(
            &RedisOptions::cluster("127.0.0.1", port).connect_timeout(Duration::from_millis(100)),
            Arc::new(SystemClock),
        ));
        {
            let mut known = map.known.lock();
            known.answer.owners = vec![None; usize::from(SLOTS)];
            known.answered = Some(0);
        }
        map.learn(1, hung_node.clone());
        map.learn(2, other.clone());
        map.doubt(Some(&hung_node));
        let until = SystemClock.now() + Duration::from_secs(60);
        assert_eq!(map.owner(2, until, None).unwrap(), other);
        assert!(hung.accept().is_err(), "it is not asked for that");
        assert_eq!(map.owner(1, until, None).unwrap(), hung_node);
        assert!(hung.accept().is_ok());
    }

    #[test]
    fn reply_that_the_cluster_is_down_earns_no_trust() {
        let options = RedisOptions::cluster("a", 1);
        let map = SlotMap::new(&options, Arc::new(SystemClock));
        let node = Endpoint::tcp("a", 1);
        let before = map.doubts();
        map.doubt(Some(&node));
        assert!(map.trust(&node, before));
        let before = map.doubts();
        map.doubt(Some(&Endpoint::tcp("b", 1)));
        assert!(!map.trust(&node, before));
    }

    #[test]
    fn nodes_that_failed_are_asked_last() {
        let options = RedisOptions::cluster("a", 1)
            .and_node("b", 1)
            .and_node("c", 1);
        let map = SlotMap::new(&options, Arc::new(SystemClock));
        let [a, b, c] = ["a", "b", "c"].map(|host| Endpoint::tcp(host, 1));
        for failed in [&b, &a, &b] {
            map.doubt(Some(failed));
        }
        let mut known = map.known.lock();
        for first in 0..3 {
            known.first = first;
            assert_eq!(map.candidates(&known), [c.clone(), a.clone(), b.clone()]);
        }
    }
}
