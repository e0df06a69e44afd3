//! What is said to the server: keys, transactions, and sessions.

mod keys;
mod txn;

pub(crate) use keys::Keys;
pub(crate) use txn::{Pairs, Txn, VERBS, pairs};

use std::time::Duration;

/// Reads a duration as Go writes it, such as `1m30s` or `500ms`.
pub(crate) fn go_duration(text: &str) -> Option<Duration> {
    let (mut total, mut rest) = (Duration::ZERO, text);
    while !rest.is_empty() {
        let unit = rest.find(|it: char| !it.is_ascii_digit() && it != '.')?;
        let (number, after) = rest.split_at(unit);
        let end = after.find(|it: char| it.is_ascii_digit());
        let (unit, after) = after.split_at(end.unwrap_or(after.len()));
        let unit = match unit {
            "h" => 3_600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            _ => return None,
        };
        let seconds = number.parse::<f64>().ok()? * unit;
        total += Duration::try_from_secs_f64(seconds).ok()?;
        rest = after;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_go_are_read() {
        for (text, millis) in [("10s", 10_000), ("500ms", 500), ("1m30.5s", 90_500)] {
            let expected = Some(Duration::from_millis(millis));
            assert_eq!(go_duration(text), expected, "{text}");
        }
        assert_eq!(go_duration("24h0m0s"), Some(Duration::from_secs(86_400)));
        for text in ["10", "s", "1y", "10s-"] {
            assert_eq!(go_duration(text), None, "{text}");
        }
    }
}
