//! Notices that an operator took locks away, or that the store was wiped, where the store notifies of changes.
//!
//! `unlock` writes the entry `evictions` of the namespace. One thread of each provider waits for its changes, and asks the
//! keepers to verify their leases.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_utils::sync::Parker;
use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::pause;

use crate::entry::Contents;
use crate::key::Key;
use crate::register::Register;
use crate::store::{Call, Read, RegisterStore, Version, Write};

/// The time after the first grant after which the thread begins: most programs have released by then.
const AFTER: Duration = Duration::from_millis(50);
/// The longest wait for a change.
const WAIT: Duration = Duration::from_secs(60);
/// The pauses after requests that failed, the first and the longest. A loss in a pause is told after it: not later than the
/// contract says (rule 16), also at the end of an outage.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_millis(80);

/// Returns the key of the entry that changes when an operator takes a lock away.
pub(crate) fn evictions() -> Key {
    Key::of_namespace("evictions")
}

/// Starts the thread, which ends with the provider, or at once if the store does not notify. `parker` is unparked by the
/// first grant, and by the end of the provider.
pub(crate) fn start(register: &Register, parker: Parker) -> Result<(), Error> {
    let store = Arc::clone(&register.store);
    let clock = Arc::clone(&register.clock);
    let verifiers = Arc::clone(&register.verifiers);
    let (closing, key) = (register.closing.clone(), evictions());
    let run = move || {
        let now = Call::until(clock.now());
        if store.wait(&key, None, now).is_none() {
            return;
        }
        parker.park();
        pause(AFTER, Some(&closing));
        let (mut seen, mut retry_after) = (None, FIRST_RETRY);
        let back_off = |after: &mut Duration| {
            pause(*after, Some(&closing));
            *after = LONGEST_RETRY.min(2 * *after);
        };
        while !closing.is_cancelled() {
            let call = Call {
                deadline: clock.now() + WAIT,
                cancel: Some(&closing),
            };
            match current(&*store, &key, call) {
                Ok(version) => {
                    // Also at first: the change may have come before.
                    if version.is_some() && version != seen {
                        verifiers.verify_all();
                    }
                    seen = version;
                }
                Err(_) => {
                    back_off(&mut retry_after);
                    continue;
                }
            }
            match store.wait(&key, seen, call) {
                Some(Ok(())) => retry_after = FIRST_RETRY,
                Some(Err(_)) => back_off(&mut retry_after),
                None => return,
            }
        }
    };
    let spawned = thread::Builder::new()
        .name("lockkeeper-evictions".to_owned())
        .spawn(run);
    spawned.map(drop).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "a thread cannot be started").with_source(error)
    })
}

/// Returns the version of an entry, which is made if it is absent: then its end is noticed, too.
fn current(store: &dyn RegisterStore, key: &Key, call: Call<'_>) -> Result<Option<Version>, Error> {
    let keys = &[key];
    let view = store.read(
        &Read {
            keys,
            ..Read::default()
        },
        call,
    )?;
    match view.entries.into_iter().next().flatten() {
        Some(entry) => Ok(Some(entry.version)),
        None => signal(store, key, None, call),
    }
}

/// Writes the entry of evictions, and returns its version. `None` if another program has written it meanwhile.
pub(crate) fn signal(
    store: &dyn RegisterStore,
    key: &Key,
    seen: Option<Version>,
    call: Call<'_>,
) -> Result<Option<Version>, Error> {
    let text = Contents::free(key, 0).text();
    let write = Write {
        key,
        seen,
        session: None,
        also: None,
        value: Some(&text),
    };
    let written = store.write(&[write], call)?;
    Ok(written.into_iter().next().flatten())
}
