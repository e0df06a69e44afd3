//! Which cases run on which stores.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lockkeeper_core::{Error, LockProvider};

use crate::cases::{Case, TABLE};
use crate::child;
use crate::fixture::Fixture;
use crate::rig::{Rig, Skip};

pub(crate) type Make = dyn Fn() -> Box<dyn Fixture> + Send + Sync;
pub(crate) type Ignored = dyn Fn() -> Option<String> + Send + Sync;
pub(crate) type Open = dyn Fn(&str, &str) -> Result<Arc<dyn LockProvider>, Error> + Send + Sync;

/// A kind of store, with the function that creates a fresh one.
#[derive(Clone)]
pub struct Suite {
    pub(crate) package: &'static str,
    pub(crate) name: &'static str,
    pub(crate) make: Arc<Make>,
    pub(crate) open: Option<Arc<Open>>,
    pub(crate) timeout: Duration,
    pub(crate) ignored: Option<Arc<Ignored>>,
}

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The store keeps this part of the contract.
    Passed,
    /// The store breaks the contract, as described.
    Failed(String),
    /// The case could not run, for this reason.
    Ignored(String),
}

impl Suite {
    /// Creates a suite for the store `name` of the package `package`. `make` creates a fresh store.
    pub fn new(
        package: &'static str,
        name: &'static str,
        make: impl Fn() -> Box<dyn Fixture> + Send + Sync + 'static,
    ) -> Self {
        Self {
            package,
            name,
            make: Arc::new(make),
            open: None,
            timeout: Duration::from_secs(90),
            ignored: None,
        }
    }

    /// Sets how another process opens a store: `open` gets a [`Fixture::address`] and a namespace.
    #[must_use]
    pub fn processes(
        mut self,
        open: impl Fn(&str, &str) -> Result<Arc<dyn LockProvider>, Error> + Send + Sync + 'static,
    ) -> Self {
        self.open = Some(Arc::new(open));
        self
    }

    /// Sets how long a case waits for something that must happen, before the case fails. The default
    /// is 90 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Ignores every case while `reason` returns a text, for example "the server is not installed".
    #[must_use]
    pub fn ignored(mut self, reason: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.ignored = Some(Arc::new(reason));
        self
    }

    /// Returns the names of all cases, such as `rule_01_exclusion::threads_of_one_keeper`.
    pub fn cases() -> impl Iterator<Item = &'static str> {
        TABLE.iter().map(|case| case.name)
    }

    /// Runs one case on this thread. Tests of the suite itself use this; others use [`Run::main`].
    pub fn check(&self, case: &str) -> Verdict {
        let Some(case) = TABLE.iter().find(|known| known.name == case) else {
            return Verdict::Failed(format!("there is no case {case:?}"));
        };
        match catch_unwind(AssertUnwindSafe(|| self.try_case(case))) {
            Ok(Ok(())) => Verdict::Passed,
            Ok(Err(Skip(reason))) => Verdict::Ignored(reason),
            Err(panic) => Verdict::Failed(panic_text(&*panic)),
        }
    }

    fn try_case(&self, case: &Case) -> Result<(), Skip> {
        if let Some(reason) = self.ignored.as_ref().and_then(|reason| reason()) {
            return Err(Skip(reason));
        }
        (case.run)(&Rig::new(self))
    }

    fn trial(&self, case: &'static Case) -> Trial {
        let suite = self.clone();
        Trial::ignorable_test(format!("{}::{}", self.name, case.name), move || match suite
            .check(case.name)
        {
            Verdict::Passed => Ok(Completion::Completed),
            Verdict::Ignored(reason) => Ok(Completion::ignored_with(reason)),
            Verdict::Failed(text) => Err(Failed::from(text)),
        })
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("the case panicked without a text")
        .to_owned()
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite")
            .field("package", &self.package)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A test program: the suites that it runs.
#[derive(Clone, Debug, Default)]
pub struct Run {
    suites: Vec<Suite>,
    folders: Vec<PathBuf>,
    storeless: Vec<&'static str>,
}

impl Run {
    /// Creates a test program without suites.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a suite.
    #[must_use]
    pub fn suite(mut self, suite: Suite) -> Self {
        self.suites.push(suite);
        self
    }

    /// Adds a case that fails if a package in a folder under `folder` has no suite in this run. It
    /// finds a backend that was added and is not tested.
    #[must_use]
    pub fn every_package_under(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folders.push(folder.into());
        self
    }

    /// Excepts a package that is no store from [`every_package_under`](Self::every_package_under).
    #[must_use]
    pub fn except(mut self, package: &'static str) -> Self {
        self.storeless.push(package);
        self
    }

    /// Runs the suites with the usual arguments of a test program: the `main` of a test with
    /// `harness = false`. A case that needs another process starts this program again, and then this
    /// function plays the role of that process.
    pub fn main(self) -> ExitCode {
        if let Some(code) = child::main(&self.suites) {
            return code;
        }
        let mut arguments = Arguments::from_args();
        // More threads than processors: cases mostly wait.
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        arguments.test_threads.get_or_insert(4 * processors);
        let mut trials: Vec<Trial> = Vec::new();
        for case in TABLE {
            trials.extend(self.suites.iter().map(|suite| suite.trial(case)));
        }
        for folder in self.folders {
            let tested = self.suites.iter().map(|suite| suite.package);
            let packages: Vec<_> = tested.chain(self.storeless.iter().copied()).collect();
            trials.push(Trial::test("every_backend_is_in_the_run", move || {
                missing(&folder, &packages).map_or(Ok(()), |text| Err(Failed::from(text)))
            }));
        }
        libtest_mimic::run(&arguments, trials).exit_code()
    }
}

/// Returns a text that names the packages under `folder` without a suite.
fn missing(folder: &Path, tested: &[&str]) -> Option<String> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return Some(format!("{} cannot be read: {error}", folder.display())),
    };
    let mut untested = Vec::new();
    for manifest in entries
        .flatten()
        .map(|entry| entry.path().join("Cargo.toml"))
    {
        let Ok(text) = std::fs::read_to_string(&manifest) else {
            continue;
        };
        // The package's name is the first `name` of a manifest in the usual order of sections.
        let name = text.lines().find_map(|line| {
            let value = line.strip_prefix("name")?.trim_start().strip_prefix('=')?;
            Some(value.trim().trim_matches('"').to_owned())
        });
        if !name.as_deref().is_some_and(|name| tested.contains(&name)) {
            untested.push(manifest.display().to_string());
        }
    }
    (!untested.is_empty()).then(|| format!("no suite in this run for {}", untested.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_without_suite_is_reported() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = missing(&workspace, &["lockkeeper-core"]).unwrap();
        assert!(text.contains("conformance/Cargo.toml"), "{text}");
        assert!(!text.contains("core/Cargo.toml"), "{text}");
    }

    #[test]
    fn case_names_are_unique() {
        let mut names: Vec<_> = Suite::cases().collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
