//! Test programs (`harness = false`) whose cases run on every kind of server.

use std::fmt;
use std::sync::LazyLock;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::StoreKind;

/// How many cases run at a time unless `--test-threads` says otherwise; most of a case is waiting.
const THREADS: usize = 8;

/// Lists cases by their functions, whose names they have.
#[macro_export]
macro_rules! cases {
    ($($(#[$attribute:meta])* $case:ident),* $(,)?) => {
        &[$($(#[$attribute])* (stringify!($case), $case)),*]
    };
}

/// A case: its name, and what it does on a server of a kind.
pub type Case<K> = (&'static str, fn(K));

/// A kind of server that cases run on.
pub trait ServerKind: Copy + fmt::Display + Send + 'static {
    /// All kinds of this type.
    fn all() -> &'static [Self];

    /// Returns why cases on this server are shown as ignored, `None` when they run.
    fn ignored(self) -> Option<String>;
}

impl ServerKind for StoreKind {
    /// Returns one version of each single server.
    fn all() -> &'static [Self] {
        static SERVERS: LazyLock<Vec<StoreKind>> = LazyLock::new(StoreKind::servers);
        &SERVERS
    }

    fn ignored(self) -> Option<String> {
        self.ignored()
    }
}

/// Reads the arguments of a test program whose cases wait more than they work.
#[must_use]
pub fn arguments() -> Arguments {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    arguments
}

/// Makes a trial `KIND::NAME` of each case on each kind of server. A case on a server that is not on
/// this machine shows as ignored, with the reason.
pub fn trials<K: ServerKind>(cases: impl IntoIterator<Item = Case<K>>) -> Vec<Trial> {
    let on_each = |case: Case<K>| K::all().iter().map(move |&kind| trial(kind, case));
    cases.into_iter().flat_map(on_each).collect()
}

/// Makes a trial of a case on one kind of server.
pub fn trial<K: ServerKind>(kind: K, case: Case<K>) -> Trial {
    trial_unless(kind, K::ignored, case)
}

/// Makes a trial of a case on one kind of server, which shows as ignored for a reason of its own.
pub fn trial_unless<K: ServerKind>(
    kind: K,
    ignored: fn(K) -> Option<String>,
    (name, case): Case<K>,
) -> Trial {
    let name = format!("{kind}::{name}");
    named_trial(name, move || ignored(kind), move || case(kind))
}

/// Makes a trial that shows as ignored if `ignored` returns a reason.
pub fn named_trial(
    name: impl Into<String>,
    ignored: impl FnOnce() -> Option<String> + Send + 'static,
    case: impl FnOnce() + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || match ignored() {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => {
            case();
            Ok::<_, Failed>(Completion::Completed)
        }
    })
}
