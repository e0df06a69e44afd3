//! The names that a session shows to operators: the key of a lock is a hash, and cannot say its name.
//!
//! A name counts only if the session holds its key.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// What the shown names begin with. They are a comment, so the statement is an empty one.
const BEGIN: &str = "--lockkeeper";
/// `pg_stat_activity` cuts a statement off here by default (`track_activity_query_size`).
const MOST_BYTES: usize = 1_023;
/// No more names fit, since each has a space, a namespace, a colon and a name.
const MOST_NAMES: usize = MOST_BYTES / 4;

/// The names that a session holds or requests, the newest first. Those that do not fit into a statement are not shown.
///
/// They follow each request as a statement that the server parses and never runs. That costs some 1 µs, where running
/// it would cost 10.
#[derive(Debug, Default)]
pub(crate) struct ShownNames {
    /// The names in the order in which they came.
    names: BTreeMap<u64, Arc<str>>,
    /// The place of each name in that order.
    places: HashMap<Arc<str>, u64>,
    last: u64,
    /// What the server is told, if there is a name.
    pub(crate) sql: Option<String>,
}

impl ShownNames {
    /// Adds names, which [`encode`] has written. A name that is not granted after all may stay: it is shown only while
    /// the session holds its lock.
    pub(crate) fn add<'a>(&mut self, names: impl IntoIterator<Item = &'a Arc<str>>) {
        for name in names {
            self.last += 1;
            if let Some(former) = self.places.insert(Arc::clone(name), self.last) {
                self.names.remove(&former);
            }
            self.names.insert(self.last, Arc::clone(name));
        }
        self.write();
    }

    /// Removes names.
    pub(crate) fn remove<'a>(&mut self, names: impl IntoIterator<Item = &'a Arc<str>>) {
        for name in names {
            if let Some(place) = self.places.remove(name) {
                self.names.remove(&place);
            }
        }
        self.write();
    }

    fn write(&mut self) {
        let mut sql = BEGIN.to_owned();
        for name in self.names.values().rev().take(MOST_NAMES) {
            if sql.len() + 1 + name.len() <= MOST_BYTES {
                sql.push(' ');
                sql.push_str(name);
            }
        }
        self.sql = (sql.len() > BEGIN.len()).then_some(sql);
    }
}

/// What is written as `%20`, or the like, in a name, and all that is no ASCII.
const HIDDEN: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// Writes a namespace and a name as sessions show them: `shop:a%20b` for the name `a b` in the namespace `shop`.
pub(crate) fn encode(namespace: &str, name: &str) -> Arc<str> {
    const HIDDEN_IN_NAMESPACE: &AsciiSet = &HIDDEN.add(b':');
    let namespace = utf8_percent_encode(namespace, HIDDEN_IN_NAMESPACE);
    format!("{namespace}:{}", utf8_percent_encode(name, HIDDEN)).into()
}

/// Returns the namespaces and names that a session shows by its last statement.
pub(crate) fn decode(sql: &str) -> Vec<(String, String)> {
    let shown = sql.strip_prefix(BEGIN).unwrap_or_default();
    let part = |text: &str| Some(percent_decode_str(text).decode_utf8().ok()?.into_owned());
    let pair = |text: &str| {
        let (namespace, name) = text.split_once(':')?;
        Some((part(namespace)?, part(name)?))
    };
    shown.split_ascii_whitespace().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn shown(names: &ShownNames) -> Vec<(String, String)> {
        decode(names.sql.as_deref().unwrap_or_default())
    }

    #[test]
    fn names_are_read_as_they_were_written() {
        let mut names = ShownNames::default();
        let pairs = [("shop", "a:b"), ("s:\u{c790}%", "--\0 */\n'x")];
        let encoded = pairs.map(|(namespace, name)| encode(namespace, name));
        names.add(&encoded);
        assert!(
            names
                .sql
                .as_ref()
                .is_some_and(|sql| sql.is_ascii() && !sql.contains('\n'))
        );
        let owned = |(namespace, name): (&str, &str)| (namespace.to_owned(), name.to_owned());
        assert_eq!(shown(&names), [owned(pairs[1]), owned(pairs[0])]);
        names.remove(&encoded[1..]);
        assert_eq!(shown(&names), [owned(pairs[0])]);
        names.remove(&encoded);
        assert_eq!(names.sql, None);
    }

    #[test]
    fn statements_of_others_are_no_names() {
        for sql in ["", "SELECT 1", "--lockkeeper", "--lockkeeper a b%0 a:%ff"] {
            assert_eq!(decode(sql), [], "{sql}");
        }
    }

    #[test]
    fn each_of_many_names_is_removed_without_a_look_at_the_others() {
        let mut names = ShownNames::default();
        let encoded: Vec<_> = (0..100_000)
            .map(|at| encode("shop", &format!("seat:{at}")))
            .collect();
        names.add(&encoded);
        let began = Instant::now();
        for at in 0..encoded.len() {
            names.remove(&encoded[at..=at]);
        }
        // Some seconds on a slow machine; minutes when each removal looked at all of them.
        assert!(began.elapsed() < Duration::from_secs(30));
        assert_eq!(names.sql, None);
    }

    #[test]
    fn names_that_do_not_fit_are_left_out() {
        let mut names = ShownNames::default();
        let long = encode("shop", &"x".repeat(512));
        let encoded = [encode("shop", "a"), long.clone(), long, encode("shop", "b")];
        names.add(&encoded);
        assert!(
            names
                .sql
                .as_ref()
                .is_some_and(|sql| sql.len() <= MOST_BYTES)
        );
        let shown: Vec<_> = shown(&names)
            .into_iter()
            .map(|(_, name)| name.len())
            .collect();
        assert_eq!(shown, [1, 512, 1]);
    }
}
