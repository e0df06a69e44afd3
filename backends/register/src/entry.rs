//! What the entry of a name contains, and how it is written down: as JSON with short names.

use lockkeeper_core::{Error, ErrorKind, Mode};
use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::store::{SessionId, Version};

/// The version of the format. A program refuses the entries of a later one.
const FORMAT: u32 = 1;
/// The most leases of a name, so the largest limit of a semaphore, and the most readers.
pub(crate) const MAX_LEASES: usize = 100;
/// The most requests that wait for a name in its entry. Further ones wait until there is room.
pub(crate) const MAX_WAITERS: usize = 150;

/// The contents of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Contents {
    #[serde(rename = "v")]
    format: u32,
    #[serde(rename = "k")]
    pub(crate) key: String,
    /// The largest epoch that was granted. No later grant has a smaller one.
    #[serde(rename = "e")]
    pub(crate) last: u64,
    #[serde(rename = "l", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) leases: Vec<Lease>,
    /// The requests that wait, in the order of their arrival.
    #[serde(rename = "q", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) queue: Vec<Waiter>,
}

/// A lease. The first two fields are [`RegisterLease::mark`](crate::RegisterLease::mark).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Lease {
    #[serde(rename = "o")]
    pub(crate) owner: String,
    #[serde(rename = "e")]
    pub(crate) epoch: u64,
    #[serde(rename = "m", with = "mode_text")]
    pub(crate) mode: Mode,
    #[serde(rename = "p", default, skip_serializing_if = "is_zero")]
    pub(crate) slot: u32,
    #[serde(rename = "s")]
    pub(crate) session: SessionId,
    /// The holder, for people.
    #[serde(rename = "h")]
    pub(crate) host: String,
    #[serde(rename = "i")]
    pub(crate) pid: u32,
    #[serde(rename = "t", default, skip_serializing_if = "String::is_empty")]
    pub(crate) label: String,
    /// Milliseconds since 1970.
    #[serde(rename = "a")]
    pub(crate) since: u64,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Waiter {
    #[serde(rename = "o")]
    pub(crate) owner: String,
    #[serde(rename = "m", with = "mode_text")]
    pub(crate) mode: Mode,
    #[serde(rename = "s")]
    pub(crate) session: SessionId,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(slot: &u32) -> bool {
    *slot == 0
}

impl Contents {
    /// Makes the contents of a free name.
    pub(crate) fn free(key: &Key, last: u64) -> Self {
        Self {
            format: FORMAT,
            key: key.as_str().to_owned(),
            last,
            leases: Vec::new(),
            queue: Vec::new(),
        }
    }

    /// Reads the value of an entry.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`] for an entry of a later version, or of another program.
    pub(crate) fn read(value: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Format {
            v: u32,
        }
        match serde_json::from_str::<Self>(value) {
            Ok(contents) if contents.format == FORMAT => Ok(contents),
            read => {
                let later = serde_json::from_str(value).is_ok_and(|it: Format| it.v > FORMAT);
                let text = match later {
                    true => {
                        "an entry of the lock was written by a newer lockkeeper; upgrade this program"
                    }
                    false => {
                        "an entry of the lock was not written by lockkeeper; let no other program write to this part of the store, and delete the entry"
                    }
                };
                let error = Error::new(ErrorKind::Incompatible, text);
                Err(match read {
                    Err(cause) => error.with_source(cause),
                    Ok(_) => error,
                })
            }
        }
    }

    /// Returns the value of the entry.
    pub(crate) fn text(&self) -> String {
        // Texts and numbers can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(crate) fn is_free(&self) -> bool {
        self.leases.is_empty() && self.queue.is_empty()
    }

    pub(crate) fn lease(&self, owner: &str) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.owner == owner)
    }

    pub(crate) fn waits(&self, owner: &str) -> bool {
        self.queue.iter().any(|waiter| waiter.owner == owner)
    }

    pub(crate) fn has(&self, owner: &str, epoch: u64) -> bool {
        self.lease(owner).is_some_and(|lease| lease.epoch == epoch)
    }

    /// Returns `version` if the contents are those of [`alone`](Self::alone), apart from the holder.
    pub(crate) fn alone_at(&self, owner: &str, version: Version) -> Option<Version> {
        match &*self.leases {
            [only] if only.owner == owner => {
                let is_alone = self.queue.is_empty() && only.epoch == self.last;
                is_alone.then_some(version)
            }
            _ => None,
        }
    }

    /// Makes the contents with this lease alone, as far as its removal needs them.
    pub(crate) fn alone(key: &Key, owner: &str, epoch: u64) -> Self {
        let mut alone = Self::free(key, epoch);
        alone.leases.push(Lease {
            owner: owner.to_owned(),
            epoch,
            mode: Mode::Exclusive,
            slot: 0,
            session: String::new(),
            host: String::new(),
            pid: 0,
            label: String::new(),
            since: 0,
        });
        alone
    }

    /// Returns the sessions of all leases and waiters.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        let leases = self.leases.iter().map(|lease| &lease.session);
        leases.chain(self.queue.iter().map(|waiter| &waiter.session))
    }

    /// Removes the leases and waiters whose sessions have ended.
    pub(crate) fn end(&mut self, has_ended: impl Fn(&SessionId) -> bool) {
        self.leases.retain(|lease| !has_ended(&lease.session));
        self.queue.retain(|waiter| !has_ended(&waiter.session));
    }
}

/// A mode as `x`, `s`, or the limit of a permit.
mod mode_text {
    use lockkeeper_core::Mode;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(mode: &Mode, to: S) -> Result<S::Ok, S::Error> {
        match mode {
            Mode::Exclusive => to.serialize_str("x"),
            Mode::Shared => to.serialize_str("s"),
            Mode::Permit { limit } => to.collect_str(limit),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mode, D::Error> {
        match &*String::deserialize(from)? {
            "x" => Ok(Mode::Exclusive),
            "s" => Ok(Mode::Shared),
            limit => match limit.parse() {
                Ok(limit) => Ok(Mode::Permit { limit }),
                Err(error) => Err(D::Error::custom(error)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::LockName;

    use super::*;
    use crate::lease::RegisterLease;

    #[test]
    fn contents_are_read_back_and_show_the_mark_of_each_lease() {
        let name = LockName::new("a \"o\":\"b\" \n\u{7}").unwrap();
        let key = Key::of(&name, Mode::Exclusive);
        let mut contents = Contents::free(&key, 7);
        assert_eq!(Contents::read(&contents.text()).unwrap(), contents);
        for (owner, mode) in [("b-1", Mode::Shared), ("b-2", Mode::Permit { limit: 5 })] {
            contents.leases.push(Lease {
                owner: owner.to_owned(),
                epoch: 7,
                mode,
                slot: 3,
                session: "s".to_owned(),
                host: "host".to_owned(),
                pid: 1,
                label: String::new(),
                since: 5,
            });
            contents.queue.push(Waiter {
                owner: format!("{owner}3"),
                mode,
                session: "t".to_owned(),
            });
        }
        let text = contents.text();
        assert_eq!(Contents::read(&text).unwrap(), contents);
        assert!(!text.contains(char::is_control), "{text:?}");
        let mark = |owner: &str, epoch| {
            let lease = RegisterLease {
                key: key.clone(),
                owner: owner.to_owned(),
                epoch,
                session: "s".to_owned(),
                ttl: std::time::Duration::ZERO,
                alone_at: None,
            };
            text.contains(&lease.mark())
        };
        assert!(mark("b-1", 7) && mark("b-2", 7));
        assert!(!mark("b-1", 8) && !mark("b", 7) && !mark("b-13", 7));
    }

    #[test]
    fn entry_of_another_program_or_version_is_refused() {
        for (value, word) in [
            (r#"{"v":2,"k":"lock/a","x":[]}"#, "upgrade"),
            (r#"{"v":0,"k":"lock/a","e":1}"#, "not written by"),
            ("", "not written by"),
            (r#"{"v":1}"#, "not written by"),
        ] {
            let error = Contents::read(value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible);
            assert!(error.to_string().contains(word), "{value}: {error}");
        }
    }
}
