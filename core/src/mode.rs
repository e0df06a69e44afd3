//! The mode of an acquisition, which decides beside which other holders it is granted.

use std::fmt;

use crate::capabilities::{Capabilities, Capability};
use crate::error::{Error, ErrorKind};

/// The largest limit of a semaphore.
pub const MAX_PERMITS: u32 = 65_535;

/// The mode of an acquisition: it decides beside which other holders of the name the acquisition is granted.
///
/// Exclusive and shared acquisitions of a name are about the same lock. The permits of a semaphore are
/// independent of the lock of the same name.
///
/// Acquisitions are granted in the order in which they came, whatever their modes. An acquisition that could be
/// granted beside the present holders still waits behind an earlier one that cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Granted if there is no other holder.
    #[default]
    Exclusive,
    /// Granted beside any number of shared holders. The threads of a process that share a name need one
    /// lease.
    Shared,
    /// Granted beside fewer than `limit` other permits.
    Permit {
        /// The limit, from 1 to [`MAX_PERMITS`]. All programs must use the same limit for a name.
        limit: u32,
    },
}

impl Mode {
    /// Returns whether it is a permit, which is independent of the lock of the same name.
    pub const fn is_permit(self) -> bool {
        matches!(self, Mode::Permit { .. })
    }

    /// Returns the limit of a permit.
    pub const fn limit(self) -> Option<u32> {
        match self {
            Mode::Permit { limit } => Some(limit),
            Mode::Exclusive | Mode::Shared => None,
        }
    }

    pub(crate) fn check(self, capabilities: &Capabilities) -> Result<(), Error> {
        let (capability, limit) = match self {
            Mode::Exclusive => return Ok(()),
            Mode::Shared => (Capability::Shared, 1),
            Mode::Permit { limit } => (Capability::Permits, limit),
        };
        let (kind, text) = if limit == 0 || limit > MAX_PERMITS {
            let text = format!("a semaphore cannot have {limit} permits; use 1 to {MAX_PERMITS}");
            (ErrorKind::InvalidLimit, text)
        } else if !capabilities.has(capability) {
            let text = format!(
                "this store does not have the capability {capability}; {}, or an exclusive lock",
                capability.advice()
            );
            (ErrorKind::Unsupported, text)
        } else if limit > capabilities.max_permits() {
            let text = format!(
                "this store takes semaphores of up to {} permits, and {limit} were asked for; use a lower limit, or another store",
                capabilities.max_permits()
            );
            (ErrorKind::Unsupported, text)
        } else {
            return Ok(());
        };
        Err(Error::new(kind, text))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Permit { .. } => "permit",
        })
    }
}

/// Returns the error of an acquisition of a permit while permits of another limit are held.
pub fn limit_mismatch(limit: u32, held: u32) -> Error {
    Error::new(
        ErrorKind::LimitMismatch,
        format!(
            "a permit of {limit} was asked for while permits of {held} are held; use the same limit in all programs, or wait until no permit is held to change it"
        ),
    )
}
