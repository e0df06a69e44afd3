//! Requests to a server.

use super::jute::put_buffer;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const GET_ACL: i32 = 6;
const GET_CHILDREN: i32 = 8;
const SYNC: i32 = 9;
const PING: i32 = 11;
const CHECK: i32 = 13;
const MULTI: i32 = 14;
const AUTH: i32 = 100;
const CLOSE: i32 = -11;

/// All rights of a node.
const ALL_RIGHTS: i32 = 31;

/// Who has all rights of the nodes that are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acl {
    /// Every client.
    Anyone,
    /// Clients with the user and password of the connection.
    Creator,
}

/// A request without the number under which it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    kind: i32,
    body: Vec<u8>,
}

impl Request {
    fn about(kind: i32, path: &str) -> Self {
        let mut body = Vec::new();
        put_buffer(&mut body, path.as_bytes());
        Self { kind, body }
    }

    fn int(mut self, number: i32) -> Self {
        self.body.extend(number.to_be_bytes());
        self
    }

    fn buffer(mut self, bytes: &[u8]) -> Self {
        put_buffer(&mut self.body, bytes);
        self
    }

    fn flag(mut self, flag: bool) -> Self {
        self.body.push(flag.into());
        self
    }

    pub(crate) fn create(path: &str, value: &str, acl: Acl, is_ephemeral: bool) -> Self {
        Self::create_as(path, value, acl, is_ephemeral.into())
    }

    /// Makes an ephemeral node, with the next number of its folder at the end of `path`.
    pub(crate) fn create_numbered(path: &str, acl: Acl) -> Self {
        Self::create_as(path, "", acl, 3)
    }

    fn create_as(path: &str, value: &str, acl: Acl, flags: i32) -> Self {
        let (scheme, id) = match acl {
            Acl::Anyone => ("world", "anyone"),
            Acl::Creator => ("auth", ""),
        };
        let request = Self::about(CREATE, path).buffer(value.as_bytes());
        let request = request.int(1).int(ALL_RIGHTS).buffer(scheme.as_bytes());
        request.buffer(id.as_bytes()).int(flags)
    }

    /// Deletes a node if its value has this version, or any if the version is -1.
    pub(crate) fn delete(path: &str, version: i32) -> Self {
        Self::about(DELETE, path).int(version)
    }

    /// Asks for the state of a node, and for a notice of its next change if it `watches`.
    pub(crate) fn exists(path: &str, watches: bool) -> Self {
        Self::about(EXISTS, path).flag(watches)
    }

    /// Asks for the value of a node, and for a notice of its next change if it `watches` and the node exists.
    pub(crate) fn get(path: &str, watches: bool) -> Self {
        Self::about(GET_DATA, path).flag(watches)
    }

    /// Sets a value under the condition of [`delete`](Self::delete).
    pub(crate) fn set(path: &str, value: &str, version: i32) -> Self {
        Self::about(SET_DATA, path)
            .buffer(value.as_bytes())
            .int(version)
    }

    pub(crate) fn acl(path: &str) -> Self {
        Self::about(GET_ACL, path)
    }

    pub(crate) fn children(path: &str) -> Self {
        Self::about(GET_CHILDREN, path).flag(false)
    }

    /// Makes the member know all that the leader does, before it answers what follows on the connection.
    pub(crate) fn sync(path: &str) -> Self {
        Self::about(SYNC, path)
    }

    /// Requires that a node exists, and has this version, or any if the version is -1. Only in [`multi`](Self::multi).
    pub(crate) fn check(path: &str, version: i32) -> Self {
        Self::about(CHECK, path).int(version)
    }

    /// Does all or nothing.
    pub(crate) fn multi(parts: &[Self]) -> Self {
        let mut multi = Self {
            kind: MULTI,
            body: Vec::new(),
        };
        for part in parts {
            multi = multi.int(part.kind).flag(false).int(-1);
            multi.body.extend(&part.body);
        }
        multi.int(-1).flag(true).int(-1)
    }

    pub(crate) fn ping() -> Self {
        Self {
            kind: PING,
            body: Vec::new(),
        }
    }

    pub(crate) fn close() -> Self {
        Self {
            kind: CLOSE,
            body: Vec::new(),
        }
    }

    /// Gives the connection an identity: a user, a colon and a password.
    pub(crate) fn auth(digest: &str) -> Self {
        let kind = AUTH;
        let request = Self {
            kind,
            body: Vec::new(),
        };
        request.int(0).buffer(b"digest").buffer(digest.as_bytes())
    }

    /// Returns whether the request changes nothing on the server, so that it can be repeated.
    pub(crate) fn only_reads(&self) -> bool {
        matches!(
            self.kind,
            EXISTS | GET_DATA | GET_ACL | GET_CHILDREN | SYNC | PING
        )
    }

    /// Adds the whole message. The server repeats the number in its reply.
    pub(crate) fn put(&self, number: i32, to: &mut Vec<u8>) {
        let mut message = number.to_be_bytes().to_vec();
        message.extend(self.kind.to_be_bytes());
        message.extend(&self.body);
        put_buffer(to, &message);
    }
}
