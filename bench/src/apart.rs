//! Client and server on a core each, as they are on two machines. Left alone, the scheduler has a
//! server answer on the asking core for a while and on another one after that, which takes three
//! times as long: a ratio would tell which of the two was lucky.

use std::io;

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// While it lives, this thread and what it starts run on one core, and the server on another. Where
/// there is one core only, no server, or a system other than Linux, nothing changes.
#[cfg(target_os = "linux")]
pub(crate) struct Apart {
    before: CpuSet,
}

#[cfg(target_os = "linux")]
impl Apart {
    /// To be had before the connections that are measured: a server's threads for these come to
    /// its core with the threads that start them.
    pub(crate) fn of(server: Option<u32>) -> io::Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| before.is_set(*core));
        if let (Some(server), Some(ours), Some(theirs)) = (server, cores.next(), cores.next_back())
        {
            sched_setaffinity(None, &only(ours))?;
            for task in std::fs::read_dir(format!("/proc/{server}/task"))? {
                let task = task?.file_name().to_string_lossy().parse();
                let task = task.ok().and_then(Pid::from_raw);
                sched_setaffinity(task, &only(theirs))?;
            }
        }
        Ok(Self { before })
    }
}

#[cfg(target_os = "linux")]
impl Drop for Apart {
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
pub(crate) struct Apart;

#[cfg(not(target_os = "linux"))]
impl Apart {
    pub(crate) fn of(_: Option<u32>) -> io::Result<Self> {
        Ok(Self)
    }
}
