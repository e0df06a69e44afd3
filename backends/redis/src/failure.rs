//! The meaning of the server's errors, with advice.

use std::io;

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Failure, Server, senseless};
use redis::{FromRedisValue, RedisError, ServerError, Value};

/// An error code of the server, the kind of error that it is, and the advice for the user.
struct Meaning(&'static str, ErrorKind, &'static str);

const MEANINGS: [Meaning; 18] = [
    Meaning(
        "WRONGPASS",
        ErrorKind::PermissionDenied,
        "the server does not accept this user and password; check `user` and `password`",
    ),
    Meaning(
        "NOAUTH",
        ErrorKind::PermissionDenied,
        "the server wants a password; give one in the URL or as `password`",
    ),
    Meaning("NOPERM", ErrorKind::PermissionDenied, NO_PERMISSION),
    Meaning(
        "READONLY",
        ErrorKind::PermissionDenied,
        "this is a read-only replica; connect to its primary",
    ),
    Meaning("MOVED", ErrorKind::Incompatible, CLUSTER),
    Meaning("ASK", ErrorKind::Incompatible, CLUSTER),
    Meaning("CROSSSLOT", ErrorKind::Incompatible, CLUSTER),
    Meaning(
        "CLUSTERDOWN",
        ErrorKind::Unavailable,
        "the cluster that this server belongs to is down",
    ),
    Meaning(
        "OOM",
        ErrorKind::Unavailable,
        "the server is at its `maxmemory` and takes no new key; raise that, or free something, but let it evict nothing: locks are keys, too",
    ),
    Meaning(
        "WRONGTYPE",
        ErrorKind::Incompatible,
        "a key under the lock's name is of another type, so it is not lockkeeper's; delete it, or use another `namespace`",
    ),
    Meaning(
        "LOADING",
        ErrorKind::Unavailable,
        "the server is still loading its data; try again soon",
    ),
    Meaning(
        "BUSY",
        ErrorKind::Unavailable,
        "the server is busy with a long script; end that with SCRIPT KILL",
    ),
    Meaning(
        "MASTERDOWN",
        ErrorKind::Unavailable,
        "this is a replica that has lost its primary",
    ),
    Meaning(
        "NOREPLICAS",
        ErrorKind::Unavailable,
        "the server has fewer replicas than its `min-replicas-to-write`",
    ),
    Meaning(
        "MISCONF",
        ErrorKind::Unavailable,
        "the server takes no writes since it cannot save its data; see its log",
    ),
    Meaning(
        "DENIED",
        ErrorKind::PermissionDenied,
        "the server runs in protected mode and takes no connections from elsewhere; set a password or its `bind`",
    ),
    Meaning(
        "max number of clients",
        ErrorKind::Unavailable,
        "the server has all the clients that its `maxclients` allows",
    ),
    Meaning(
        "DB index",
        ErrorKind::InvalidValue,
        "the server has no database of that number; see its `databases`, and `db` here",
    ),
];

const NO_PERMISSION: &str = "the user may not do what a lock needs; allow it the keys ~lockkeeper:*, the channels &lockkeeper:* and the commands +eval +evalsha +set +get +del +pexpire +pttl +time +lpos +lpush +rpush +lpop +lrem +pubsub|numsub +publish +subscribe +unsubscribe +ping +select +wait";
const CLUSTER: &str = "this server is one node of a cluster, and the lock's key belongs to another one; lockkeeper talks to single servers: name a server that is not in cluster mode";

/// Returns the error for an error reply. Scripts pass on the errors of their commands: from version 7
/// on unchanged, before that with the code somewhere in the text.
pub(crate) fn refused(error: &ServerError) -> Error {
    explain(error.code(), error.details().unwrap_or_default(), "")
}

/// Returns the error for a login that the server refused.
///
/// The server's text is neither shown nor kept as the cause: a server that does not know the command
/// repeats its arguments, and the password is one of them.
pub(crate) fn login_refused(error: &ServerError) -> Error {
    let (code, details) = (error.code(), error.details().unwrap_or_default());
    let known = MEANINGS
        .iter()
        .find(|Meaning(known, ..)| *known == code || (code == "ERR" && details.starts_with(known)));
    let (said, kind, advice) = match known {
        Some(Meaning(said, kind, advice)) => (*said, *kind, *advice),
        None => (
            if code == "ERR" { code } else { "another error" },
            ErrorKind::PermissionDenied,
            "the server takes no password, or not this way; leave `user` and `password` out, or set a password there",
        ),
    };
    Error::new(
        kind,
        format!("{advice} (the server answers AUTH with {said})"),
    )
}

/// Returns the error for an error reply to a command within a script. Before version 7 the text begins
/// with the script's line, and may have no code: `@user_script: 3: -OOM …`, `@user_script: 3: The user …`.
pub(crate) fn refused_command(command: &str, said: &str) -> Error {
    let at_line = said.strip_prefix("@user_script: ");
    let said = at_line
        .and_then(|rest| rest.split_once(": "))
        .map_or(said, |(_, said)| said);
    let is_code = |word: &str| word.bytes().all(|letter| letter.is_ascii_uppercase());
    let coded = said.trim_start_matches('-').split_once(' ');
    let (code, details) = coded
        .filter(|(code, _)| is_code(code))
        .unwrap_or(("ERR", said));
    explain(code, details, command)
}

fn explain(code: &str, details: &str, command: &str) -> Error {
    let to = if command.is_empty() { "" } else { " to " };
    let said = format!("(the server says{to}{command}: {code} {details})");
    let lacks = |word| details.contains(word);
    let (kind, advice) = if let Some(&Meaning(_, kind, advice)) = meaning(code, details) {
        (kind, advice)
    } else if lacks("The user executing the script can't") || lacks("ACL failure") {
        (ErrorKind::PermissionDenied, NO_PERMISSION)
    } else if lacks("Unknown Redis command") || lacks("unknown command") {
        (
            ErrorKind::Incompatible,
            "the server lacks a command that a lock needs; Redis from 6.2 on and Valkey have them all",
        )
    } else {
        (ErrorKind::Incompatible, "the server refuses")
    };
    Error::new(kind, format!("{advice} {said}"))
}

fn meaning(code: &str, details: &str) -> Option<&'static Meaning> {
    let exact = MEANINGS.iter().find(|Meaning(known, ..)| *known == code);
    let is_coded = code != "ERR";
    exact.or_else(|| {
        let mut inside = MEANINGS.iter();
        inside.find(|Meaning(known, ..)| !is_coded && has_word(details, known))
    })
}

/// Returns whether the error comes from a replica. A primary that another one has replaced is one, too.
fn is_from_replica(error: &ServerError) -> bool {
    let (code, details) = (error.code(), error.details().unwrap_or_default());
    // The last two answer a WAIT: one that waited when the server became a replica, and a later one.
    meaning(code, details)
        .is_some_and(|Meaning(code, ..)| ["READONLY", "MASTERDOWN"].contains(code))
        || code == "UNBLOCKED"
        || details.starts_with("WAIT cannot be used with replica")
}

/// Returns a reply that does not come from a replica. The server was a primary at opening, and its
/// address may soon lead to the new one.
pub(crate) fn from_primary(answer: Value) -> Result<Value, Failure> {
    match &answer {
        Value::ServerError(error) if is_from_replica(error) => {
            let text = format!(
                "the server has become a replica; if its address does not lead to the new primary soon, name that one (the server says: {} {})",
                error.code(),
                error.details().unwrap_or_default()
            );
            Err(Failure::Closed(Error::new(ErrorKind::Unavailable, text)))
        }
        _ => Ok(answer),
    }
}

/// Returns a reply that is no error.
pub(crate) fn accepted(answer: Value) -> Result<Value, Failure> {
    match answer {
        Value::ServerError(error) => Err(Failure::Refused(refused(&error))),
        answer => Ok(answer),
    }
}

/// Returns a reply of a primary that is no error.
pub(crate) fn accepted_by_primary(answer: Value) -> Result<Value, Failure> {
    from_primary(answer).and_then(accepted)
}

/// Reads a reply.
pub(crate) fn parse<T: FromRedisValue>(answer: Value) -> Result<T, Error> {
    T::from_redis_value(answer).map_err(|error| senseless().with_source(error))
}

fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text.get(..at).and_then(|text| text.chars().next_back());
        let after = text
            .get(at + word.len()..)
            .and_then(|text| text.chars().next());
        let inside = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
        !inside(before) && !inside(after)
    })
}

/// Returns the error for a reply that is not in Redis's protocol.
pub(crate) fn not_redis(error: RedisError, server: &Server, tls: bool) -> Error {
    let hint = if tls {
        "?"
    } else {
        ", and without TLS? A server with TLS is reached by rediss:"
    };
    server.wrong_protocol(hint).with_source(error)
}

/// Returns the error for a failed TLS handshake, or `None` if something else failed.
pub(crate) fn tls_failed(error: &RedisError, server: &Server) -> Option<Error> {
    let text = error.to_string();
    if text.contains("certificate") {
        return Some(server.untrusted(&text));
    }
    matches!(
        io_error_kind(error),
        Some(io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
    )
    .then(|| {
        Error::new(
            ErrorKind::Incompatible,
            format!(
                "what answers at {} does not speak TLS as it should; a server without TLS is reached by redis: ({text})",
                server.address()
            ),
        )
    })
}

/// Returns the kind of the input/output error inside of another error.
fn io_error_kind(error: &RedisError) -> Option<io::ErrorKind> {
    // The redis crate keeps its cause in an `Arc`, and shows that as the cause.
    type Shared = std::sync::Arc<dyn std::error::Error + Send + Sync>;
    let source = std::error::Error::source(error)?;
    let io = match source.downcast_ref::<Shared>() {
        Some(inner) => inner.downcast_ref::<io::Error>(),
        None => source.downcast_ref(),
    };
    io.map(io::Error::kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_redis_6_is_found_behind_the_scripts_line() {
        for (said, kind, advice) in [
            (
                "@user_script: 3: -OOM command not allowed when used memory > 'maxmemory'.",
                ErrorKind::Unavailable,
                "takes no new key",
            ),
            (
                "@user_script: 3: The user executing the script can't run this command or subcommand",
                ErrorKind::PermissionDenied,
                "+eval",
            ),
        ] {
            let error = refused_command("SET", said);
            assert_eq!(error.kind(), kind, "{error:?}");
            assert!(error.to_string().contains(advice), "{error}");
        }
    }

    #[test]
    fn errors_of_a_cluster_say_so() {
        // The keys of a lock share a slot, so only something in between can say CROSSSLOT.
        for said in [
            "MOVED 866 127.0.0.1:7001",
            "-ASK 866 127.0.0.1:7001",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "ERR CROSSSLOT Keys in request don't hash to the same slot script: f_0",
        ] {
            let error = refused_command("set", said);
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
            assert!(
                error.to_string().contains("one node of a cluster"),
                "{error}"
            );
        }
    }
}
