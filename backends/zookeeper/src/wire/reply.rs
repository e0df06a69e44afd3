//! Replies of a server.

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::senseless;

use super::jute::Decoder;

/// The number of an error in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) i32);

impl Code {
    pub(crate) const NO_NODE: Self = Self(-101);
    pub(crate) const BAD_VERSION: Self = Self(-103);
    pub(crate) const NODE_EXISTS: Self = Self(-110);
    /// In a transaction: a part after the one that failed.
    const AFTER_ANOTHER: Self = Self(-2);

    /// Returns the error, with advice.
    pub(crate) fn error(self) -> Error {
        use ErrorKind::{Incompatible, PermissionDenied, Unavailable};
        let (kind, text) = match self.0 {
            -102 => (
                PermissionDenied,
                "this user may not read and write the nodes of the locks; give the user and password that made them, or have an administrator change their ACL",
            ),
            -114 | -115 | -124 => (
                PermissionDenied,
                "the server does not accept this login; check `user` and `password`, and that it has the scheme `digest`",
            ),
            -101 => (
                Unavailable,
                "the nodes of the locks were deleted meanwhile; try again",
            ),
            -119 => (
                Unavailable,
                "this member is cut off from the others and takes no writes; try again later",
            ),
            -112 | -118 => (
                Unavailable,
                "the session of the connection has ended; try again",
            ),
            -125 => (
                Unavailable,
                "the quota of the node is used up; raise it (`setquota`), or use another path in the URL",
            ),
            -4 | -5 | -7 | -127 => (
                Unavailable,
                "the server could not serve the request; try again",
            ),
            -6 => (
                Incompatible,
                "the server lacks what a lock needs; ZooKeeper from 3.5 on has it",
            ),
            _ => (
                Incompatible,
                "the server refuses what a lock needs; is it ZooKeeper from 3.5 on?",
            ),
        };
        Error::new(kind, format!("{text} (ZooKeeper's error {})", self.0))
    }
}

/// What a server says of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// How often its value was changed.
    pub(crate) version: i32,
    /// The time of the leader when its value was changed, in milliseconds since 1970.
    pub(crate) modified: i64,
}

impl Stat {
    fn read(from: &mut Decoder<'_>) -> Option<Self> {
        // The transactions that created and modified it, and the time of its creation.
        let _ = (from.long()?, from.long()?, from.long()?);
        let modified = from.long()?;
        let version = from.int()?;
        Some(Self { version, modified })
    }
}

/// A reply to a request.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// The number of the request.
    pub(crate) number: i32,
    /// The last transaction that the member knows.
    pub(crate) zxid: i64,
    code: Code,
    body: Vec<u8>,
}

impl Reply {
    /// Reads a message.
    pub(crate) fn read(message: &[u8]) -> Option<Self> {
        let mut from = Decoder(message);
        Some(Self {
            number: from.int()?,
            zxid: from.long()?,
            code: Code(from.int()?),
            body: from.0.to_vec(),
        })
    }

    /// Returns the error, if it is one.
    pub(crate) fn done(&self) -> Result<(), Code> {
        match self.code {
            Code(0) => Ok(()),
            code => Err(code),
        }
    }

    /// Returns the path of the node that was made.
    pub(crate) fn created(&self) -> Result<String, Error> {
        self.done().map_err(Code::error)?;
        Decoder(&self.body).text().ok_or_else(senseless)
    }

    fn found<T>(
        &self,
        read: impl FnOnce(&mut Decoder<'_>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        match self.code {
            Code(0) => read(&mut Decoder(&self.body))
                .map(Some)
                .ok_or_else(senseless),
            Code::NO_NODE => Ok(None),
            code => Err(code.error()),
        }
    }

    /// Returns the state of a node, if it exists.
    pub(crate) fn stat(&self) -> Result<Option<Stat>, Error> {
        self.found(Stat::read)
    }

    /// Returns the value and the state of a node, if it exists. A value that is no text is empty.
    pub(crate) fn data(&self) -> Result<Option<(String, Stat)>, Error> {
        self.found(|from| {
            let value = str::from_utf8(from.buffer()?).unwrap_or_default();
            Some((value.to_owned(), Stat::read(from)?))
        })
    }

    /// Returns the names of the children of a node, if it exists.
    pub(crate) fn children(&self) -> Result<Option<Vec<String>>, Error> {
        self.found(|from| {
            let count = from.int()?;
            (0..count).map(|_| from.text()).collect()
        })
    }

    /// Returns the schemes and ids of those that have rights of a node, if it exists.
    pub(crate) fn acl(&self) -> Result<Option<Vec<(String, String)>>, Error> {
        self.found(|from| {
            let count = from.int()?;
            let entry = |from: &mut Decoder<'_>| {
                from.int()?;
                Some((from.text()?, from.text()?))
            };
            (0..count).map(|_| entry(from)).collect()
        })
    }

    /// Returns whether a transaction was done, or the error of its first part that failed.
    pub(crate) fn transaction(&self) -> Result<Result<(), Code>, Error> {
        if let Err(code) = self.done() {
            return Ok(Err(code));
        }
        let mut from = Decoder(&self.body);
        loop {
            let (kind, is_last) = (from.int(), from.flag());
            let _ = from.int().ok_or_else(senseless)?;
            // All parts of a transaction that was not done are errors.
            if kind != Some(-1) || is_last != Some(false) {
                return Ok(Ok(()));
            }
            match Code(from.int().ok_or_else(senseless)?) {
                Code(0) | Code::AFTER_ANOTHER => {}
                code => return Ok(Err(code)),
            }
        }
    }

    /// Returns the path of the node that changed, and whether it was deleted, if this is a notice.
    pub(crate) fn changed(&self) -> Option<(String, bool)> {
        const NODE_DELETED: i32 = 2;
        let mut from = Decoder(&self.body);
        let kind = from.int()?;
        // The state of the connection.
        let _ = from.int()?;
        Some((from.text()?, kind == NODE_DELETED))
    }
}
