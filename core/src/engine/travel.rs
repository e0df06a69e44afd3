//! The one road to a store: requests as values, a queue of them for each part, and the threads that send them.

pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod sender;
