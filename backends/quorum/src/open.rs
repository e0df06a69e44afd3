//! Where the members are, and opening all of them at the same time.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::{Clock, Error, ErrorKind, HostInstant, LockProvider};

use crate::ballot::majority;
use crate::member::{Member, ask_all};

/// One member of a quorum: where the store is, and how it is opened.
#[derive(Clone)]
pub struct QuorumMember {
    location: String,
    open: Arc<dyn Fn() -> Result<Arc<dyn LockProvider>, Error> + Send + Sync>,
}

impl QuorumMember {
    /// Describes a member. `location` identifies the store and shows no secret. `open` is called on a thread of
    /// the quorum, again and again while its error is [retryable](Error::is_retryable).
    pub fn new(
        location: impl Into<String>,
        open: impl Fn() -> Result<Arc<dyn LockProvider>, Error> + Send + Sync + 'static,
    ) -> Self {
        let (location, open) = (location.into(), Arc::new(open));
        Self { location, open }
    }

    /// Returns the text that identifies the store.
    pub(crate) fn location(&self) -> &str {
        &self.location
    }

    pub(crate) fn open(&self) -> Result<Arc<dyn LockProvider>, Error> {
        (self.open)()
    }
}

impl From<Arc<dyn LockProvider>> for QuorumMember {
    /// Makes a member of a store that is open.
    fn from(store: Arc<dyn LockProvider>) -> Self {
        Self::new(store.location(), move || Ok(Arc::clone(&store)))
    }
}

impl fmt::Debug for QuorumMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QuorumMember").field(&self.location).finish()
    }
}

/// Checks the number of members.
pub(crate) fn check_count(members: usize) -> Result<(), Error> {
    if matches!(members, 3 | 5) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidValue,
        format!("a quorum has 3 or 5 members, and {members} are named; give each as member=URL"),
    ))
}

/// Opens all members at the same time, and returns those that are open.
pub(crate) fn open_all(
    members: &[Arc<Member>],
    clock: &dyn Clock,
) -> Result<Vec<Arc<dyn LockProvider>>, Error> {
    let opened = ask_all(members, clock, HostInstant::NEVER, Member::open);
    let mut stores = Vec::with_capacity(members.len());
    let mut failed = Vec::new();
    for (member, opened) in members.iter().zip(opened) {
        match opened {
            Ok(store) => stores.push(store),
            Err(error) if error.is_retryable() => failed.push(error),
            Err(error) => return Err(at_member(member, error)),
        }
    }
    let (open, needed) = (stores.len(), majority(members.len()));
    if open >= needed {
        return Ok(stores);
    }
    // Locks may be held at a majority that was reached, so no fallback is opened then.
    let silent = failed.iter().filter(|it| it.is_unreachable()).count();
    let is_unreachable = silent > members.len() - needed;
    let text = few(open, members.len());
    let few = match is_unreachable {
        true => Error::unreachable(text),
        false => Error::new(ErrorKind::Unavailable, text),
    };
    let mut causes = failed.into_iter();
    let cause = causes.find(|it| it.is_unreachable() == is_unreachable);
    Err(match cause {
        Some(cause) => few.with_source(cause),
        None => few,
    })
}

/// Returns the error of a member, with its location.
pub(crate) fn at_member(member: &Member, error: Error) -> Error {
    let text = format!(
        "the member {}: {}",
        member.source.location(),
        error.message()
    );
    Error::new(error.kind(), text).with_source(error)
}

fn few(open: usize, members: usize) -> String {
    format!(
        "only {open} of {members} members answered, and a quorum needs {}; see to the others",
        majority(members)
    )
}
