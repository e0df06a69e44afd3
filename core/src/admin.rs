//! What the one on call asks of a store: who holds what, take it from them, is the store fit.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::clock::HostInstant;
use crate::error::Error;
use crate::name::LockName;
use crate::token::FencingToken;

/// The questions of the one on call to a store; see [`LockKeeper::admin`].
///
/// A provider answers them for its own namespace, from the store itself: what is true for every
/// process that uses it. Nothing here is on the way of a lock, so it may cost several round trips.
/// Every call returns by its deadline, plus what one attempt takes.
///
/// [`LockKeeper::admin`]: crate::LockKeeper::admin
pub trait Admin: fmt::Debug + Send + Sync {
    /// Returns the names that are held now, in the order of their text: all names, or only `name`. A
    /// name that is between two holders is not in the list.
    ///
    /// # Errors
    /// As [`LockProvider::acquire`](crate::LockProvider::acquire);
    /// [`ErrorKind::PermissionDenied`](crate::ErrorKind::PermissionDenied) where this user may lock
    /// but not look; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the server does
    /// not list all names. Both say what to allow or switch on.
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error>;

    /// Takes a name from the holder that [`held`](Self::held) has shown, and wakes one waiter. Returns
    /// false if that hold is over; a later holder keeps the name.
    ///
    /// The former holder learns of it from the store, at its next renewal or release, and works on until
    /// then. The next holder's token is larger, so the data itself can refuse late writes.
    ///
    /// # Errors
    /// As [`held`](Self::held); [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) where it may or
    /// may not have happened.
    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error>;

    /// Looks for what is known to break locks on this kind of store, changing nothing. What an
    /// ordinary keeper can find out by locking is not looked for here.
    ///
    /// # Errors
    /// Only where the store could not be asked at all. What this user may not look at is a
    /// [`Severity::Warning`].
    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error>;

    /// What [`held`](Self::held) never tells on this store, each in a few words such as "the
    /// holder's thread".
    fn cannot_tell(&self) -> &'static [&'static str] {
        &[]
    }
}

/// A name that is held, as far as the store can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldName {
    /// The name as it was asked for. Where the store keeps only a part or a hash of long names:
    /// what it keeps, and [`is_whole`](Self::is_whole) is false.
    pub name: String,
    /// Whether [`name`](Self::name) is the name itself.
    pub is_whole: bool,
    /// Who holds it.
    pub holder: Holder,
    /// The number that the store gave this grant.
    pub epoch: Option<u64>,
    /// How long the store keeps it without another sign of life from its holder.
    pub remaining: Option<Duration>,
    /// How many processes wait for it (a keeper counts as one however many of its threads wait).
    pub waiting: Option<u64>,
    /// What the store knows this very hold by; of use to [`Admin::force_release`] alone.
    pub mark: String,
}

impl HeldName {
    /// A name, and the store's mark of its hold; everything else is not known yet.
    pub fn new(name: impl Into<String>, mark: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            is_whole: true,
            holder: Holder::default(),
            epoch: None,
            remaining: None,
            waiting: None,
            mark: mark.into(),
        }
    }

    /// The token of the grant. A holder that got the name by hand-over within its process has one
    /// that is larger by the number of hand-overs, of which the store does not know.
    pub fn token(&self) -> Option<FencingToken> {
        self.epoch
            .and_then(|epoch| FencingToken::new(epoch, 0).ok())
    }
}

/// Who holds a name. `None` is what is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The name of its host, or its address.
    pub host: Option<String>,
    /// Its process's id there.
    pub pid: Option<u32>,
    /// The name of the thread that asked.
    pub thread: Option<String>,
    /// When the process got the name, by the wall clock of the host or server that recorded it.
    pub since: Option<SystemTime>,
    /// The connection or session that holds it, where that is what the store knows a holder by.
    pub session: Option<String>,
}

/// How bad a [`Finding`] is; the later ones are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Locks work, and something can break them or take them away.
    Warning,
    /// Locks do not work, or do not exclude.
    Unusable,
}

impl Severity {
    /// `fine`, `warning` or `unusable`.
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

/// One thing that was looked at: what was found, what it means, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at, in one or two words: the same on every run, for programs to look for.
    pub topic: &'static str,
    /// What was found, such as "maxmemory-policy is allkeys-lru".
    pub what: String,
    /// What that means for locks. Empty where it goes without saying.
    pub meaning: String,
    /// What to do. Empty where there is nothing to do.
    pub advice: String,
}

/// Further off than this, the wall clocks of two hosts are not kept in step.
const CLOCKS_APART: Duration = Duration::from_secs(1);

impl Finding {
    /// As it should be.
    pub fn fine(topic: &'static str, what: impl Into<String>) -> Self {
        Self {
            severity: Severity::Fine,
            topic,
            what: what.into(),
            meaning: String::new(),
            advice: String::new(),
        }
    }

    /// Locks work, and this can break them or take them away.
    pub fn warning(
        topic: &'static str,
        what: impl Into<String>,
        meaning: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Warning,
            meaning: meaning.into(),
            advice: advice.into(),
            ..Self::fine(topic, what)
        }
    }

    /// Locks do not work here, or do not exclude.
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

    /// Adds what it means to one that is fine.
    #[must_use]
    pub fn meaning(mut self, meaning: impl Into<String>) -> Self {
        self.meaning = meaning.into();
        self
    }

    /// How far the store's wall clock is from this host's: the store said `theirs` at some time
    /// between `before` and `after` here.
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
            "leases do not depend on it; times in logs do, and so do tokens when another server \
             takes over whose clock is behind",
            "keep the clocks of all hosts in step (NTP)",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_first_token() {
        let mut held = HeldName::new("seat:42", "1");
        assert_eq!(held.token(), None);
        held.epoch = Some(3);
        assert_eq!(held.token().unwrap().get(), 3 << 7);
        held.epoch = Some(0);
        assert_eq!(held.token(), None, "no store mints it");
    }

    #[test]
    fn clocks_are_told_apart_no_finer_than_they_were_read() {
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
