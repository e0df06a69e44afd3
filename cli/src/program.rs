//! The file of this program, from which it starts its helper processes.

use std::io;
use std::path::PathBuf;

/// Returns the path of this program. On Linux it is right even after the file was replaced.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe()
}
