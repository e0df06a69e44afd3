//! Opens a provider by its URL and keys.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{
    Driver, Error, ErrorKind, Key, KeySpec, LockProvider, MAX_DURATION, MEMBER, Member,
    OpenContext, Takes,
};

use crate::BACKEND;
use crate::open::{QuorumMember, check_count};
use crate::provider::{QuorumProvider, member_ttl};

/// Opens `quorum:?member=URL&member=URL&member=URL`, with three or five members.
///
/// A `&` in the URL of a member is written `%26`. The members have the namespace of the quorum.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuorumDriver;

impl QuorumDriver {
    /// How long a member that was just started grants nothing, and the longest ttl.
    pub const RESTART_GRACE: Key<Duration> = Key::new(
        "restart_grace",
        Takes::Duration(Duration::ZERO, MAX_DURATION),
        "the ttl",
        "how long a member that was just started grants nothing; no ttl may be longer",
    );
}

impl Driver for QuorumDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["quorum"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        const { &[MEMBER.spec, Self::RESTART_GRACE.spec] }
    }

    fn epochs_follow_clock(&self) -> bool {
        true
    }

    fn check(&self, context: &OpenContext<'_>) -> Result<(), Error> {
        members(context)
            .map(drop)
            .map_err(|it| it.with_backend(BACKEND))
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let members = members(context)?.into_iter().map(|member| {
            let location = member.location();
            QuorumMember::new(location, move || member.open())
        });
        let clock = Arc::clone(context.clock());
        let provider = QuorumProvider::open(
            members.collect(),
            context.namespace(),
            restart_grace(context)?,
            clock,
        );
        Ok(Arc::new(provider.map_err(|it| it.with_backend(BACKEND))?))
    }
}

fn restart_grace(context: &OpenContext<'_>) -> Result<Duration, Error> {
    let ttl = context.ttl();
    let grace = context.value(&QuorumDriver::RESTART_GRACE)?.unwrap_or(ttl);
    if grace >= ttl {
        return Ok(grace);
    }
    let text = format!(
        "`restart_grace` is {grace:?} and the keeper's ttl {ttl:?}, so no acquisition with that ttl would be granted; \
         raise it to the largest ttl of all programs, lower the ttl, or leave it out"
    );
    let error = Error::new(ErrorKind::InvalidValue, text);
    Err(context.about(&QuorumDriver::RESTART_GRACE, error))
}

/// Returns the members. Each grants nothing for the same time after a restart, if it can be told so.
fn members(context: &OpenContext<'_>) -> Result<Vec<Member>, Error> {
    let url = context.url();
    if url.host().is_some() || !url.path().is_empty() {
        let text = "`quorum:` has no host or path; write quorum:?member=URL&member=URL&member=URL";
        return Err(Error::new(ErrorKind::InvalidUrl, text));
    }
    let members = context.members()?;
    check_count(members.len())?;
    let key = &QuorumDriver::RESTART_GRACE;
    // A member that knows its locks keeps them as long.
    let grace = member_ttl(restart_grace(context)?).min(MAX_DURATION);
    let graced = members.into_iter().map(|member| {
        if !member.takes(&key.spec) {
            return Ok(member);
        }
        match member.value(key)? {
            None => Ok(member.with(key, grace)),
            Some(_) => Err(Error::new(
                ErrorKind::InvalidValue,
                "a member sets `restart_grace`; set it on the quorum, for all members",
            )),
        }
    });
    let members = graced.collect::<Result<Vec<_>, Error>>()?;
    let mut locations: Vec<_> = members.iter().map(Member::location).collect();
    locations.sort();
    locations.dedup();
    // Private stores of the process have one URL.
    let is_private = |member: &Member| member.url().to_string() == "memory:";
    if locations.len() < members.len() && !members.iter().any(is_private) {
        let text = "two members are the same store; a store has one vote";
        return Err(Error::new(ErrorKind::InvalidValue, text));
    }
    Ok(members)
}
