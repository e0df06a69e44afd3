//! The paths of nodes.
//!
//! All entries of a namespace are in one node, so nothing but the entry is made for a name.

use lockkeeper_register::Key;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All that is encoded. A node's name has no slash and no control character, and is not a dot.
const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// The paths of a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    chroot: String,
    /// The node of all namespaces.
    pub(crate) root: String,
    /// The node of this namespace.
    pub(crate) namespace: String,
    /// The node of all entries.
    pub(crate) entries: String,
    /// The node of all sessions.
    pub(crate) sessions: String,
}

impl Paths {
    pub(crate) fn new(chroot: &str, namespace: &str) -> Self {
        let root = format!("{chroot}/lockkeeper");
        let namespace = format!("{root}/{}", utf8_percent_encode(namespace, &ENCODED));
        Self {
            chroot: chroot.to_owned(),
            entries: format!("{namespace}/entries"),
            sessions: format!("{namespace}/sessions"),
            root,
            namespace,
        }
    }

    /// Returns the path that the URL has.
    pub(crate) fn chroot(&self) -> &str {
        match self.chroot.as_str() {
            "" => "/",
            chroot => chroot,
        }
    }

    pub(crate) fn entry(&self, key: &Key) -> String {
        format!(
            "{}/{}",
            self.entries,
            utf8_percent_encode(key.as_str(), &ENCODED)
        )
    }

    /// Returns the path of the node of a session. A text that names no session is the name of a node, too.
    pub(crate) fn session(&self, session: &str) -> String {
        format!("{}/s-{session}", self.sessions)
    }

    /// Returns what is made at opening, each after what it is in.
    pub(crate) fn folders(&self) -> [&str; 4] {
        [&self.root, &self.namespace, &self.entries, &self.sessions]
    }
}
