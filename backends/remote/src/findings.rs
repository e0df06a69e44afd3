//! What every server with locks in its memory is examined for.

use std::time::Duration;

use lockkeeper_core::Finding;

/// Says what a restart does, which forgets all locks. `grace` is
/// [`RemoteOptions::restart_grace`](crate::RemoteOptions::restart_grace).
pub fn restart_finding(grace: Duration) -> Finding {
    let topic = "restart";
    if grace.is_zero() {
        return Finding::warning(
            topic,
            "restart_grace is off",
            "a server that restarts has forgotten who holds what; a holder that was stopped or cut off \
             meanwhile does not know of that, and another process can get its lock",
            "set restart_grace to the longest ttl, or have the data refuse smaller tokens",
        );
    }
    Finding::fine(topic, format!("restart_grace is {grace:?}"))
        .meaning("nothing is granted for that long after a restart, which forgets all locks")
}

/// Compares a pool's size with the limits of a server that has `open` connections. `most` is the limit for all
/// users together, and `own` that of this user, which the setting `own_name` has. 0 is no limit.
pub fn connections_finding(
    open: u64,
    most: u64,
    own: u64,
    own_name: &str,
    pool_size: u32,
) -> Finding {
    let topic = "connections";
    let what = format!("{open} connections are open, of at most {most}");
    if own > 0 && own < pool_size.into() {
        return Finding::warning(
            topic,
            format!("a user may have {own} connections, and pool_size is {pool_size}"),
            "a program that waits for many names runs into that",
            format!("raise {own_name}, or lower pool_size"),
        );
    }
    if most == 0 || open.saturating_add(pool_size.into()) <= most {
        return Finding::fine(topic, what);
    }
    Finding::warning(
        topic,
        what,
        format!("a program that waits for many names needs up to {pool_size} of them"),
        "raise max_connections, or lower pool_size",
    )
}
