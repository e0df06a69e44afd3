//! The suite on a store in the memory of this process, with notification and without.

#![allow(clippy::expect_used, dead_code, unreachable_pub)]

mod map_store;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_conformance::{Fixture, Loss, Restore, Run, Suite};
use lockkeeper_core::{Error, LockProvider, SystemClock};
use lockkeeper_register::RegisterProvider;

use map_store::{Faults, Map, MapStore};

struct Fresh(Arc<Map>);

impl Fixture for Fresh {
    fn open(&self, namespace: &str) -> Result<Arc<dyn LockProvider>, Error> {
        let store = MapStore::new(&self.0, namespace);
        let provider = RegisterProvider::new(store, Arc::new(SystemClock))?;
        Ok(Arc::new(provider))
    }

    fn cut_off(&self) -> Option<Restore> {
        self.0.set(|faults| faults.is_cut_off = true);
        let map = Arc::clone(&self.0);
        Some(Restore::new(move || map.set(|it| it.is_cut_off = false)))
    }

    fn slow_down(&self, by: Duration) -> Option<Restore> {
        self.0.set(|faults| faults.delay = by);
        let map = Arc::clone(&self.0);
        Some(Restore::new(move || {
            map.set(|it| it.delay = Duration::ZERO);
        }))
    }

    fn wipe(&self) -> bool {
        self.0.wipe();
        true
    }

    fn end_lease(&self, namespace: &str, name: &str) -> bool {
        self.0.free(namespace, name)
    }

    fn tells(&self) -> &'static [Loss] {
        match self.0.notifies {
            true => &[Loss::Unlocked, Loss::Wiped],
            false => &[],
        }
    }

    fn leftovers(&self) -> Option<Vec<String>> {
        Some(self.0.held())
    }
}

fn suite(name: &'static str, notifies: bool, faults: Faults) -> Suite {
    Suite::new(env!("CARGO_PKG_NAME"), name, move || {
        Box::new(Fresh(Arc::new(Map::new(notifies, faults.clone()))))
    })
}

fn main() -> ExitCode {
    Run::new()
        .suite(suite("notifying", true, Faults::default()))
        .suite(suite("polling", false, Faults::default()))
        .main()
}
