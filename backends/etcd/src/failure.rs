//! The meaning of the server's errors, with advice.

use std::error::Error as StdError;
use std::fmt;

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Failure, Server, nothing_granted};
use serde_json::Value;

/// What an error of the server says about the request.
pub(crate) enum Meaning {
    /// The login has expired; nothing was done.
    LoginGone,
    /// This member cannot serve, and another one may; nothing was done.
    MemberUnfit(Error),
    Other(Failure),
}

/// The refusals after which a request is made in another way. Each is the source of its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The lease that a key was to be bound to has ended.
    LeaseGone,
    /// The transaction has more operations than the server takes.
    TooManyOperations,
    /// The database is full.
    Full,
    NoLeader,
}

impl Refusal {
    /// Returns the refusal that an error is about.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        error.source()?.downcast_ref().copied()
    }

    /// Returns whether a request failed by this refusal.
    pub(crate) fn is_in<T>(self, result: &Result<T, Failure>) -> bool {
        let error = result.as_ref().err().map(Failure::error);
        error.and_then(Self::of) == Some(self)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseGone => "the lease has ended",
            Self::TooManyOperations => "the transaction has too many operations",
            Self::Full => "the database is full",
            Self::NoLeader => "there is no leader",
        })
    }
}

impl StdError for Refusal {}

/// Returns the error of a request on opening, which cannot have granted anything.
pub(crate) fn at_opening(failure: Failure) -> Error {
    let cause = failure.error().source();
    let cause = cause.and_then(|cause| cause.downcast_ref::<Error>());
    match cause {
        Some(cause) if cause.kind() == ErrorKind::Incompatible => cause.clone(),
        _ => nothing_granted(failure),
    }
}

/// Reads what is no reply to the request: an error of the gateway is a status other than 200, and a JSON object with
/// the text.
pub(crate) fn meaning(server: &Server, status: u16, body: &[u8]) -> Meaning {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    // The last one is that of a stream, such as a keep-alive.
    let texts = ["/message", "/error", "/error/message"];
    let mut texts = texts.into_iter().map(|at| body.pointer(at));
    let Some(said) = texts.find_map(|text| text?.as_str()) else {
        return without_text(server, status);
    };
    let has = |text| said.contains(text);
    let error = |kind, advice: &str| Error::new(kind, format!("{advice} (etcd says: {said})"));
    let refused = |kind, advice| Meaning::Other(Failure::Refused(error(kind, advice)));
    let refused_as = |refusal, kind, advice| {
        Meaning::Other(Failure::Refused(error(kind, advice).with_source(refusal)))
    };
    let unfit = |advice: &str| {
        let text = format!("{server} {advice} (etcd says: {said})");
        Meaning::MemberUnfit(Error::new(ErrorKind::Unavailable, text))
    };
    if has("requested lease not found") {
        refused_as(
            Refusal::LeaseGone,
            ErrorKind::Unavailable,
            "the lease of this process has ended; try again, with a longer ttl where this happens often",
        )
    } else if has("too many operations") {
        refused_as(
            Refusal::TooManyOperations,
            ErrorKind::Incompatible,
            "the server takes too few operations in a transaction; start etcd with --max-txn-ops=128 or more",
        )
    } else if has("invalid auth token")
        || has("revision of auth store is old")
        || has("auth: revision")
    {
        Meaning::LoginGone
    } else if has("no leader") || has("not leader") {
        let text = format!(
            "{server} has no leader to follow; are most of the members up and connected? (etcd says: {said})"
        );
        let error = Error::new(ErrorKind::Unavailable, text);
        Meaning::MemberUnfit(error.with_source(Refusal::NoLeader))
    } else if has("too many requests") {
        unfit("has more requests under way than it takes")
    } else if has("not ready") || has("unhealthy cluster") {
        unfit("is not ready")
    } else if has("not supported for learner") {
        unfit("is a learner, which serves no client; promote it, or leave it out of the URL")
    // The leader takes no request while it hands its office over.
    } else if has("proposal dropped") {
        unfit("is changing its leader")
    // A member that stops says so also after it has proposed the request.
    } else if [
        "timed out",
        "leader changed",
        "context",
        "transport",
        "server stopped",
    ]
    .into_iter()
    .any(has)
    {
        Meaning::Other(unanswered(server, &format!("etcd says: {said}")))
    } else if has("database space exceeded") || has("NOSPACE") {
        refused_as(
            Refusal::Full,
            ErrorKind::Unavailable,
            "the cluster's database is full and takes no writes; compact and defragment it, or raise its quota, and then disarm the alarm",
        )
    } else if has("authentication failed") {
        refused(
            ErrorKind::PermissionDenied,
            "the cluster does not accept this user and password; check `user` and `password`",
        )
    } else if has("authentication is not enabled") {
        refused(
            ErrorKind::PermissionDenied,
            "the cluster has no authentication; leave `user` and `password` out, or enable it there",
        )
    } else if has("user name is empty") {
        refused(
            ErrorKind::PermissionDenied,
            "the cluster wants a user and a password; give them in the URL",
        )
    } else if has("permission denied") {
        refused(
            ErrorKind::PermissionDenied,
            "the user may not read and write the keys of the locks; grant its role readwrite on the prefix lockkeeper/",
        )
    } else if status == 404 || has("unknown field") || has("Not Found") {
        refused(
            ErrorKind::Incompatible,
            "the server lacks what a lock needs; etcd from 3.4 on has it",
        )
    // A member that stops has several texts: "the client connection is closing" has the code of a cancelled call. What
    // has failed inside of the server, or is the text of something in front of it, may have been carried out.
    } else if matches!(grpc_code(&body), Some(CANCELED | UNAVAILABLE)) || may_be_done(status) {
        Meaning::Other(unanswered(server, &format!("etcd says: {said}")))
    } else {
        refused(ErrorKind::Incompatible, "the server refuses")
    }
}

/// Codes of gRPC.
const CANCELED: i64 = 1;
const UNAVAILABLE: i64 = 14;

/// Returns the code in an error. That of a stream is named otherwise by etcd 3.4.
fn grpc_code(body: &Value) -> Option<i64> {
    let mut codes = ["/code", "/error/grpc_code", "/error/code"].into_iter();
    codes.find_map(|at| body.pointer(at)?.as_i64())
}

/// Returns whether a request with this status may have reached a member. What is in front of it refuses by the other
/// ones of 400 to 499, and passes the request on before it has any other one.
fn may_be_done(status: u16) -> bool {
    !(400..500).contains(&status) || matches!(status, 408 | 429)
}

/// Returns the meaning of what has no text of etcd. A proxy may have said it.
fn without_text(server: &Server, status: u16) -> Meaning {
    let wrong = server.wrong_protocol(&format!(" (HTTP status {status}), from 3.4 on"));
    Meaning::Other(match (may_be_done(status), status) {
        (false, _) => Failure::Refused(wrong),
        // A proxy without a reply, or one that waits until its server is there.
        (true, 408 | 429 | 500..) => unanswered(server, &format!("HTTP status {status}")),
        (true, _) => {
            let failure = unanswered(server, "its reply is not that of etcd");
            Failure::Unanswered(failure.into_error().with_source(wrong))
        }
    })
}

/// Returns the failure of a request that the server may have carried out. `why` is what tells so.
fn unanswered(server: &Server, why: &str) -> Failure {
    let text = format!(
        "{server} could not tell in time whether it carried out the request; what that granted ends with its ttl ({why})"
    );
    Failure::Unanswered(Error::new(ErrorKind::Unknown, text))
}

#[cfg(test)]
mod tests {
    use lockkeeper_remote::Endpoint;

    use super::*;

    fn read(status: u16, body: &str) -> Meaning {
        let server = Server::new("etcd", &Endpoint::tcp("host", 1));
        meaning(&server, status, body.as_bytes())
    }

    #[test]
    fn member_that_stops_may_have_carried_out_the_request() {
        let meaning = read(503, r#"{"error":"etcdserver: server stopped","code":14}"#);
        assert!(matches!(meaning, Meaning::Other(Failure::Unanswered(_))));
    }

    /// The texts of learners are those of etcd 3.4.23 and 3.5.30, the others those of 3.4.23 when the leadership moves and
    /// when a member ends by SIGTERM.
    #[test]
    fn member_that_may_be_followed_by_another_is_left() {
        let dropped = r#"{"error":"raft proposal dropped","code":2}"#;
        assert!(matches!(read(500, dropped), Meaning::MemberUnfit(_)));
        for learner in [
            r#"{"code":14, "message":"etcdserver: rpc not supported for learner"}"#,
            r#"{"error":{"code":14,"message":"etcdserver: rpc not supported for learner"}}"#,
        ] {
            assert!(matches!(read(503, learner), Meaning::MemberUnfit(_)));
        }
        for stopped in [
            r#"{"error":"grpc: the client connection is closing","code":1}"#,
            r#"{"error":{"grpc_code":14,"message":"a text of tomorrow"}}"#,
            r#"{"error":{"code":14,"message":"a text of tomorrow"}}"#,
        ] {
            let meaning = read(503, stopped);
            assert!(matches!(meaning, Meaning::Other(Failure::Unanswered(_))));
        }
        let refused = read(400, r#"{"error":"a text of tomorrow","code":3}"#);
        assert!(matches!(refused, Meaning::Other(Failure::Refused(_))));
    }

    #[test]
    fn what_is_no_reply_of_etcd_may_have_been_carried_out() {
        let html = "<html>Bad Gateway</html>";
        let json = r#"{"message":"API rate limit exceeded"}"#;
        for (status, body) in [
            (200, html),
            (200, "{}"),
            (302, html),
            (429, json),
            (429, html),
            (500, html),
            (500, r#"{"error":"a text of tomorrow","code":2}"#),
            (502, html),
            (503, html),
            (504, html),
        ] {
            let Meaning::Other(failure @ Failure::Unanswered(_)) = read(status, body) else {
                panic!("{status} {body}");
            };
            assert_eq!(failure.error().kind(), ErrorKind::Unknown);
            let at_opening = at_opening(failure).kind();
            let is_etcd = status >= 400;
            assert_eq!(at_opening == ErrorKind::Unavailable, is_etcd, "{status}");
            assert_eq!(at_opening == ErrorKind::Incompatible, !is_etcd, "{status}");
        }
        let other = read(404, "no such page");
        assert!(matches!(other, Meaning::Other(Failure::Refused(_))));
    }

    #[test]
    fn refusals_are_known_by_their_source() {
        for (body, refusal) in [
            ("etcdserver: requested lease not found", Refusal::LeaseGone),
            (
                "etcdserver: too many operations in txn request",
                Refusal::TooManyOperations,
            ),
            ("etcdserver: mvcc: database space exceeded", Refusal::Full),
        ] {
            let body = format!(r#"{{"error":"{body}"}}"#);
            let Meaning::Other(failure @ Failure::Refused(_)) = read(400, &body) else {
                panic!("{body}");
            };
            assert_eq!(Refusal::of(failure.error()), Some(refusal));
        }
    }

    #[test]
    fn error_of_a_stream_is_read() {
        let body = r#"{"error":{"grpc_code":16,"message":"etcdserver: invalid auth token"}}"#;
        assert!(matches!(read(401, body), Meaning::LoginGone));
    }
}
