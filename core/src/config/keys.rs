//! The keys of a config. A key's type, range, default and meaning are said here once: parsing, error
//! messages and documentation all take them from its [`KeySpec`].

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use crate::capabilities::{Capabilities, Capability};
use crate::error::{Error, ErrorKind};
use crate::options::{MAX_DURATION, Outage, Wait};
use crate::token::MAX_HANDOVERS;

/// One key of a URL, the environment or a config file, as documentation and error messages show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    /// The key.
    pub name: &'static str,
    /// The values that it takes.
    pub takes: Takes,
    /// The value if the key is not given.
    pub default: &'static str,
    /// What it decides.
    pub meaning: &'static str,
}

impl KeySpec {
    /// Checks a value's type and range.
    pub(crate) fn check(&self, text: &str) -> Result<(), Error> {
        match self.takes.has(text) {
            true => Ok(()),
            false => Err(self.refused(text)),
        }
    }

    /// Only a value of a type that holds no secret is refused, so that the error can show it.
    pub(crate) fn refused(&self, text: &str) -> Error {
        let kind = match self.name {
            "ttl" => ErrorKind::InvalidTtl,
            "wait" | "open_wait" => ErrorKind::InvalidWait,
            _ => ErrorKind::InvalidValue,
        };
        let advice = match self.takes {
            Takes::Duration(..) => "; write it like 500ms, 30s or 2m",
            _ => "",
        };
        let (name, takes) = (self.name, self.takes);
        Error::new(
            kind,
            format!("`{name}` takes {takes}, and not {text:?}{advice}"),
        )
    }
}

/// The values that a key takes. `Display` describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// A whole number from the first to the second. Choose ends that the store can really serve: a
    /// number from a URL must never be able to exhaust memory or to overflow.
    Number(u32, u32),
    /// A duration, such as `500ms`, from the first to the second.
    Duration(Duration, Duration),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A text of this description. Any text passes here: the driver checks it on opening.
    Text(&'static str),
}

impl Takes {
    /// Yes or no, for a key of type `bool`.
    pub const FLAG: Self = Self::OneOf(&["on", "off", "true", "false"]);

    fn has(&self, text: &str) -> bool {
        match *self {
            Self::Number(least, most) => {
                u32::from_text(text).is_some_and(|number| (least..=most).contains(&number))
            }
            Self::Duration(least, most) => {
                Duration::from_text(text).is_some_and(|time| (least..=most).contains(&time))
            }
            Self::OneOf(words) => words.contains(&text),
            Self::Text(_) => true,
        }
    }
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Number(least, most) => write!(f, "a whole number from {least} to {most}"),
            Self::Duration(least, most) => {
                let (least, most) = (least.into_text(), most.into_text());
                write!(f, "a duration from {least} to {most}")
            }
            Self::OneOf([words @ .., last]) => write!(f, "{} or {last}", words.join(", ")),
            Self::OneOf([]) => f.write_str("nothing"),
            Self::Text(description) => f.write_str(description),
        }
    }
}

/// A key whose values are of the type `T`, so that code can set it with [`Config::with`] and a
/// driver can read it with [`OpenContext::value`].
///
/// ```
/// # mod lockkeeper { pub mod backend { pub use lockkeeper_core::*; } }
/// use lockkeeper::backend::{Key, Takes};
///
/// const REPLICAS: Key<u32> = Key::new("replicas", Takes::Number(0, 9), "0", "how many must agree");
/// assert_eq!(REPLICAS.parse("10").unwrap_err().to_string(),
///     "`replicas` takes a whole number from 0 to 9, and not \"10\"");
/// ```
///
/// [`Config::with`]: crate::Config::with
/// [`OpenContext::value`]: crate::OpenContext::value
#[derive(Debug)]
pub struct Key<T> {
    /// The key without its type, as [`Driver::keys`](crate::Driver::keys) lists it.
    pub spec: KeySpec,
    value: PhantomData<T>,
}

impl<T: KeyValue> Key<T> {
    /// Describes a key.
    pub const fn new(
        name: &'static str,
        takes: Takes,
        default: &'static str,
        meaning: &'static str,
    ) -> Self {
        let spec = KeySpec {
            name,
            takes,
            default,
            meaning,
        };
        Self {
            spec,
            value: PhantomData,
        }
    }

    /// Parses a value.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`], naming what the key takes.
    pub fn parse(&self, text: &str) -> Result<T, Error> {
        self.spec.check(text)?;
        T::from_text(text).ok_or_else(|| self.spec.refused(text))
    }

    /// Checks a value that did not come from a text.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn check(&self, value: T) -> Result<(), Error> {
        self.spec.check(&value.into_text())
    }
}

/// A type that the values of a [`Key`] can have.
pub trait KeyValue: Sized {
    /// Parses a value; `None` if `text` is none.
    fn from_text(text: &str) -> Option<Self>;

    /// Returns the text that [`from_text`](Self::from_text) parses to this value.
    fn into_text(self) -> String;
}

macro_rules! written_as_std_does {
    ($($type:ty),*) => {$(
        impl KeyValue for $type {
            fn from_text(text: &str) -> Option<Self> {
                text.parse().ok()
            }

            fn into_text(self) -> String {
                self.to_string()
            }
        }
    )*};
}
written_as_std_does!(u32, String, Capability);

impl KeyValue for bool {
    fn from_text(text: &str) -> Option<Self> {
        match text {
            "on" | "true" => Some(true),
            "off" | "false" => Some(false),
            _ => None,
        }
    }

    fn into_text(self) -> String {
        self.to_string()
    }
}

impl KeyValue for Duration {
    fn from_text(text: &str) -> Option<Self> {
        // Part by part: `humantime` panics where a sum is just too large.
        let (mut sum, mut rest) = (Self::ZERO, text);
        loop {
            let unit = rest.find(char::is_alphabetic).unwrap_or(rest.len());
            let behind = rest.split_at(unit).1;
            let next = behind.find(|it: char| it.is_ascii_digit());
            let (part, others) = rest.split_at(unit + next.unwrap_or(behind.len()));
            sum = sum.checked_add(humantime::parse_duration(part).ok()?)?;
            if others.is_empty() {
                return Some(sum);
            }
            rest = others;
        }
    }

    fn into_text(self) -> String {
        humantime::format_duration(self).to_string()
    }
}

impl KeyValue for Wait {
    fn from_text(text: &str) -> Option<Self> {
        match text {
            "forever" => Some(Self::Forever),
            text => Duration::from_text(text).map(Self::AtMost),
        }
    }

    fn into_text(self) -> String {
        match self {
            Self::AtMost(time) => time.into_text(),
            Self::Forever => "forever".to_owned(),
        }
    }
}

impl KeyValue for Outage {
    fn from_text(text: &str) -> Option<Self> {
        match text {
            "wait" => Some(Self::Wait),
            "fail" => Some(Self::Fail),
            _ => None,
        }
    }

    fn into_text(self) -> String {
        match self {
            Self::Wait => "wait",
            Self::Fail => "fail",
        }
        .to_owned()
    }
}

/// Defines the keys that every store takes, and the list of them.
macro_rules! common_keys {
    ($($key:ident: $type:ty = $name:literal, $takes:expr, $default:literal, $meaning:literal;)*) => {
        $(pub(crate) const $key: Key<$type> = Key::new($name, $takes, $default, $meaning);)*

        /// The keys that every store takes; a backend adds its own with
        /// [`Driver::keys`](crate::Driver::keys).
        pub const COMMON_KEYS: &[KeySpec] = &[$($key.spec),*];
    };
}
common_keys! {
    NAMESPACE: String = "namespace", Takes::Text("1 to 512 bytes"), "default",
        "keeps applications apart on one store";
    TTL: Duration = "ttl", Takes::Duration(Capabilities::MIN_TTL, MAX_DURATION), "30s",
        "how long a lock outlives the last renewal of its holder";
    WAIT: Wait = "wait", Takes::Text("a duration such as 500ms, or forever"), "10s",
        "how long an acquisition may block";
    OUTAGE: Outage = "outage", Takes::OneOf(&["wait", "fail"]), "wait",
        "whether a wait goes on while the store cannot be reached";
    OPEN_WAIT: Wait = "open_wait", Takes::Text("a duration such as 500ms, or forever"), "0s",
        "how long opening may wait for a store that cannot be reached";
    LEASE: String = "lease", Takes::OneOf(&["renewed", "fixed"]), "renewed",
        "whether the keeper renews the lease";
    MAX_HOLD: Duration = "max_hold", Takes::Duration(Capabilities::MIN_TTL, MAX_DURATION), "no limit",
        "the longest time for which the keeper renews a lease";
    MARGIN: Duration = "margin", ANY_DURATION, "a tenth of the ttl, at most 1s",
        "how much earlier than the store a guard considers itself lost";
    HANDOVER_MAX: u32 = "handover_max", Takes::Number(0, MAX_HANDOVERS), "100",
        "how many hand-overs in a row stay within the process";
    HANDOVER_TIME: Duration = "handover_time", ANY_DURATION, "50ms",
        "how long a process may hand a lock on within itself";
    EPOCH_OFFSET: Duration = "epoch_offset", ANY_DURATION, "0s",
        "how far tokens are moved ahead, so that they keep growing after a change of store";
    REQUIRE: Capability = "require", CAPABILITIES, "none", "what the store must promise";
    FALLBACK: String = "fallback", Takes::Text("a URL; can be repeated"), "none",
        "the store to open if the first one is unreachable";
}

const ANY_DURATION: Takes = Takes::Duration(Duration::ZERO, MAX_DURATION);
const CAPABILITIES: Takes = Takes::Text(
    "cross_process, cross_host, dead_owner_take_over, commit_proof, shared, permits, proposed_epoch or tickets; several with commas",
);

/// A store that a store is made of, for the drivers of such stores:
/// [`OpenContext::members`](crate::OpenContext::members).
pub const MEMBER: Key<String> = Key::new(
    "member",
    Takes::Text("a URL; repeated for each member"),
    "none",
    "a store whose vote counts",
);

/// Returns whether a key may be given several times.
pub(super) fn is_list(key: &str) -> bool {
    [REQUIRE.spec.name, FALLBACK.spec.name, MEMBER.spec.name].contains(&key)
}
