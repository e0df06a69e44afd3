//! The meaning of an agent's errors, with advice.

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Failure, HttpReply, Server};

/// The error of a session for a node that is not in the catalog.
pub(crate) const MISSING_NODE: &str = "Missing node registration";
/// The beginning of the error of a session that is too short.
pub(crate) const INVALID_TTL: &str = "Invalid Session TTL";

/// What a token needs.
const RIGHTS: &str =
    r#"policy = "write" on key_prefix "lockkeeper/", session "lockkeeper" and node "lockkeeper""#;

/// Returns the reply if it is an answer to the request.
pub(super) fn check(server: &Server, reply: HttpReply) -> Result<HttpReply, Failure> {
    let said = String::from_utf8_lossy(&reply.body);
    let said = said.trim();
    let has = |text| said.contains(text);
    let error = |kind, text: &str| Error::new(kind, format!("{text} (Consul says: {said})"));
    // A transaction may fail by its conditions, or since it is not allowed.
    let is_denied = reply.status == 403 || reply.status == 409 && has("Permission denied");
    Err(match reply.status {
        _ if has("ACL not found") => Failure::Refused(error(
            ErrorKind::PermissionDenied,
            "Consul does not know the ACL token; check `acl_token`",
        )),
        _ if is_denied => Failure::Refused(error(
            ErrorKind::PermissionDenied,
            &format!("the ACL token may not lock; give it {RIGHTS}"),
        )),
        200 | 404 | 409 => return Ok(reply),
        500 if has(MISSING_NODE) || has(INVALID_TTL) => return Ok(reply),
        // Nothing was done, and another agent may know a leader.
        500 if has("No cluster leader") => Failure::Closed(error(
            ErrorKind::Unavailable,
            &format!("{server} knows no leader to ask; are most of the servers up and connected?"),
        )),
        500 if has("No path to datacenter") => Failure::Refused(error(
            ErrorKind::InvalidValue,
            "the agent does not know the datacenter; correct `datacenter`",
        )),
        413 => Failure::Refused(error(
            ErrorKind::Incompatible,
            "the agent takes no request that long; raise limits.txn_max_req_len to 512 KiB or more",
        )),
        // The leader may have carried out the request before it failed.
        408 | 429 | 500.. => Failure::Unanswered(error(
            ErrorKind::Unknown,
            &format!(
                "{server} could not tell whether it carried out the request; what that granted ends with its ttl"
            ),
        )),
        status => Failure::Refused(
            server.wrong_protocol(&format!(" (HTTP status {status}), and without TLS?")),
        ),
    })
}

#[cfg(test)]
mod tests {
    use lockkeeper_remote::Endpoint;

    use super::*;

    /// The texts are those of Consul 1.8.7.
    #[test]
    fn texts_say_what_to_do_and_whether_it_may_be_done() {
        let server = Server::new("Consul", &Endpoint::tcp("host", 1));
        let stale =
            r#"{"Errors":[{"OpIndex":0,"What":"failed to set key \"a\", index is stale"}]}"#;
        let denied = r#"{"Errors":[{"OpIndex":1,"What":"Permission denied"}]}"#;
        for (status, body, expected) in [
            (200, "true", None),
            (404, "", None),
            (409, stale, None),
            (403, "ACL not found", Some(ErrorKind::PermissionDenied)),
            (403, "Permission denied", Some(ErrorKind::PermissionDenied)),
            (409, denied, Some(ErrorKind::PermissionDenied)),
            (500, "No cluster leader", Some(ErrorKind::Unavailable)),
            (500, "No path to datacenter", Some(ErrorKind::InvalidValue)),
            (500, "rpc error making call: EOF", Some(ErrorKind::Unknown)),
            (502, "<html>", Some(ErrorKind::Unknown)),
            (400, "", Some(ErrorKind::Incompatible)),
        ] {
            let reply = HttpReply {
                status,
                head: String::new(),
                body: body.as_bytes().to_vec(),
            };
            let found = check(&server, reply).err();
            assert_eq!(found.map(|it| it.error().kind()), expected, "{body}");
        }
    }
}
