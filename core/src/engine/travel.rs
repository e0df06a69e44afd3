//! The one road to a store: requests as values, a queue of them for each part, and the threads that send them.

pub(crate) mod request;
pub(crate) mod request_queue;
pub(crate) mod sender;
