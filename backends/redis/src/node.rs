//! One node of a cluster, and what its refusals mean.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::{Error, ErrorKind, HostInstant};
use lockkeeper_remote::Endpoint;
use redis::ServerError;

use crate::bucket_keys::slot;
use crate::slot_map::SlotMap;

/// A node of a cluster.
pub(crate) struct Node {
    pub(crate) map: Arc<SlotMap>,
    pub(crate) endpoint: Endpoint,
}

impl Node {
    /// Returns whether the node owns the slot of a key, as far as the map says that can be asked for until then.
    pub(crate) fn owns(&self, key: &str, until: HostInstant) -> bool {
        let owner = self.map.owner(slot(key), until);
        owner.is_ok_and(|owner| owner == self.endpoint)
    }

    /// Returns the error for a refusal that comes from the cluster, and notes in the map what it says. `None` for
    /// other refusals.
    pub(crate) fn refusal(&self, error: &ServerError, is_attempt: bool) -> Option<Error> {
        let (code, details) = (error.code(), error.details().unwrap_or_default());
        let mut asked = None;
        let (kind, text) = match (code, self.redirect(details)) {
            ("MOVED", Some((slot, owner))) => {
                self.map.learn(slot, owner);
                (
                    ErrorKind::Unavailable,
                    "another node of the cluster owns the slot of this name",
                )
            }
            ("ASK", Some((slot, next))) => {
                self.map.note_move(slot, next.clone());
                asked = Some(Asked(next));
                (ErrorKind::Unavailable, MOVING)
            }
            ("MOVED" | "CLUSTERDOWN", _) => {
                self.map.doubt(Some(&self.endpoint));
                (
                    ErrorKind::Unavailable,
                    "the cluster has no primary for the slot of this name at the moment",
                )
            }
            ("TRYAGAIN", _) => (ErrorKind::Unavailable, MOVING),
            // A script that was ended where the slot is moved. An attempt has done nothing by then.
            _ if details.contains("non local key") => {
                let kind = match is_attempt {
                    true => ErrorKind::Unavailable,
                    false => ErrorKind::Unknown,
                };
                (kind, MOVING)
            }
            _ => return None,
        };
        let is_moving = text == MOVING && kind == ErrorKind::Unavailable;
        let text = format!("{text} (the server says: {code} {details})");
        let error = match is_moving {
            true => Error::name_unavailable(text),
            false => Error::new(kind, text),
        };
        Some(match asked {
            Some(asked) => error.with_source(asked),
            None => error,
        })
    }

    /// Reads `SLOT HOST:PORT`. Without a host it is the same as this node's.
    fn redirect(&self, details: &str) -> Option<(u16, Endpoint)> {
        let mut words = details.split(' ');
        let slot = words.next()?.parse().ok()?;
        let (host, port) = words.next()?.rsplit_once(':')?;
        let to = endpoint(host, port.parse().ok()?, &self.endpoint)?;
        Some((slot, to))
    }
}

/// The source of the error for an ASK reply: the node that this very request has to be sent to.
#[derive(Debug)]
struct Asked(Endpoint);

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the key is not at the owner of its slot; ask {}", self.0)
    }
}

impl std::error::Error for Asked {}

/// Returns the node that takes the slot over, if the error is that for an ASK reply.
pub(crate) fn asked_node(error: &Error) -> Option<&Endpoint> {
    let source = std::error::Error::source(error)?;
    source.downcast_ref().map(|Asked(next)| next)
}

const MOVING: &str = "the slot of this name is being moved to another node of the cluster; names in it are granted when that has ended";

/// Returns where a node is by what another node, at `said_by`, says of it. `None` if that does not know its host.
pub(crate) fn endpoint(host: &str, port: u16, said_by: &Endpoint) -> Option<Endpoint> {
    match (host, said_by) {
        ("?", _) => None,
        ("", Endpoint::Tcp { host, .. }) => Some(Endpoint::tcp(host, port)),
        _ => Some(Endpoint::tcp(host, port)),
    }
}
