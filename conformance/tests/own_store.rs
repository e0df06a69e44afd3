//! A store of one's own, and the suite on it.

mod toy;

use std::process::ExitCode;
use std::sync::Arc;

use lockkeeper_conformance::{Fixture, Run, Suite};
use lockkeeper_core::{Error, LockProvider};

use toy::{Store, Toy};

/// A fresh store in memory.
#[derive(Default)]
struct Fresh(Arc<Store>);

impl Fixture for Fresh {
    fn open(&self, namespace: &str) -> Result<Arc<dyn LockProvider>, Error> {
        Ok(Arc::new(Toy(Arc::clone(&self.0), namespace.to_owned())))
    }
}

fn main() -> ExitCode {
    let toy = Suite::new("toy", "toy", || Box::new(Fresh::default()));
    Run::new().suite(toy).main()
}
