//! Writes of entries. Each is a transaction of its own, with its conditions in it, and all are sent together.

use std::sync::atomic::Ordering;

use lockkeeper_core::Error;
use lockkeeper_register::{Call, Version, Write};
use lockkeeper_remote::Failure;

use super::ZooKeeperStore;
use crate::wire::{Code, Request};

/// The version of a value with which a node is made anew: ZooKeeper would count on to -1, which is any version.
const LAST: i32 = i32::MAX;

/// Makes the version of an entry.
pub(super) fn pack(removals: u32, version: i32) -> Version {
    u64::from(removals) << 32 | u64::from(version.cast_unsigned())
}

/// Returns the number of removals, and the version of the value.
#[expect(clippy::cast_possible_truncation, reason = "the halves of the number")]
pub(super) fn unpack(version: Version) -> (u32, i32) {
    ((version >> 32) as u32, (version as u32).cast_signed())
}

impl ZooKeeperStore {
    /// Writes entries. Those to remove are one transaction, since it counts the removals, and goes last.
    pub(super) fn write_all(
        &self,
        writes: &[Write<'_>],
        call: Call<'_>,
    ) -> Result<Vec<Option<Version>>, Failure> {
        let mut written = vec![None; writes.len()];
        let mut requests = Vec::new();
        // The entries of each transaction, with their new versions.
        let mut results: Vec<Vec<(usize, Version)>> = Vec::new();
        let (mut removing, mut removed) = (Vec::new(), Vec::new());
        let mut counted = None;
        for (place, write) in writes.iter().enumerate() {
            match (write.seen.map(unpack), write.value) {
                (Some((removals, version)), None) => {
                    if *counted.get_or_insert(removals) == removals {
                        removing.extend(self.conditions(write));
                        removing.push(Request::delete(&self.paths.entry(write.key), version));
                        removed.push((place, pack(removals.wrapping_add(1), -1)));
                    }
                }
                (seen, Some(value)) => {
                    let (parts, version) = self.parts(write, seen, value);
                    requests.push(Request::multi(&parts));
                    results.push(vec![(place, version)]);
                }
                (None, None) => {}
            }
        }
        if let Some(removals) = counted {
            removing.push(self.count_removal(removals));
            requests.push(Request::multi(&removing));
            results.push(removed);
        }
        let replies = self.link.call(&requests, call)?;
        for (reply, result) in replies.iter().zip(results) {
            let refused = |error: Error| Failure::Unanswered(error);
            match reply.transaction().map_err(refused)? {
                Ok(()) => {
                    for (place, version) in result {
                        if let Some(it) = written.get_mut(place) {
                            *it = Some(version);
                        }
                    }
                }
                Err(Code::NO_NODE | Code::BAD_VERSION | Code::NODE_EXISTS) => {}
                Err(code) => return Err(Failure::Refused(code.error())),
            }
        }
        Ok(written)
    }

    /// Returns the parts of the transaction that sets an entry, and the version that it makes.
    fn parts(
        &self,
        write: &Write<'_>,
        seen: Option<(u32, i32)>,
        value: &str,
    ) -> (Vec<Request>, Version) {
        let path = self.paths.entry(write.key);
        let create = || Request::create(&path, value, self.link.connector.acl(), false);
        let mut parts = self.conditions(write);
        match seen {
            Some((removals, LAST)) => {
                let anew = [Request::delete(&path, LAST), create()];
                parts.extend(anew);
                parts.push(self.count_removal(removals));
                (parts, pack(removals.wrapping_add(1), 0))
            }
            Some((removals, version)) => {
                parts.push(self.check_removals(removals));
                parts.push(Request::set(&path, value, version));
                (parts, pack(removals, version.wrapping_add(1)))
            }
            None => {
                let also = write.also.map(|(_, version)| unpack(version).0);
                let removals = also.unwrap_or_else(|| self.removals.load(Ordering::Acquire));
                parts.push(self.check_removals(removals));
                parts.push(create());
                (parts, pack(removals, 0))
            }
        }
    }

    /// Returns the conditions of a write beside that of its own entry.
    fn conditions(&self, write: &Write<'_>) -> Vec<Request> {
        let session = write
            .session
            .map(|session| Request::check(&self.paths.session(session), -1));
        let also = write.also.map(|(key, version)| {
            let (_, version) = unpack(version);
            Request::check(&self.paths.entry(key), version)
        });
        session.into_iter().chain(also).collect()
    }

    fn check_removals(&self, removals: u32) -> Request {
        Request::check(&self.paths.removals, removals.cast_signed())
    }

    fn count_removal(&self, removals: u32) -> Request {
        Request::set(&self.paths.removals, "", removals.cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_has_both_numbers() {
        for (removals, version) in [(0, 0), (7, 1), (u32::MAX, i32::MAX), (1, i32::MIN)] {
            assert_eq!(unpack(pack(removals, version)), (removals, version));
        }
    }
}
