//! Writes of entries. Each is a transaction of its own, with its conditions in it, and all are sent together.
//!
//! ZooKeeper counts how often a value was changed, and begins at 0 again in a node that was made anew. So an entry has a
//! random number from its creation on, at the front of its value and as the name of its only child. A write requires the
//! child and the count.

use lockkeeper_core::ErrorKind;
use lockkeeper_register::{Call, Version, Write};
use lockkeeper_remote::Failure;

use super::ZooKeeperStore;
use crate::wire::{Code, Reply, Request};

/// The number of digits of an entry's number.
pub(super) const NONCE: usize = 10;
/// The bits of a version that count the changes.
const COUNTED: u32 = 24;
/// The count at which an entry is made anew.
const LAST: i32 = (1 << COUNTED) - 1;

/// Makes the version of an entry of its number and of how often its value was changed.
pub(super) fn pack(nonce: u64, changes: i32) -> Version {
    nonce << COUNTED | u64::from(changes.cast_unsigned())
}

/// Returns the digits of the number, and the count.
fn unpack(version: Version) -> (String, i32) {
    let changes = i32::try_from(version & u64::from(LAST.cast_unsigned()));
    (digits(version >> COUNTED), changes.unwrap_or(LAST))
}

fn digits(nonce: u64) -> String {
    format!("{nonce:0NONCE$x}")
}

impl ZooKeeperStore {
    pub(super) fn write_all(
        &self,
        writes: &[Write<'_>],
        call: Call<'_>,
    ) -> Result<Vec<Option<Version>>, Failure> {
        let made: Vec<_> = writes.iter().map(|write| self.transaction(write)).collect();
        let requests: Vec<_> = made.iter().map(|(request, _)| request.clone()).collect();
        let replies = self.link.call(&requests, call)?;
        let answers = replies.iter().map(Reply::transaction);
        let answers = answers.collect::<Result<Vec<_>, _>>();
        let versions = made.into_iter().map(|(_, version)| version);
        outcome(&answers.map_err(Failure::Unanswered)?, versions)
    }

    /// Returns the transaction of a write, and the version that it makes.
    fn transaction(&self, write: &Write<'_>) -> (Request, Version) {
        let path = self.paths.entry(write.key);
        let mut parts = Vec::new();
        parts.extend(
            write
                .session
                .map(|session| Request::check(&self.paths.session(session), -1)),
        );
        if let Some((key, version)) = write.also {
            let (path, (nonce, changes)) = (self.paths.entry(key), unpack(version));
            parts.push(Request::check(&format!("{path}/{nonce}"), -1));
            parts.push(Request::check(&path, changes));
        }
        let mut version = 0;
        if let Some(seen) = write.seen {
            let (nonce, changes) = unpack(seen);
            let child = format!("{path}/{nonce}");
            if let Some(value) = write.value
                && changes < LAST
            {
                parts.push(Request::check(&child, -1));
                parts.push(Request::set(&path, &format!("{nonce}{value}"), changes));
                return (Request::multi(&parts), seen + 1);
            }
            parts.push(Request::delete(&child, -1));
            parts.push(Request::delete(&path, changes));
        }
        if let Some(value) = write.value {
            let nonce = fastrand::u64(..1 << (u64::BITS - COUNTED));
            let (acl, digits) = (self.link.connector.acl(), digits(nonce));
            parts.push(Request::create(
                &path,
                &format!("{digits}{value}"),
                acl,
                false,
            ));
            parts.push(Request::create(&format!("{path}/{digits}"), "", acl, false));
            version = pack(nonce, 0);
        }
        (Request::multi(&parts), version)
    }
}

/// Returns what became of the transactions that would have made these versions. An error concerns all of them.
fn outcome(
    answers: &[Result<(), Code>],
    versions: impl Iterator<Item = Version>,
) -> Result<Vec<Option<Version>>, Failure> {
    let written = answers
        .iter()
        .zip(versions)
        .map(|(answer, version)| match answer {
            Ok(()) => Ok(Some(version)),
            Err(Code::NO_NODE | Code::BAD_VERSION | Code::NODE_EXISTS) => Ok(None),
            Err(code) => Err(code.error()),
        });
    written.collect::<Result<_, _>>().map_err(|error| {
        // Of an error that may have changed something, the caller looks for what is there.
        match answers.iter().any(Result::is_ok) {
            true => Failure::Unanswered(error.with_kind(ErrorKind::Unknown)),
            false => Failure::Refused(error),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_write_beside_a_written_one_is_unknown() {
        let [refused, lost] = [Code(-102), Code::BAD_VERSION];
        let kind = |answers: &[Result<(), Code>]| {
            let outcome = outcome(answers, [1, 2].into_iter());
            outcome.map_err(|failure| failure.error().kind())
        };
        assert_eq!(kind(&[Ok(()), Err(lost)]), Ok(vec![Some(1), None]));
        assert_eq!(kind(&[Ok(()), Err(refused)]), Err(ErrorKind::Unknown));
        assert_eq!(
            kind(&[Err(lost), Err(refused)]),
            Err(ErrorKind::PermissionDenied)
        );
    }

    #[test]
    fn version_has_both_numbers() {
        for (nonce, changes) in [(0, 0), (7, 1), ((1 << 40) - 1, LAST), (1, LAST)] {
            assert_eq!(unpack(pack(nonce, changes)), (digits(nonce), changes));
            assert_eq!(digits(nonce).len(), NONCE);
        }
    }
}
