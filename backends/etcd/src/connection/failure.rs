//! The meaning of the server's errors, with advice.

use std::error::Error as StdError;
use std::fmt;

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Failure, Server, nothing_granted};
use serde_json::Value;

/// The meaning of a server's error for the request.
pub(super) enum Meaning {
    /// The login has expired; nothing was done.
    LoginGone,
    /// This member cannot serve, and another one may; nothing was done.
    MemberUnfit(Error),
    Other(Failure),
}

/// The refusals after which a request is repeated in another way. Each is the source of its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The lease for a key has ended.
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

/// The meaning of one of the server's texts.
enum Verdict {
    LoginGone,
    /// The member cannot serve. The text follows its address.
    Unfit(&'static str),
    /// The request may have been carried out.
    Unanswered,
    /// The request was refused. The text says what to do.
    Refused(ErrorKind, &'static str),
    /// As `Refused`, or as `Unfit` without a leader.
    Known(Refusal, &'static str),
}

/// Returns what a text of the server says, if it is known.
fn verdict(said: &str) -> Option<Verdict> {
    use ErrorKind::{Incompatible, PermissionDenied};
    use Verdict::{Known, LoginGone, Refused, Unanswered, Unfit};
    let has = |texts: &[&str]| texts.iter().any(|text| said.contains(text));
    Some(match () {
        () if has(&["requested lease not found"]) => Known(
            Refusal::LeaseGone,
            "the lease of this process has ended; try again, with a longer ttl where this happens often",
        ),
        () if has(&["too many operations"]) => Known(
            Refusal::TooManyOperations,
            "the server takes too few operations in a transaction; start etcd with --max-txn-ops=128 or more",
        ),
        () if has(&["invalid auth token", "auth store is old", "auth: revision"]) => LoginGone,
        () if has(&["no leader", "not leader"]) => Known(
            Refusal::NoLeader,
            "has no leader to follow; are most of the members up and connected?",
        ),
        () if has(&["too many requests"]) => Unfit("has more requests under way than it takes"),
        () if has(&["not ready", "unhealthy cluster"]) => Unfit("is not ready"),
        () if has(&["not supported for learner"]) => {
            Unfit("is a learner, which serves no client; promote it, or leave it out of the URL")
        }
        // The leader takes no requests while it transfers the leadership.
        () if has(&["proposal dropped"]) => Unfit("is changing its leader"),
        () if has(&["timed out", "leader changed", "context", "transport"]) => Unanswered,
        // A member that stops says so also after it has proposed the request.
        () if has(&["server stopped"]) => Unanswered,
        () if has(&["database space exceeded", "NOSPACE"]) => Known(
            Refusal::Full,
            "the cluster's database is full and takes no writes; compact and defragment it, or raise its quota, and then disarm the alarm",
        ),
        () if has(&["authentication failed"]) => Refused(
            PermissionDenied,
            "the cluster does not accept this user and password; check `user` and `password`",
        ),
        () if has(&["authentication is not enabled"]) => Refused(
            PermissionDenied,
            "the cluster has no authentication; leave `user` and `password` out, or enable it there",
        ),
        () if has(&["user name is empty"]) => Refused(
            PermissionDenied,
            "the cluster wants a user and a password; give them in the URL",
        ),
        () if has(&["permission denied"]) => Refused(
            PermissionDenied,
            "the user may not read and write the keys of the locks; grant its role readwrite on the prefix lockkeeper/",
        ),
        () if has(&["unknown field", "Not Found"]) => Refused(Incompatible, LACKING),
        () => return None,
    })
}

const LACKING: &str = "the server lacks what a lock needs; etcd from 3.4 on has it";

/// Reads a reply that is an error. The gateway's errors have another status than 200, and a JSON object with the
/// text.
pub(super) fn meaning(server: &Server, status: u16, body: &[u8]) -> Meaning {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    // The last one is that of a stream, such as a keep-alive.
    let texts = ["/message", "/error", "/error/message"];
    let mut texts = texts.into_iter().map(|at| body.pointer(at));
    let Some(said) = texts.find_map(|text| text?.as_str()) else {
        return without_text(server, status);
    };
    let unknown = || match status {
        404 => Verdict::Refused(ErrorKind::Incompatible, LACKING),
        // A member that stops has several texts: "the client connection is closing" has the code of a cancelled
        // call. A request that failed inside the server, or got the reply of a proxy, may have been carried out.
        _ if is_stopping(&body) || may_be_done(status) => Verdict::Unanswered,
        _ => Verdict::Refused(ErrorKind::Incompatible, "the server refuses"),
    };
    let error = |kind, what: &str| Error::new(kind, format!("{what} (etcd says: {said})"));
    let unfit = |why| error(ErrorKind::Unavailable, &format!("{server} {why}"));
    Meaning::Other(match verdict(said).unwrap_or_else(unknown) {
        Verdict::LoginGone => return Meaning::LoginGone,
        Verdict::Unfit(why) => return Meaning::MemberUnfit(unfit(why)),
        Verdict::Known(refusal @ Refusal::NoLeader, why) => {
            return Meaning::MemberUnfit(unfit(why).with_source(refusal));
        }
        Verdict::Known(refusal, advice) => {
            let kind = match refusal {
                Refusal::TooManyOperations => ErrorKind::Incompatible,
                _ => ErrorKind::Unavailable,
            };
            Failure::Refused(error(kind, advice).with_source(refusal))
        }
        Verdict::Refused(kind, advice) => Failure::Refused(error(kind, advice)),
        Verdict::Unanswered => unanswered(server, &format!("etcd says: {said}")),
    })
}

/// Codes of gRPC.
const CANCELED: i64 = 1;
const UNAVAILABLE: i64 = 14;

/// Returns whether an error has the code of a member that stops. That of a stream is named otherwise by etcd 3.4.
fn is_stopping(body: &Value) -> bool {
    let mut codes = ["/code", "/error/grpc_code", "/error/code"].into_iter();
    let code = codes.find_map(|at| body.pointer(at)?.as_i64());
    matches!(code, Some(CANCELED | UNAVAILABLE))
}

/// Returns whether a request with this status may have reached a member. A proxy before the member refuses by the
/// other codes from 400 to 499. Before any other code, it has forwarded the request.
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

    /// The texts of learners are those of etcd 3.4.23 and 3.5.30. The others are those of 3.4.23 when the
    /// leadership moves, and when a member ends by SIGTERM.
    #[test]
    fn texts_say_whether_another_member_may_do_it() {
        for (status, body, expected) in [
            (
                500,
                r#"{"error":"raft proposal dropped","code":2}"#,
                "unfit",
            ),
            (
                503,
                r#"{"code":14,"message":"etcdserver: rpc not supported for learner"}"#,
                "unfit",
            ),
            (
                503,
                r#"{"error":{"code":14,"message":"rpc not supported for learner"}}"#,
                "unfit",
            ),
            (
                503,
                r#"{"error":"etcdserver: server stopped","code":14}"#,
                "unanswered",
            ),
            (
                503,
                r#"{"error":"grpc: the client connection is closing","code":1}"#,
                "unanswered",
            ),
            (
                503,
                r#"{"error":{"grpc_code":14,"message":"a text of tomorrow"}}"#,
                "unanswered",
            ),
            (
                503,
                r#"{"error":{"code":14,"message":"a text of tomorrow"}}"#,
                "unanswered",
            ),
            (400, r#"{"error":"a text of tomorrow","code":3}"#, "refused"),
            (404, "no such page", "refused"),
            (
                401,
                r#"{"error":{"grpc_code":16,"message":"invalid auth token"}}"#,
                "login",
            ),
        ] {
            let found = match read(status, body) {
                Meaning::MemberUnfit(_) => "unfit",
                Meaning::LoginGone => "login",
                Meaning::Other(Failure::Refused(_)) => "refused",
                Meaning::Other(_) => "unanswered",
            };
            assert_eq!(found, expected, "{body}");
        }
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
}
