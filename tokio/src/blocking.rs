//! Calls that block, on tokio's threads for them.

use lockkeeper_core::{Error, ErrorKind};
use tokio::task::spawn_blocking;

/// Runs a call on a thread for blocking work. A panic in it goes on in the caller.
pub(crate) async fn run<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match spawn_blocking(call).await {
        Ok(result) => result,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(ended) => {
                let text = "the runtime has ended, and the call was not made";
                Err(Error::new(ErrorKind::Cancelled, text).with_source(ended))
            }
        },
    }
}
