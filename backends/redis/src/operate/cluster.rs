//! Finds what prevents locks in a cluster from surviving the failure of a primary.

use lockkeeper_core::Finding;
use lockkeeper_remote::Endpoint;
use redis::InfoDict;

/// Examines whether all slots are owned, and whether each primary, here with the number of its replicas, can be replaced.
pub(super) fn slots(uncovered: usize, primaries: &[(Endpoint, usize)]) -> Finding {
    let count = primaries.len();
    if uncovered > 0 {
        return Finding::unusable(
            "cluster",
            format!("{count} primaries, and {uncovered} of 16384 slots are owned by none"),
            "no lock can be granted in these slots, and by default (cluster-require-full-coverage) in any",
            "see `redis-cli --cluster check`, and assign the slots by `redis-cli --cluster fix`",
        );
    }
    match primaries.iter().find(|(_, replicas)| *replicas == 0) {
        None => Finding::fine(
            "cluster",
            format!("{count} primaries own all slots, each with a replica"),
        ),
        Some((endpoint, _)) => Finding::warning(
            "cluster",
            format!("{count} primaries own all slots, and {endpoint} has no replica"),
            "when it fails, its locks cannot be granted, renewed or released until it is back",
            "add a replica: `redis-cli --cluster add-node --cluster-slave`",
        ),
    }
}

/// Examines whether a node sees its cluster as a whole, by its reply to CLUSTER INFO.
pub(super) fn state(info: &InfoDict) -> Finding {
    let state: String = info.get("cluster_state").unwrap_or_default();
    if state == "ok" {
        return Finding::fine("cluster-state", "cluster_state is ok");
    }
    Finding::unusable(
        "cluster-state",
        format!("cluster_state is {state:?}"),
        "the node takes no requests",
        "see `redis-cli --cluster check`; a fail-over may be under way",
    )
}

/// Returns the findings of all nodes. A finding that all nodes share occurs once; others have the node's address.
pub(super) fn merged(of_nodes: &[(Endpoint, Vec<Finding>)]) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    for (endpoint, findings) in of_nodes {
        for finding in findings {
            if of_nodes
                .iter()
                .all(|(_, of_other)| of_other.contains(finding))
            {
                if !merged.contains(finding) {
                    merged.push(finding.clone());
                }
                continue;
            }
            let what = format!("{endpoint}: {}", finding.what);
            merged.push(Finding {
                what,
                ..finding.clone()
            });
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_core::Severity::{Fine, Unusable, Warning};

    #[test]
    fn cluster_that_a_failure_would_break_is_found() {
        let node = |replicas| (Endpoint::tcp("a", 1), replicas);
        for (uncovered, primaries, severity) in [
            (0, [node(1), node(2)], Fine),
            (0, [node(1), node(0)], Warning),
            (1, [node(1), node(1)], Unusable),
        ] {
            assert_eq!(slots(uncovered, &primaries).severity, severity);
        }
        for (info, severity) in [("cluster_state:ok", Fine), ("cluster_state:fail", Unusable)] {
            assert_eq!(state(&InfoDict::new(info)).severity, severity);
        }
    }

    #[test]
    fn findings_that_differ_name_their_node() {
        let (one, other) = (Endpoint::tcp("a", 1), Endpoint::tcp("b", 1));
        let [same, old, new] = ["same", "old", "new"].map(|what| Finding::fine("version", what));
        let found = merged(&[(one, vec![same.clone(), old]), (other, vec![same, new])]);
        let found: Vec<_> = found.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(found, ["same", "a:1: old", "b:1: new"]);
    }
}
