//! The answer of a node to CLUSTER SLOTS.

use lockkeeper_remote::Endpoint;
use redis::Value;

use crate::wire::failure::parse;
use crate::wire::keys::SLOTS;

/// The slots of a cluster, as a node says.
#[derive(Clone, Default)]
pub(crate) struct Slots {
    /// The primaries and the replicas.
    pub(crate) nodes: Vec<Endpoint>,
    /// The number of the node that owns each slot.
    pub(crate) owners: Vec<Option<usize>>,
    /// How many replicas each of the nodes has, if it owns slots.
    pub(crate) replicas: Vec<usize>,
}

impl Slots {
    /// Returns the node that owns a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Endpoint> {
        let at = (*self.owners.get(usize::from(slot))?)?;
        self.nodes.get(at)
    }

    /// Reads the reply to CLUSTER SLOTS of a node: `None` if it is none.
    pub(crate) fn read(ranges: Vec<Vec<Value>>, asked: &Endpoint) -> Option<Self> {
        let mut answer = Self {
            owners: vec![None; usize::from(SLOTS)],
            ..Self::default()
        };
        for range in ranges {
            let mut items = range.into_iter();
            let start: usize = parse(items.next()?).ok()?;
            let end: usize = parse(items.next()?).ok()?;
            let mut nodes = Vec::new();
            for node in items {
                nodes.push(node_at(node, asked)?.map(|node| answer.number(node)));
            }
            let (owner, replicas) = nodes.split_first()?;
            if let Some(owner) = *owner {
                *answer.replicas.get_mut(owner)? = replicas.len();
            }
            answer.owners.get_mut(start..=end)?.fill(*owner);
        }
        Some(answer)
    }

    /// Returns the number of a node, which is new if the node is.
    pub(crate) fn number(&mut self, node: Endpoint) -> usize {
        let known = self.nodes.iter().position(|it| *it == node);
        known.unwrap_or_else(|| {
            self.nodes.push(node);
            self.replicas.push(0);
            self.nodes.len() - 1
        })
    }
}

/// Reads where a node is: `Some(None)` if the node that was asked does not know that, `None` if this is no node.
fn node_at(node: Value, asked: &Endpoint) -> Option<Option<Endpoint>> {
    let mut parts = parse::<Vec<Value>>(node).ok()?.into_iter();
    // Nothing for a host that is the same as that of the node that was asked.
    let host: Option<String> = parse(parts.next()?).ok()?;
    let port: u16 = parse(parts.next()?).ok()?;
    Some(endpoint(&host.unwrap_or_default(), port, asked))
}

/// Returns where a node is by what another node, at `said_by`, says of it. `None` if that does not know its host.
pub(crate) fn endpoint(host: &str, port: u16, said_by: &Endpoint) -> Option<Endpoint> {
    match (host, said_by) {
        ("?", _) => None,
        ("", Endpoint::Tcp { host, .. }) => Some(Endpoint::tcp(host, port)),
        _ => Some(Endpoint::tcp(host, port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: i64, end: i64, nodes: &[(Option<&str>, i64)]) -> Vec<Value> {
        let node = |(host, port): &(Option<&str>, i64)| {
            let host = host.map_or(Value::Nil, |host| Value::BulkString(host.into()));
            Value::Array(vec![
                host,
                Value::Int(*port),
                Value::BulkString("id".into()),
            ])
        };
        let nodes = nodes.iter().map(node);
        [Value::Int(start), Value::Int(end)]
            .into_iter()
            .chain(nodes)
            .collect()
    }

    #[test]
    fn answer_names_the_owner_of_each_slot() {
        let asked = Endpoint::tcp("seed", 1);
        let ranges = vec![
            range(0, 99, &[(Some("a"), 7), (Some("b"), 7)]),
            range(100, 199, &[(None, 8)]),
            range(200, 299, &[(Some("?"), 9)]),
            range(16_383, 16_383, &[(Some("a"), 7), (Some("b"), 7)]),
        ];
        let answer = Slots::read(ranges, &asked).unwrap();
        let (a, same_host) = (Endpoint::tcp("a", 7), Endpoint::tcp("seed", 8));
        for (slot, owner) in [
            (0, Some(&a)),
            (99, Some(&a)),
            (100, Some(&same_host)),
            (200, None),
            (300, None),
            (16_383, Some(&a)),
        ] {
            assert_eq!(answer.owner(slot), owner, "{slot}");
        }
        assert_eq!(answer.nodes.len(), 3);
        assert_eq!(answer.replicas, [1, 0, 0]);
        for (start, end) in [(0, 16_384), (2, 0)] {
            let range = range(start, end, &[(Some("a"), 7)]);
            assert!(Slots::read(vec![range], &asked).is_none());
        }
    }
}
