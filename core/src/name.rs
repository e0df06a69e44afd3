//! Names of locks, and the namespaces that keep applications apart.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use crate::error::{Error, ErrorKind};

/// The length of the longest name or namespace, in bytes.
pub const MAX_NAME_BYTES: usize = 512;

/// The name of a lock: any UTF-8 string of 1 to 512 bytes. Two different strings are two different
/// locks on every store. Nothing is case-folded, trimmed, normalised or cut.
///
/// Cloning is cheap, and a `LockName` is hashed only once. So make the `LockName` before a hot
/// loop, and lock by reference to it.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::{ErrorKind, LockName};
///
/// let seat = LockName::new("seat:42")?;
/// assert_ne!(seat, LockName::new("Seat:42")?);
/// assert_eq!(LockName::new("").unwrap_err().kind(), ErrorKind::InvalidName);
/// # Ok::<(), lockkeeper::Error>(())
/// ```
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "String", try_from = "String"))]
pub struct LockName {
    text: Arc<str>,
    hash: u64,
}

// Keyed at random per process: a choice of names cannot be a choice of collisions.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl LockName {
    /// Checks the length and keeps the text.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] when `text` is empty or longer than 512 bytes.
    pub fn new(text: impl AsRef<str> + Into<Arc<str>>) -> Result<Self, Error> {
        check_length("a lock name", text.as_ref())?;
        let text: Arc<str> = text.into();
        let hash = HASHER.hash_one(text.as_bytes());
        Ok(Self { text, hash })
    }

    /// Returns the text as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns a hash of the name for this process only, for tables that should not hash again.
    pub fn hash64(&self) -> u64 {
        self.hash
    }
}

/// Checks that `text`, which is `what`, has 1 to 512 bytes.
pub(crate) fn check_length(what: &str, text: &str) -> Result<(), Error> {
    match text.len() {
        0 => Err(Error::new(
            ErrorKind::InvalidName,
            format!("{what} must not be empty; give it 1 to {MAX_NAME_BYTES} bytes"),
        )),
        1..=MAX_NAME_BYTES => Ok(()),
        long => Err(Error::new(
            ErrorKind::InvalidName,
            format!(
                "{what} has {long} bytes, at most {MAX_NAME_BYTES} are allowed; shorten or hash it"
            ),
        )),
    }
}

impl PartialEq for LockName {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.text == other.text
    }
}

impl Eq for LockName {}

impl Hash for LockName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As `str` does, since a `LockName` can be looked up by `&str`.
        self.as_str().hash(state);
    }
}

impl PartialOrd for LockName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

/// Text that names a lock: any of std's text types, and [`LockName`], which is not checked again.
///
/// Your own type that is `AsRef<str>` names locks after `impl AsLockName for SeatId {}`.
pub trait AsLockName: AsRef<str> {
    /// Returns the checked name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`], see [`LockName::new`].
    fn as_lock_name(&self) -> Result<Cow<'_, LockName>, Error> {
        LockName::new(self.as_ref()).map(Cow::Owned)
    }
}

impl AsLockName for LockName {
    fn as_lock_name(&self) -> Result<Cow<'_, LockName>, Error> {
        Ok(Cow::Borrowed(self))
    }
}

impl<N: AsLockName + ?Sized> AsLockName for &N {
    fn as_lock_name(&self) -> Result<Cow<'_, LockName>, Error> {
        (**self).as_lock_name()
    }
}

impl AsLockName for str {}
impl AsLockName for String {}
impl AsLockName for Box<str> {}
impl AsLockName for Arc<str> {}
impl AsLockName for Cow<'_, str> {}

impl FromStr for LockName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl TryFrom<&str> for LockName {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl TryFrom<String> for LockName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl From<LockName> for String {
    fn from(name: LockName) -> String {
        name.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_512_bytes() {
        assert!(LockName::new("a".repeat(512)).is_ok());
        for bad in [String::new(), "a".repeat(513), "자".repeat(171)] {
            let error = LockName::new(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidName);
        }
        assert!(LockName::new("\0").is_ok(), "NUL is UTF-8 like any other");
    }

    #[test]
    fn every_text_type_names_the_same_lock() {
        fn named(name: impl AsLockName) -> LockName {
            name.as_lock_name().unwrap().into_owned()
        }
        let name = LockName::new("a").unwrap();
        let (text, borrowed) = ("a".to_owned(), &"a");
        let (boxed, shared): (Box<str>, Arc<str>) = ("a".into(), "a".into());
        for other in [
            named("a"),
            named(borrowed),
            named(&text),
            named(text),
            named(Cow::Borrowed("a")),
            named(&boxed),
            named(shared),
            named(&name),
            "a".parse().unwrap(),
            LockName::try_from("a").unwrap(),
            LockName::try_from("a".to_owned()).unwrap(),
        ] {
            assert_eq!(other, name);
        }
        assert!(matches!(name.as_lock_name(), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn a_map_finds_a_name_by_its_text() {
        let name = LockName::new("자리 42").unwrap();
        assert!(std::collections::HashSet::from([name]).contains("자리 42"));
    }
}
