//! What is said to a server: ZooKeeper's own encoding, jute, and the paths of nodes.

mod jute;
pub(crate) mod paths;
mod reply;
mod request;

pub(crate) use jute::{Decoder, put_buffer};
pub(crate) use reply::{Code, Reply};
pub(crate) use request::{Acl, Request};
