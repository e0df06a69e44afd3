//! The interface for operators of a store: its holders, forced releases, and checks of the store.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::clock::HostInstant;
use crate::error::{Error, ErrorKind, visible};
use crate::mode::Mode;
use crate::name::LockName;
use crate::token::FencingToken;

/// The interface for operators of a store; see [`LockKeeper::admin`](crate::LockKeeper::admin).
///
/// A provider answers for its own namespace. It asks the store itself, so the answer is about all
/// processes that use the store. No lock waits for these calls, so they may take several round
/// trips. Every call returns by its deadline, plus the time of one attempt.
pub trait Admin: fmt::Debug + Send + Sync {
    /// Returns the names that are held now, or only `name`, in the order of their text. A name that
    /// is between two holders is not in the list.
    ///
    /// # Errors
    /// As [`LockProvider::acquire`](crate::LockProvider::acquire);
    /// [`ErrorKind::PermissionDenied`] if this user may lock, but not list locks;
    /// [`ErrorKind::Unsupported`] if the server does not list all names. Both say what to allow or switch on.
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error>;

    /// Returns the names that are held now in every namespace of the store, each with its namespace, in
    /// the order of namespace and name. If a name is not [whole](HeldName::is_whole), its namespace may
    /// not be whole, either. [`force_release`](Self::force_release) takes only names of the provider's
    /// own namespace.
    ///
    /// # Errors
    /// As [`held`](Self::held); [`ErrorKind::Unsupported`] if the backend does not list other
    /// namespaces, which is the default.
    fn held_in_all_namespaces(
        &self,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let _ = deadline;
        Err(Error::new(
            ErrorKind::Unsupported,
            "this store lists one namespace only; name it in the URL as ?namespace=NAME",
        ))
    }

    /// Takes a name from the holder that [`held`](Self::held) returned, and wakes one waiter. Returns
    /// false if that hold has ended; a later holder keeps the name.
    ///
    /// The former holder is notified at once where the store can do that. Otherwise it works on until its
    /// next renewal or release. The next holder's token is larger, so the data itself can refuse late
    /// writes.
    ///
    /// # Errors
    /// As [`held`](Self::held); [`ErrorKind::Unknown`] if the name may or may not have been taken.
    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error>;

    /// Checks for settings and states that are known to break locks on this kind of store. Changes
    /// nothing. It does not check what an ordinary keeper notices when it locks.
    ///
    /// # Errors
    /// Only if the store could not be asked at all. A check that this user may not make is a
    /// [`Severity::Warning`].
    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error>;

    /// Returns the data that [`held`](Self::held) never contains on this store, each in a few
    /// words, such as "since when it is held".
    fn cannot_tell(&self) -> &'static [&'static str] {
        &[]
    }
}

/// A name that is held, as far as the store can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldName {
    /// The name as it was requested. Of a long name, a store may keep only a part or a hash.
    pub name: String,
    /// Whether [`name`](Self::name) is the whole name.
    pub is_whole: bool,
    /// The mode in which it is held. The limit of a permit is 0 if the store does not know it.
    pub mode: Mode,
    /// The slot of a permit.
    pub slot: Option<u32>,
    /// The holder, as far as it is known.
    pub holder: Holder,
    /// The epoch of this grant. A keeper with an `epoch_offset` has added that offset.
    pub epoch: Option<u64>,
    /// How long the store keeps the lease without another renewal.
    pub remaining: Option<Duration>,
    /// How many processes wait for the name. A keeper counts once, whatever the number of its waiting
    /// threads.
    pub waiting: Option<u64>,
    /// How the store identifies this hold; only [`Admin::force_release`] reads it.
    pub mark: String,
}

impl HeldName {
    /// Makes a held name with only the name and the store's mark.
    pub fn new(name: impl Into<String>, mark: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            is_whole: true,
            mode: Mode::Exclusive,
            slot: None,
            holder: Holder::default(),
            epoch: None,
            remaining: None,
            waiting: None,
            mark: mark.into(),
        }
    }

    /// Returns the first token of the grant. Each hand-over within the holder's process, which the
    /// store does not see, adds one.
    pub fn token(&self) -> Option<FencingToken> {
        self.epoch
            .and_then(|epoch| FencingToken::new(epoch, 0).ok())
    }
}

/// The holder of a name. `None` means not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The name of its host, or its address.
    pub host: Option<String>,
    /// The id of its process on that host.
    pub pid: Option<u32>,
    /// The [label](crate::set_process_label) of its process.
    pub label: Option<String>,
    /// When the name was granted, by the wall clock of the host or server that recorded it.
    pub since: Option<SystemTime>,
    /// The connection or session that holds the name, if [`Admin::force_release`] ends it, with all names that it holds.
    /// `None` where a forced release ends one lease.
    pub session: Option<String>,
}

/// How bad a [`Finding`] is. The later variants are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The finding is no problem.
    Fine,
    /// Locks work, but something can break them or take them away.
    Warning,
    /// Locks do not work, or do not exclude.
    Unusable,
}

impl Severity {
    /// Returns `fine`, `warning` or `unusable`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Fine => "fine",
            Severity::Warning => "warning",
            Severity::Unusable => "unusable",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The result of one check: what was found, what it means, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was checked, in one or two words. They are the same on every run, so programs can rely on them.
    pub topic: &'static str,
    /// What was found, such as "maxmemory-policy is allkeys-lru".
    pub what: String,
    /// What that means for locks. Empty if that is obvious.
    pub meaning: String,
    /// What to do. Empty if there is nothing to do.
    pub advice: String,
}

/// The difference from which on the wall clocks of two hosts are not synchronised.
const CLOCKS_APART: Duration = Duration::from_secs(1);

impl Finding {
    /// Makes a finding that is no problem.
    pub fn fine(topic: &'static str, what: impl Into<String>) -> Self {
        Self {
            severity: Severity::Fine,
            topic,
            what: visible(what.into()),
            meaning: String::new(),
            advice: String::new(),
        }
    }

    /// Makes a finding of something that can break locks or take them away.
    pub fn warning(
        topic: &'static str,
        what: impl Into<String>,
        meaning: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Warning,
            meaning: visible(meaning.into()),
            advice: visible(advice.into()),
            ..Self::fine(topic, what)
        }
    }

    /// Makes a finding of something that makes locks fail, or not exclude.
    pub fn unusable(
        topic: &'static str,
        what: impl Into<String>,
        meaning: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Unusable,
            ..Self::warning(topic, what, meaning, advice)
        }
    }

    /// Adds what a fine finding means.
    #[must_use]
    pub fn meaning(mut self, meaning: impl Into<String>) -> Self {
        self.meaning = visible(meaning.into());
        self
    }

    /// Compares the store's wall clock with this host's. The store's clock was `theirs` at some time
    /// between `before` and `after`.
    pub fn clocks(before: SystemTime, theirs: SystemTime, after: SystemTime) -> Self {
        let ahead = theirs.duration_since(after).unwrap_or_default();
        let behind = before.duration_since(theirs).unwrap_or_default();
        let (apart, way) = if ahead > behind {
            (ahead, "ahead of")
        } else {
            (behind, "behind")
        };
        let topic = "clock";
        if apart < CLOCKS_APART {
            return Self::fine(topic, "the store's clock and this host's agree");
        }
        Self::warning(
            topic,
            format!("the store's clock is {apart:.1?} {way} this host's"),
            "leases do not depend on the difference; times in logs do, and so do tokens when another server \
             takes over whose clock is behind",
            "keep the clocks of all hosts in step (NTP)",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_name_has_the_first_token_of_its_epoch() {
        let mut held = HeldName::new("seat:42", "1");
        assert_eq!(held.token(), None);
        held.epoch = Some(3);
        assert_eq!(held.token().unwrap().get(), 3 << 7);
        held.epoch = Some(0);
        assert_eq!(held.token(), None, "no store mints it");
    }

    #[test]
    fn clocks_are_compared_no_finer_than_they_were_read() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let severity = |theirs| Finding::clocks(at(100), at(theirs), at(110)).severity;
        for agree in [100, 105, 110] {
            assert_eq!(severity(agree), Severity::Fine);
        }
        let ahead = Finding::clocks(at(100), at(112), at(110));
        assert!(ahead.what.contains("2.0s ahead of"), "{}", ahead.what);
        let behind = Finding::clocks(at(100), at(95), at(110));
        assert!(behind.what.contains("5.0s behind"), "{}", behind.what);
        assert_eq!(behind.severity, Severity::Warning);
    }
}
