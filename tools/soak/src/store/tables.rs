//! A table of a SQL server, and a proxy before it.

use std::io;
use std::sync::Arc;

use lockkeeper_testkit::StoreKind;

use super::{ServerSettings, Store, StoreFault};

pub(super) fn start(kind: StoreKind) -> io::Result<Store> {
    let server = kind.start()?;
    // A table outlives the server, so it takes no `restart_grace`.
    let settings = ServerSettings {
        restart_grace: None,
        is_restart_safe: true,
    };
    let [stopped, killed, emptied] = [(); 3].map(|()| Arc::clone(&server));
    let faults = vec![
        StoreFault::new("server stopped", move |lane| {
            stopped.stop()?;
            lane.spell();
            stopped.resume()
        }),
        StoreFault::new("server killed", move |lane| {
            killed.kill();
            lane.spell();
            killed.restart()
        }),
        StoreFault::new("table emptied", move |lane| {
            lane.journal.forget(|| emptied.wipe())
        }),
    ];
    Ok(Store {
        // A guard is told of a loss by its next renewal.
        telling_url: None,
        faults,
        ..Store::behind_proxy(server, &settings)?
    })
}
