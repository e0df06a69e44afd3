//! The text by which a lock goes from one process to another.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::capabilities::Capability;
use crate::contract::provider::LeaseId;
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::token::FencingToken;

/// What every ticket begins with: the version of its form.
const START: &str = "lockkeeper1";
/// What a name and a URL keep of their letters. A comma separates the fields.
const FIELD: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':')
    .remove(b'/');

/// A lock that no process has, written down: see [`LockGuard::detach`](crate::LockGuard::detach).
///
/// Its text (by [`Display`](fmt::Display), and [`FromStr`] back) is a line of printable ASCII letters without spaces
/// and quotes, 100 bytes and more, by the lengths of the name and the store's URL. It contains no password. But
/// whoever has the ticket, and may use the store, can take the lock over. So keep tickets where the jobs are kept.
///
/// The [store](Self::location) and the [name](Self::name) in the ticket decide which lock is resumed, and a checksum
/// finds a changed letter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "String", try_from = "String"))]
pub struct Ticket(TicketParts);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TicketParts {
    pub(crate) location: String,
    pub(crate) name: LockName,
    pub(crate) token: FencingToken,
    pub(crate) lease: LeaseId,
    pub(crate) ttl: Duration,
    pub(crate) good_until: SystemTime,
}

impl Ticket {
    /// Makes a ticket. Its times are whole milliseconds, as in the text.
    pub(crate) fn new(parts: TicketParts) -> Self {
        let since = parts.good_until.duration_since(UNIX_EPOCH);
        Self(TicketParts {
            ttl: from_millis(millis(parts.ttl)),
            good_until: UNIX_EPOCH + from_millis(millis(since.unwrap_or_default())),
            ..parts
        })
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.0.name
    }

    /// Returns the URL, without secrets, of the store and the namespace:
    /// [`LockKeeper::location`](crate::LockKeeper::location).
    pub fn location(&self) -> &str {
        &self.0.location
    }

    /// Returns the token of the guard that was detached. The guard that resumes the lock has a larger one.
    pub fn token(&self) -> FencingToken {
        self.0.token
    }

    /// Returns the ttl of the lease.
    pub fn ttl(&self) -> Duration {
        self.0.ttl
    }

    /// Returns when the store frees the name if nobody resumes the lock, by the clock of the host that detached it.
    pub fn good_until(&self) -> SystemTime {
        self.0.good_until
    }

    pub(crate) fn lease(&self) -> LeaseId {
        self.0.lease
    }

    /// Returns the text without the checksum.
    fn fields(&self) -> String {
        let parts = &self.0;
        let since = parts.good_until.duration_since(UNIX_EPOCH);
        format!(
            "{START},{},{},{},{},{},{}",
            parts.lease,
            parts.token,
            millis(parts.ttl),
            millis(since.unwrap_or_default()),
            utf8_percent_encode(parts.name.as_str(), FIELD),
            utf8_percent_encode(&parts.location, FIELD),
        )
    }

    fn read(fields: &str) -> Option<Self> {
        let mut fields = fields.split(',');
        let mut field = || fields.next();
        (field()? == START).then_some(())?;
        let (lease, token, ttl, good_until) = (field()?, field()?, field()?, field()?);
        let decoded = |field| percent_decode_str(field).decode_utf8().ok();
        let (name, location) = (decoded(field()?)?, decoded(field()?)?);
        let until = UNIX_EPOCH.checked_add(Duration::from_millis(good_until.parse().ok()?));
        Some(Self(TicketParts {
            location: location.into_owned(),
            name: LockName::new(name.into_owned()).ok()?,
            token: token.parse().ok()?,
            lease: LeaseId::parse(lease)?,
            ttl: Duration::from_millis(ttl.parse().ok()?),
            good_until: until?,
        }))
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn from_millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns the checksum of a text: FNV-1a. A text with one other byte has another one, since each step is reversible.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.fields();
        write!(f, "{fields},{:016x}", checksum(&fields))
    }
}

impl FromStr for Ticket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = |what| {
            let text = format!("{what}; pass the ticket on as it was given");
            Error::new(ErrorKind::InvalidValue, text)
        };
        let fields = match text.rsplit_once(',') {
            Some((fields, sum)) if fields.starts_with(START) => {
                if format!("{:016x}", checksum(fields)) != sum {
                    return Err(refused("the ticket was changed: its checksum is wrong"));
                }
                fields
            }
            _ => return Err(refused("the text is no ticket of this version")),
        };
        Self::read(fields).ok_or_else(|| refused("the text is no ticket of this version"))
    }
}

impl TryFrom<String> for Ticket {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Ticket> for String {
    fn from(ticket: Ticket) -> String {
        ticket.to_string()
    }
}

/// Returns the text of the error that a store has no tickets.
pub(crate) fn unsupported() -> String {
    let tickets = Capability::Tickets;
    format!(
        "this store does not have the capability {tickets}, since its locks end with the process or its session; {}",
        tickets.advice()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(name: &str, location: &str) -> Ticket {
        Ticket::new(TicketParts {
            location: location.to_owned(),
            name: LockName::new(name).unwrap(),
            token: FencingToken::new(1 << 50, 3).unwrap(),
            lease: LeaseId {
                nonce: 0x00ff,
                request: 7,
            },
            ttl: Duration::from_micros(30_000_500),
            good_until: UNIX_EPOCH + Duration::from_nanos(1_790_000_000_000_000_001),
        })
    }

    #[test]
    fn ticket_is_read_as_it_was_written() {
        for (name, location) in [
            ("seat:42", "redis://db.internal:6379?db=0&namespace=shop"),
            (
                "a,b %2C\n\"자리\"",
                "sqlite:/var/lib/my locks.db?namespace=%2C",
            ),
            (&"x".repeat(512), ""),
        ] {
            let written = ticket(name, location);
            let text = written.to_string();
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
            let read: Ticket = text.parse().unwrap();
            assert_eq!(read, written);
            assert_eq!((read.name().as_str(), read.location()), (name, location));
            assert_eq!(read.ttl(), Duration::from_secs(30));
            #[cfg(feature = "serde")]
            {
                let json = serde_json::to_string(&read).unwrap();
                assert_eq!(serde_json::from_str::<Ticket>(&json).unwrap(), read);
            }
        }
    }

    #[test]
    fn changed_byte_is_an_error() {
        let text = ticket("seat:42", "redis://db?db=0&namespace=shop").to_string();
        for at in 0..text.len() {
            for other in [b'0', b'1', b'A', b'f', b',', b'%', b' '] {
                let mut bytes = text.clone().into_bytes();
                if std::mem::replace(&mut bytes[at], other) == other {
                    continue;
                }
                let changed = String::from_utf8(bytes).unwrap();
                let error = changed.parse::<Ticket>().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidValue, "{changed}");
            }
            assert!(text[..at].parse::<Ticket>().is_err());
        }
        for other in ["", "seat:42", &format!("{text} "), &format!(" {text}")] {
            assert!(other.parse::<Ticket>().is_err());
        }
    }
}
