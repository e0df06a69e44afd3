//! What must go on or happen soon during a fault.

use crate::history::Grant;

/// The longest time without a grant of names whose servers are well. Less depends on how busy the machine is.
pub(crate) const STALL: u64 = 2_000_000_000;

/// How soon a guard must be told of a loss that the store knows of. A tenth of a second is the promise; the rest is for a
/// busy machine.
pub(crate) const TOLD: u64 = 500_000_000;

/// A time in which names must be granted all along, beside a fault that does not concern them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) kind: &'static str,
    /// The names; `None`: all together.
    pub(crate) names: Option<Vec<u32>>,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Watched {
    /// Returns how long this is, without the longest time without a grant.
    pub(crate) fn length_with_grants(&self, grants: &[Grant]) -> u64 {
        self.to - self.from - self.longest_gap(grants)
    }

    /// Returns the longest time without a grant.
    pub(crate) fn longest_gap(&self, grants: &[Grant]) -> u64 {
        let concerns = |grant: &&Grant| {
            let names = self.names.as_ref();
            names.is_none_or(|names| names.contains(&grant.name))
        };
        let times = grants.iter().filter(concerns).map(|grant| grant.granted);
        let mut times: Vec<_> = times
            .filter(|at| (self.from..self.to).contains(at))
            .collect();
        times.extend([self.from, self.to]);
        times.sort_unstable();
        let gaps = times.windows(2).map(|pair| match pair {
            [one, next] => next - one,
            _ => 0,
        });
        gaps.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_counts_the_grants_of_watched_names_and_the_ends_of_the_time() {
        let grant = |name, granted| Grant {
            name,
            granted,
            ..Grant::default()
        };
        let grants = [grant(1, 5), grant(2, 130), grant(1, 180), grant(1, 240)];
        let gap = |names: Option<&[u32]>| {
            let watched = Watched {
                kind: "stopped",
                names: names.map(<[u32]>::to_vec),
                from: 100,
                to: 200,
            };
            watched.longest_gap(&grants)
        };
        assert_eq!(gap(None), 50);
        assert_eq!(gap(Some(&[1])), 80);
        assert_eq!(gap(Some(&[2])), 70);
        assert_eq!(gap(Some(&[3])), 100);
    }
}
