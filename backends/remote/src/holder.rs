//! What a store keeps of a holder for people.

use std::sync::OnceLock;

/// Returns the name of this host.
pub fn host_name() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let name = rustix::system::uname();
        name.nodename().to_string_lossy().into_owned()
    })
}
