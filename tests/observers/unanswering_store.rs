//! A store that grants every lock, and answers no renewal and no release.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backend::{AcquireRequest, Backend, Capabilities, Grant, Operation, StoreInfo};
use lockkeeper::{Error, ErrorKind, LeasePolicy, LockKeeper, Observer};

#[derive(Debug)]
struct UnansweringStore;

/// Opens a keeper that renews no lease, so that only the test asks for renewals.
pub(crate) fn open(observer: Arc<dyn Observer>) -> LockKeeper {
    let ttl = Duration::from_secs(60);
    LockKeeper::builder(Arc::new(UnansweringStore))
        .lease(LeasePolicy::Fixed { ttl })
        .observer(observer)
        .build()
        .unwrap()
}

fn no_connection() -> Error {
    Error::new(ErrorKind::Unavailable, "no connection")
}

impl StoreInfo for UnansweringStore {
    fn backend(&self) -> &'static str {
        "unanswering"
    }

    fn location(&self) -> String {
        "unanswering:".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }
}

impl Backend for UnansweringStore {
    type Lease = ();

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<()>>, Error> {
        Ok(Some(Grant {
            lease: (),
            epoch: 1,
            asked_at: request.now(),
            slot: 0,
        }))
    }

    fn batch(&self, batch: &mut [Operation<'_, ()>]) {
        for operation in batch {
            match operation {
                Operation::Acquire(it) => it.answer = Some(Backend::acquire(self, it.request)),
                other => other.fail(no_connection()),
            }
        }
    }
}
