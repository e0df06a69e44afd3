//! The meaning of the server's errors, with advice.

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Failure, Server};
use serde_json::Value;

/// What an error of the server says about the request.
pub(crate) enum Meaning {
    /// The lease that a key was to be bound to has ended; nothing was done.
    LeaseGone,
    /// The login has expired; nothing was done.
    LoginGone,
    /// This member cannot serve, and another one may; nothing was done.
    MemberUnfit(Error),
    Other(Failure),
}

/// Reads an error of the gateway: a status other than 200, and a JSON object with the text.
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
    let unfit = |advice: &str| {
        let text = format!("{server} {advice} (etcd says: {said})");
        Meaning::MemberUnfit(Error::new(ErrorKind::Unavailable, text))
    };
    if has("requested lease not found") {
        Meaning::LeaseGone
    } else if has("invalid auth token")
        || has("revision of auth store is old")
        || has("auth: revision")
    {
        Meaning::LoginGone
    } else if has("no leader") || has("not leader") {
        unfit("has no leader to follow; are most of the members up and connected?")
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
        refused(
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
    // A member that stops has several texts: "the client connection is closing" has the code of a cancelled call.
    } else if matches!(grpc_code(&body), Some(CANCELED | UNAVAILABLE)) {
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

/// Returns the meaning of an error without a text of etcd: a proxy may have said it.
fn without_text(server: &Server, status: u16) -> Meaning {
    match status {
        503 => {
            let text = format!("{server} is not ready");
            Meaning::MemberUnfit(Error::new(ErrorKind::Unavailable, text))
        }
        // The proxy has no reply to a request that it may have passed on.
        502 | 504 => Meaning::Other(unanswered(server, &format!("HTTP status {status}"))),
        _ => {
            let hint = format!(" (HTTP status {status}), from 3.4 on");
            Meaning::Other(Failure::Refused(server.wrong_protocol(&hint)))
        }
    }
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
        let refused = read(500, r#"{"error":"a text of tomorrow","code":2}"#);
        assert!(matches!(refused, Meaning::Other(Failure::Refused(_))));
    }

    #[test]
    fn proxy_without_a_reply_may_have_passed_on_the_request() {
        for status in [502, 504] {
            let meaning = read(status, "<html>Bad Gateway</html>");
            assert!(matches!(meaning, Meaning::Other(Failure::Unanswered(_))));
        }
        assert!(matches!(read(503, "busy"), Meaning::MemberUnfit(_)));
        let other = read(404, "no such page");
        assert!(matches!(other, Meaning::Other(Failure::Refused(_))));
    }

    #[test]
    fn error_of_a_stream_is_read() {
        let body = r#"{"error":{"grpc_code":16,"message":"etcdserver: invalid auth token"}}"#;
        assert!(matches!(read(401, body), Meaning::LoginGone));
    }
}
