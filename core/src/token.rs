//! Fencing tokens: numbers by which a store of data can refuse a late writer.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind};

/// How many bits of a token count the hand-overs of one lease.
const HANDOVER_BITS: u32 = 7;
/// The largest number of hand-overs of one lease that the low bits of a token can count.
pub const MAX_HANDOVERS: u32 = (1 << HANDOVER_BITS) - 1;
/// The largest epoch that a store may mint: 56 bits, so that a token stays positive in an `i64`.
pub const MAX_EPOCH: u64 = (1 << 56) - 1;
/// A second has two to this power epochs, as in MySQL's `UUID_SHORT()`.
const SECOND_BITS: u32 = 24;

/// Returns the epoch of a time: the number of 2^-24 s (60 ns) since 1970-01-01 00:00 UTC. It is at
/// least 1, also before 1970, and at most [`MAX_EPOCH`], also after 2106-02-07.
///
/// All stores count in this unit, which is that of MySQL's `UUID_SHORT()`. So tokens keep growing when
/// the locks move from one kind of store to another. A backend that has no better counter mints
/// `max(epoch_at(now), last + 1)`. Then epochs also grow when the clock steps back, and when the store
/// has forgotten its last epoch.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// # mod backend { pub use lockkeeper_core::epoch_at; }
/// use std::time::{Duration, UNIX_EPOCH};
/// use backend::epoch_at;
///
/// assert_eq!(epoch_at(UNIX_EPOCH + Duration::from_millis(1_500)), 3 << 23);
/// ```
pub fn epoch_at(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    epochs_in(since).clamp(1, MAX_EPOCH)
}

/// Returns how much an epoch that follows the clock grows in `time`, rounded down: the number of 2^-24 s in
/// it, at most `u64::MAX`.
pub fn epochs_in(time: Duration) -> u64 {
    let nanos = (u64::from(time.subsec_nanos()) << SECOND_BITS) / 1_000_000_000;
    let seconds = time.as_secs().checked_mul(1 << SECOND_BITS);
    seconds.map_or(u64::MAX, |seconds| seconds | nanos)
}

/// Adds the keeper's `epoch_offset` to an epoch. The result may be larger than [`MAX_EPOCH`].
pub(crate) fn offset_epoch(epoch: u64, offset: Duration) -> u64 {
    epoch.saturating_add(epochs_in(offset))
}

/// A number that grows with every grant of a name: to other threads, processes and hosts, and
/// after the store was restarted or wiped.
///
/// Write it beside the data that the lock protects, and refuse a write whose token is smaller than
/// the stored one. Then a holder that lost its lock without noticing cannot overwrite what the next
/// holder wrote. (Martin Kleppmann, *How to do distributed locking*, 2016.)
///
/// Always above zero, and fits a signed 64-bit column. It serializes as text (feature `serde`),
/// since JavaScript rounds larger numbers than 2^53.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::FencingToken;
///
/// let stored: u64 = 16_384;
/// let token = FencingToken::try_from(stored)?;
/// assert_eq!(token, "16384".parse()?);
/// assert_eq!(u64::from(token), stored);
/// # Ok::<(), lockkeeper::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "String", try_from = "String"))]
pub struct FencingToken(u64);

impl FencingToken {
    /// Composes the first token of a grant whose epoch the store has minted.
    pub(crate) fn first(epoch: u64, offset: Duration) -> Result<Self, Error> {
        let token = Self::new(epoch, 0)?;
        if offset.is_zero() {
            return Ok(token);
        }
        Self::new(offset_epoch(epoch, offset), 0).map_err(|_| {
            let left = (MAX_EPOCH - epoch) >> SECOND_BITS;
            Error::new(
                ErrorKind::InvalidValue,
                format!(
                    "`epoch_offset` is {offset:?}, and a token has room for {left} s at this epoch of the \
                     store; set a smaller one"
                ),
            )
        })
    }

    /// Composes a token, `epoch << 7 | handovers`: the store mints the epoch, the engine counts the
    /// hand-overs.
    pub(crate) fn new(epoch: u64, handovers: u32) -> Result<Self, Error> {
        if epoch == 0 || epoch > MAX_EPOCH || handovers > MAX_HANDOVERS {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "the store minted the epoch {epoch}, which is not within 1 to {MAX_EPOCH}; \
                     this is a defect of the backend, please report it"
                ),
            ));
        }
        Ok(Self(epoch << HANDOVER_BITS | u64::from(handovers)))
    }

    /// Returns the token after `handovers` hand-overs of the lease whose first token this is.
    pub(crate) fn after_handovers(self, handovers: u32) -> Self {
        Self(self.0 | u64::from(handovers.min(MAX_HANDOVERS)))
    }

    /// Returns the number, from 128 to `i64::MAX`.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Returns the number for a signed column; never negative.
    pub fn as_i64(self) -> i64 {
        // 56 + 7 bits: the sign bit is never set.
        self.0.cast_signed()
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl TryFrom<u64> for FencingToken {
    type Error = Error;

    /// Reads a token that was stored as a number.
    fn try_from(number: u64) -> Result<Self, Error> {
        let handovers = number as u32 & MAX_HANDOVERS;
        Self::new(number >> HANDOVER_BITS, handovers).map_err(|_| not_a_token(&number.to_string()))
    }
}

impl FromStr for FencingToken {
    type Err = Error;

    /// Reads a token that was stored as text.
    fn from_str(text: &str) -> Result<Self, Error> {
        let number = text.parse::<u64>().map_err(|_| not_a_token(text))?;
        Self::try_from(number)
    }
}

fn not_a_token(given: &str) -> Error {
    Error::new(
        ErrorKind::InvalidValue,
        format!(
            "{given:?} is not a fencing token; a token is a number from {} to {}",
            1_u64 << HANDOVER_BITS,
            i64::MAX
        ),
    )
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<String> for FencingToken {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<FencingToken> for String {
    fn from(token: FencingToken) -> String {
        token.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_by_hand_over_and_by_epoch_and_stays_positive() {
        let token = |epoch, handovers| {
            FencingToken::new(epoch, 0)
                .unwrap()
                .after_handovers(handovers)
        };
        assert_eq!(token(7, 3), FencingToken::new(7, 3).unwrap());
        assert!(token(1, 0) < token(1, 1));
        assert!(token(1, MAX_HANDOVERS) < token(2, 0));
        assert!(token(MAX_EPOCH, MAX_HANDOVERS).as_i64() == i64::MAX);
        for (epoch, handovers) in [(0, 0), (MAX_EPOCH + 1, 0), (1, MAX_HANDOVERS + 1)] {
            let error = FencingToken::new(epoch, handovers).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible);
        }
    }

    #[test]
    fn epoch_of_a_time_is_in_the_unit_of_uuid_short() {
        let at = |nanos| epoch_at(UNIX_EPOCH + Duration::from_nanos(nanos));
        assert_eq!([at(0), at(59), at(60)], [1, 1, 1]);
        assert_eq!([at(120), at(1_000_000_000)], [2, 1 << 24]);
        assert_eq!(at(999_999_999), (1 << 24) - 1);
        assert_eq!(epoch_at(UNIX_EPOCH - Duration::from_secs(1)), 1);
        let end = UNIX_EPOCH + Duration::from_secs(1 << 32);
        assert_eq!(epoch_at(end), MAX_EPOCH);
        assert_eq!(
            epoch_at(end - Duration::from_secs(1)),
            MAX_EPOCH + 1 - (1 << 24)
        );
        assert_eq!(epochs_in(Duration::MAX), u64::MAX);
    }

    #[test]
    fn offset_moves_tokens_within_their_56_bits() {
        let hour = Duration::from_secs(3_600);
        let epoch = epoch_at(UNIX_EPOCH + hour);
        let moved = FencingToken::first(epoch, hour).unwrap();
        assert_eq!(moved, FencingToken::new(2 * epoch, 0).unwrap());
        let largest = MAX_EPOCH - 2 * epoch;
        assert!(FencingToken::first(largest, 2 * hour).unwrap() > moved);
        let error = FencingToken::first(largest + 1, 2 * hour).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
        assert!(error.to_string().contains("room for 7199 s"), "{error}");
        // What the store minted is not the user's mistake.
        for epoch in [0, MAX_EPOCH + 1] {
            let error = FencingToken::first(epoch, hour).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible);
        }
    }

    #[test]
    fn stored_token_is_read_back() {
        let token = FencingToken::new(7, 3).unwrap();
        assert_eq!(FencingToken::try_from(u64::from(token)).unwrap(), token);
        assert_eq!(token.to_string().parse::<FencingToken>().unwrap(), token);
        for text in ["", "0", "127", "-1", "9223372036854775808", "x"] {
            let error = text.parse::<FencingToken>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidValue, "{text}");
        }
        #[cfg(feature = "serde")]
        {
            let text = serde_json::to_string(&token).unwrap();
            assert_eq!(text, format!("\"{token}\""));
            assert_eq!(serde_json::from_str::<FencingToken>(&text).unwrap(), token);
        }
    }
}
