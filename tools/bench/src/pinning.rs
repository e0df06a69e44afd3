//! Pins client and server to a core each, as they are on two machines. Without pinning, the scheduler
//! moves the server between the client's core and another one. A request to another core takes three
//! times as long, so a ratio would depend on when its two rows were measured.

#[cfg(target_os = "linux")]
use std::fs;
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
    /// Pins client and server. Threads and sessions that the server starts later inherit the core.
    pub(crate) fn to_own_cores(server: Option<u32>) -> io::Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| before.is_set(*core));
        if let (Some(server), Some(ours), Some(theirs)) = (server, cores.next(), cores.next_back())
        {
            sched_setaffinity(None, &only(ours))?;
            pin(server, &only(theirs))?;
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

/// Pins the threads of a process, and its children, such as the sessions of PostgreSQL.
#[cfg(target_os = "linux")]
fn pin(process: u32, cores: &CpuSet) -> io::Result<()> {
    let tasks = format!("/proc/{process}/task");
    for task in fs::read_dir(&tasks)? {
        let task = task?.file_name().to_string_lossy().into_owned();
        let Some(thread) = task.parse().ok().and_then(Pid::from_raw) else {
            continue;
        };
        match sched_setaffinity(Some(thread), cores) {
            // It has ended meanwhile.
            Err(Errno::SRCH) => continue,
            pinned => pinned?,
        }
        let children = fs::read_to_string(format!("{tasks}/{task}/children")).unwrap_or_default();
        for child in children.split_whitespace() {
            // One that has ended meanwhile has no tasks.
            let _ = child.parse().map(|child| pin(child, cores));
        }
    }
    Ok(())
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
