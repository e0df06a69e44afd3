//! A temporary file that is removed when it is dropped.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file with a path that no other case or test program uses.
pub(crate) struct TempFile(PathBuf);

impl TempFile {
    pub(crate) fn new(text: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "lockkeeper-conformance-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("the temporary folder is writable");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // An error here means that the file is gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}
