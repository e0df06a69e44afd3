//! The meaning of the server's errors, with advice.

use std::io;

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Failure, Server, is_too_long, is_untrusted, senseless};
use redis::{FromRedisValue, RedisError, ServerError, Value};

const NO_PERMISSION: &str = "the user may not do what a lock needs; allow it the keys ~lockkeeper:*, the channels &lockkeeper:* and the commands +eval +evalsha +set +mget +del +pexpire +pttl +time +zadd +zrem +zremrangebyscore +zrangebyscore +zrank +zscore +pubsub|numsub +publish +subscribe +unsubscribe +ping +select +wait";

/// Returns the kind of an error and the advice for the user, by the error's code.
fn meaning(code: &str, details: &str) -> Option<(ErrorKind, &'static str)> {
    let kind = match code {
        "WRONGPASS" | "NOAUTH" | "NOPERM" | "READONLY" | "DENIED" => ErrorKind::PermissionDenied,
        "MOVED" | "ASK" | "CROSSSLOT" | "WRONGTYPE" => ErrorKind::Incompatible,
        "ERR" if details.starts_with("DB index") => ErrorKind::InvalidValue,
        _ => ErrorKind::Unavailable,
    };
    let advice = match code {
        "WRONGPASS" => {
            "the server does not accept this user and password; check `user` and `password`"
        }
        "NOAUTH" => "the server wants a password; give one in the URL or as `password`",
        "NOPERM" => NO_PERMISSION,
        "READONLY" => "this is a read-only replica; connect to its primary",
        "DENIED" => {
            "the server runs in protected mode and takes no connections from elsewhere; set a password or its `bind`"
        }
        "MOVED" | "ASK" | "CROSSSLOT" => {
            "this server is one node of a cluster, and the lock's key belongs to another one; write redis+cluster:// with nodes of the cluster"
        }
        "WRONGTYPE" => {
            "a key under the lock's name is of another type, so it is not lockkeeper's; delete it, or use another `namespace`"
        }
        "ERR" if details.starts_with("DB index") => {
            "the server has no database of that number; see its `databases`, and `db` here"
        }
        "ERR" if details.starts_with("max number of clients") => {
            "the server has all the clients that its `maxclients` allows"
        }
        "CLUSTERDOWN" => "the cluster that this server belongs to is down",
        "OOM" => {
            "the server is at its `maxmemory` and takes no new key; raise that, or free something, but let it evict nothing: locks are keys, too"
        }
        "LOADING" => "the server is still loading its data; try again soon",
        "BUSY" => "the server is busy with a long script; end that with SCRIPT KILL",
        "MASTERDOWN" => "this is a replica that has lost its primary",
        "NOREPLICAS" => "the server has fewer replicas than its `min-replicas-to-write`",
        "MISCONF" => "the server takes no writes since it cannot save its data; see its log",
        _ => return None,
    };
    Some((kind, advice))
}

/// Returns the code of an error. Scripts pass on the errors of their commands: from version 7 on
/// unchanged, before that with the code somewhere in the text.
fn find_code<'a>(code: &'a str, details: &'a str) -> &'a str {
    let mut words = details.split(|letter: char| !letter.is_alphanumeric());
    let inside = words.find(|word| code == "ERR" && meaning(word, "").is_some());
    inside.unwrap_or(code)
}

/// Returns the error for an error reply.
pub(crate) fn refused(error: &ServerError) -> Error {
    explain(error.code(), error.details().unwrap_or_default(), "")
}

/// Returns the error for a login that the server refused.
///
/// The server's text is neither shown nor kept as the cause. A server that does not know the command repeats its
/// arguments, and the password is one of them.
pub(crate) fn login_refused(error: &ServerError) -> Error {
    let (code, details) = (error.code(), error.details().unwrap_or_default());
    let known = meaning(code, details);
    let said = match known {
        None if code != "ERR" => "another error",
        _ => code,
    };
    let (kind, advice) = known.unwrap_or((
        ErrorKind::PermissionDenied,
        "the server takes no password, or not this way; leave `user` and `password` out, or set a password there",
    ));
    let text = format!("{advice} (the server answers AUTH with {said})");
    Error::new(kind, text)
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

/// Returns the error for a login or a question that a sentinel refused. The server's text is not shown, as in
/// [`login_refused`].
pub(crate) fn sentinel_refused(error: &ServerError) -> Error {
    let code = error.code();
    let (kind, advice) = match code {
        "NOAUTH" | "WRONGPASS" => (
            ErrorKind::PermissionDenied,
            "the sentinels do not accept this login, which is another one than the servers'; see `sentinel_user` and `sentinel_password`",
        ),
        "NOPERM" => (
            ErrorKind::PermissionDenied,
            "the sentinels' user may not ask for the primary; allow it +sentinel +subscribe +ping and the channels &+switch-master &+promoted-slave",
        ),
        "ERR"
            if error
                .details()
                .is_some_and(|it| it.contains("max number of clients")) =>
        {
            (
                ErrorKind::Unavailable,
                "a sentinel has all the clients that it takes",
            )
        }
        "ERR" => (
            ErrorKind::Incompatible,
            "what answers is no sentinel, or takes no password; name the sentinels in the URL, redis:// is for one server",
        ),
        _ => (ErrorKind::Unavailable, "a sentinel refuses"),
    };
    Error::new(kind, format!("{advice} (it says {code})"))
}

fn explain(code: &str, details: &str, command: &str) -> Error {
    let to = if command.is_empty() { "" } else { " to " };
    let has = |text| details.contains(text);
    let (kind, advice) = if let Some(known) = meaning(find_code(code, details), details) {
        known
    } else if has("The user executing the script can't") || has("ACL failure") {
        (ErrorKind::PermissionDenied, NO_PERMISSION)
    } else if has("Unknown Redis command") || has("unknown command") {
        (
            ErrorKind::Incompatible,
            "the server lacks a command that a lock needs; Redis from 6.2 on and Valkey have them all, and a sentinel is reached by redis+sentinel:",
        )
    } else {
        (ErrorKind::Incompatible, "the server refuses")
    };
    let text = format!("{advice} (the server says{to}{command}: {code} {details})");
    Error::new(kind, text)
}

/// Returns whether the error comes from a replica. A primary that another one has replaced is one, too.
fn is_from_replica(error: &ServerError) -> bool {
    let (code, details) = (error.code(), error.details().unwrap_or_default());
    // The last two answer a WAIT: one that waited when the server became a replica, and a later one.
    ["READONLY", "MASTERDOWN", "UNBLOCKED"].contains(&find_code(code, details))
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

/// Reads a reply that is no error.
pub(crate) fn parse<T: FromRedisValue>(answer: Value) -> Result<T, Failure> {
    T::from_redis_value(answer).map_err(|error| Failure::Refused(senseless().with_source(error)))
}

/// Returns the error for a reply that could not be read; `is_first` if the server has not replied before.
pub(crate) fn unread(error: RedisError, server: &Server, tls: bool, is_first: bool) -> Error {
    use io::ErrorKind::{ConnectionReset, InvalidData, UnexpectedEof};
    let in_handshake = tls && is_first;
    let described = if error.kind() == redis::ErrorKind::Parse {
        server.wrong_protocol(if tls {
            "?"
        } else {
            ", and without TLS? A server with TLS is reached by rediss:"
        })
    } else if in_handshake && is_untrusted(&error.to_string()) {
        return server.untrusted(&error.to_string());
    } else if in_handshake
        && let Some(InvalidData | UnexpectedEof | ConnectionReset) =
            io_error(&error).map(io::Error::kind)
    {
        let text = format!(
            "what answers at {} does not speak TLS as it should; a server without TLS is reached by redis:",
            server.address()
        );
        Error::new(ErrorKind::Incompatible, text)
    } else if error.is_timeout() {
        server.silent()
    } else if io_error(&error).is_some_and(is_too_long) {
        server.too_long(!is_first)
    } else {
        server.cut()
    };
    described.with_source(error)
}

/// Returns the input/output error inside of another error.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    // The redis crate keeps its cause in an `Arc`, and shows that as the cause.
    type Shared = std::sync::Arc<dyn std::error::Error + Send + Sync>;
    let source = std::error::Error::source(error)?;
    match source.downcast_ref::<Shared>() {
        Some(inner) => inner.downcast_ref(),
        None => source.downcast_ref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_script_keep_their_meaning() {
        use ErrorKind::{Incompatible, PermissionDenied, Unavailable};
        let cluster = "one node of a cluster";
        for (said, kind, advice) in [
            (
                "@user_script: 3: -OOM command not allowed when used memory > 'maxmemory'.",
                Unavailable,
                "takes no new key",
            ),
            (
                "@user_script: 3: The user executing the script can't run this command or subcommand",
                PermissionDenied,
                "+eval",
            ),
            ("MOVED 866 127.0.0.1:7001", Incompatible, cluster),
            ("-ASK 866 127.0.0.1:7001", Incompatible, cluster),
            // The keys of a lock share a slot, so only something in between can say this.
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                Incompatible,
                cluster,
            ),
            (
                "ERR CROSSSLOT Keys in request don't hash to the same slot script: f_0",
                Incompatible,
                cluster,
            ),
        ] {
            let error = refused_command("SET", said);
            assert_eq!(error.kind(), kind, "{error:?}");
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
}
