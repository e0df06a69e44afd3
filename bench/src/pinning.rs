//! Pins client and server to a core each, as they are on two machines. Otherwise the scheduler runs the
//! server on the client's core for a while and then on another one, which takes three times as long, and
//! a ratio would depend on which of the two rows met which phase.

use std::io;

#[cfg(target_os = "linux")]
use rustix::io::Errno;
#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// Pins this thread and those that it starts to one core, and the server to another, until it is dropped.
/// With a single core, without a server, or on a system other than Linux, nothing changes.
#[cfg(target_os = "linux")]
pub(crate) struct Pinned {
    before: CpuSet,
}

#[cfg(target_os = "linux")]
impl Pinned {
    /// Pins client and server. Call this before opening the connections that are measured, since the threads of a server
    /// inherit the core from the threads that start them.
    pub(crate) fn to_own_cores(server: Option<u32>) -> io::Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| before.is_set(*core));
        if let (Some(server), Some(ours), Some(theirs)) = (server, cores.next(), cores.next_back())
        {
            sched_setaffinity(None, &only(ours))?;
            for task in std::fs::read_dir(format!("/proc/{server}/task"))? {
                let task = task?.file_name().to_string_lossy().parse();
                let Some(task) = task.ok().and_then(Pid::from_raw) else {
                    continue;
                };
                match sched_setaffinity(Some(task), &only(theirs)) {
                    // The thread has ended.
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(Self { before })
    }
}

#[cfg(target_os = "linux")]
impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(target_os = "linux")]
fn only(core: usize) -> CpuSet {
    let mut cores = CpuSet::new();
    cores.set(core);
    cores
}

#[cfg(not(target_os = "linux"))]
pub(crate) struct Pinned;

#[cfg(not(target_os = "linux"))]
impl Pinned {
    pub(crate) fn to_own_cores(_: Option<u32>) -> io::Result<Self> {
        Ok(Self)
    }
}
