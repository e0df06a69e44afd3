//! Time-outs in the URL of a store.

use std::time::Duration;

/// Adds a connect and a response time-out to the URL of a store, unless the URL has them.
///
/// The defaults are for servers that answer: on a machine that is busy with tests, they are too short.
#[must_use]
pub fn with_timeouts(url: &str, limit: Duration) -> String {
    let mut url = url.to_owned();
    for timeout in ["response_timeout", "connect_timeout"] {
        if !url.contains(timeout) {
            let mark = if url.contains('?') { '&' } else { '?' };
            url += &format!("{mark}{timeout}={}ms", limit.as_millis());
        }
    }
    url
}
