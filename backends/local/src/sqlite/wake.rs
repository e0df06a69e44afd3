//! Notifications between processes. Every waiter receives datagrams on a socket that is bound to a file
//! beside the database, and the row of the waiter names that file.
//!
//! A notification makes the waiter attempt the lock earlier. Without it, or where no socket can be
//! bound, the waiter polls.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::process::Process;
use crate::lock;

pub(super) use system::Parker;

/// The result of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notified {
    /// The notification was sent, or this system cannot send it.
    Maybe,
    /// No process receives at that address any more.
    Gone,
}

/// The idle parkers of one provider, and the sender to the parkers of other processes.
#[derive(Debug)]
pub(super) struct ParkerPool {
    idle: Mutex<Vec<Arc<Parker>>>,
    folder: system::SocketFolder,
}

/// The number of idle parkers that are kept. More threads rarely wait at once.
const MAX_IDLE: usize = 8;

impl ParkerPool {
    /// Creates the pool for the database at the absolute `path`, and removes the sockets of dead
    /// processes.
    pub(super) fn new(path: &Path) -> Self {
        let folder = system::SocketFolder::new(path);
        folder.remove_dead_sockets();
        Self {
            idle: Mutex::default(),
            folder,
        }
    }

    /// Returns a parker without pending notifications.
    pub(super) fn take(&self) -> Arc<Parker> {
        let idle = lock(&self.idle).pop();
        let parker = idle
            .filter(|parker| parker.exists())
            .unwrap_or_else(|| Arc::new(self.folder.bind()));
        parker.clear();
        parker
    }

    /// Keeps a parker that is not in the row of a waiter any more.
    pub(super) fn keep(&self, parker: Arc<Parker>) {
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE {
            idle.push(parker);
        }
    }

    /// Notifies the parker at `address`, in this or another process.
    pub(super) fn notify(&self, address: &str) -> Notified {
        self.folder.notify(address)
    }
}

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    /// A notification arrived, or time passed.
    Poll,
    /// The watched holder ended.
    HolderEnded,
}

/// Notices the end of a holder's process at once.
#[derive(Debug)]
pub(super) struct HolderWatch {
    pub(super) process: Process,
    #[cfg(target_os = "linux")]
    fd: std::os::fd::OwnedFd,
}

impl HolderWatch {
    /// Returns `None` if the system cannot watch the process, or the process has ended.
    pub(super) fn new(process: &Process) -> Option<Self> {
        #[cfg(target_os = "linux")]
        {
            let fd = process.watch()?;
            Some(Self {
                process: process.clone(),
                fd,
            })
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = process;
            None
        }
    }
}

#[cfg(unix)]
mod system {
    use std::fs;
    use std::io::ErrorKind;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;
    use std::os::unix::net::UnixDatagram;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::{HolderWatch, Notified, WakeReason};

    /// `sun_path` has 108 bytes on Linux, 104 elsewhere, with the NUL at the end.
    const MAX_SOCKET_PATH: usize = 103;
    /// A younger socket may not receive yet: its file exists a little earlier.
    const MIN_AGE: Duration = Duration::from_secs(10);

    #[derive(Debug)]
    pub(super) struct SocketFolder {
        database: PathBuf,
        folder: PathBuf,
        prefix: String,
        /// Unbound and non-blocking.
        sender: Option<UnixDatagram>,
        /// Gives a folder with a long path a short path in /proc.
        #[cfg(target_os = "linux")]
        handle: Option<fs::File>,
    }

    impl SocketFolder {
        pub(super) fn new(path: &Path) -> Self {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
            let sender = UnixDatagram::unbound().ok();
            Self {
                sender: sender.filter(|socket| socket.set_nonblocking(true).is_ok()),
                #[cfg(target_os = "linux")]
                handle: fs::File::open(&folder).ok(),
                prefix: format!("{file}-wake-"),
                database: path.to_owned(),
                folder,
            }
        }

        /// Returns a path for the socket that fits into its address.
        fn socket_path(&self, address: &str) -> Option<PathBuf> {
            let direct = self.folder.join(address);
            if direct.as_os_str().len() <= MAX_SOCKET_PATH {
                return Some(direct);
            }
            #[cfg(target_os = "linux")]
            {
                use std::os::fd::AsRawFd;
                let handle = self.handle.as_ref()?.as_raw_fd();
                let short = PathBuf::from(format!("/proc/self/fd/{handle}/{address}"));
                (short.as_os_str().len() <= MAX_SOCKET_PATH).then_some(short)
            }
            #[cfg(not(target_os = "linux"))]
            None
        }

        pub(super) fn bind(&self) -> Parker {
            for _ in 0..4 {
                let address = format!(
                    "{}{}-{:08x}",
                    self.prefix,
                    std::process::id(),
                    fastrand::u32(..)
                );
                let Some(short) = self.socket_path(&address) else {
                    break;
                };
                let Ok(receiver) = UnixDatagram::bind(&short) else {
                    continue;
                };
                let file = self.folder.join(&address);
                // Users that may write the database may notify.
                if let Ok(data) = fs::metadata(&self.database) {
                    let _ = fs::set_permissions(&file, data.permissions());
                }
                let own_sender = UnixDatagram::unbound().and_then(|own_sender| {
                    own_sender.connect(&short)?;
                    Ok(own_sender)
                });
                if let Some(parker) = Parker::new(receiver, own_sender, address, Some(file.clone()))
                {
                    return parker;
                }
                let _ = fs::remove_file(file);
            }
            // Without a bound socket, only this process can notify the parker.
            UnixDatagram::pair()
                .ok()
                .and_then(|(receiver, own_sender)| {
                    Parker::new(receiver, Ok(own_sender), String::new(), None)
                })
                .unwrap_or_default()
        }

        pub(super) fn notify(&self, address: &str) -> Notified {
            // The address comes from another process, and must not leave the folder.
            let (true, Some(sender)) = (address.starts_with(&self.prefix), &self.sender) else {
                return Notified::Maybe;
            };
            let Some(short) = self.socket_path(address).filter(|_| !address.contains('/')) else {
                return Notified::Maybe;
            };
            match sender.send_to(&[1], short) {
                Err(error) => match error.kind() {
                    ErrorKind::NotFound => Notified::Gone,
                    ErrorKind::ConnectionRefused => {
                        let _ = fs::remove_file(self.folder.join(address));
                        Notified::Gone
                    }
                    _ => Notified::Maybe,
                },
                Ok(_) => Notified::Maybe,
            }
        }

        pub(super) fn remove_dead_sockets(&self) {
            let Ok(entries) = fs::read_dir(&self.folder) else {
                return;
            };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let Some(name) = name.to_str().filter(|it| it.starts_with(&self.prefix)) else {
                    continue;
                };
                let is_old = entry.metadata().is_ok_and(|data| {
                    let age = data.modified().map(|at| at.elapsed().unwrap_or_default());
                    data.file_type().is_socket() && age.is_ok_and(|age| age > MIN_AGE)
                });
                let refused = || {
                    let short = self.socket_path(name)?;
                    let error = UnixDatagram::unbound().ok()?.connect(short).err()?;
                    Some(error.kind() == ErrorKind::ConnectionRefused)
                };
                if is_old && refused().unwrap_or(false) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }

    /// The socket on which one waiter receives notifications. The default has none.
    #[derive(Debug, Default)]
    pub(in crate::sqlite) struct Parker {
        sockets: Option<(UnixDatagram, UnixDatagram)>,
        address: String,
        file: Option<PathBuf>,
    }

    impl Parker {
        fn new(
            receiver: UnixDatagram,
            own_sender: std::io::Result<UnixDatagram>,
            address: String,
            file: Option<PathBuf>,
        ) -> Option<Self> {
            let own_sender = own_sender.ok()?;
            receiver.set_nonblocking(true).ok()?;
            own_sender.set_nonblocking(true).ok()?;
            Some(Self {
                sockets: Some((receiver, own_sender)),
                address,
                file,
            })
        }

        /// Returns the address for other processes. It is empty if they cannot reach this parker.
        pub(in crate::sqlite) fn address(&self) -> &str {
            &self.address
        }

        /// Returns whether the file of the socket still exists: another program may have deleted it.
        pub(in crate::sqlite) fn exists(&self) -> bool {
            self.file.as_ref().is_none_or(|file| file.exists())
        }

        /// Wakes the waiter of this parker.
        pub(in crate::sqlite) fn unpark(&self) {
            if let Some((_, own_sender)) = &self.sockets {
                // A full buffer contains a notification already.
                let _ = own_sender.send(&[1]);
            }
        }

        /// Discards pending notifications.
        pub(in crate::sqlite) fn clear(&self) {
            if let Some((receiver, _)) = &self.sockets {
                let mut buffer = [0; 8];
                while receiver.recv(&mut buffer).is_ok() {}
            }
        }

        /// Waits for a notification, for the end of `holder`, or until `limit` has passed.
        pub(in crate::sqlite) fn wait(
            &self,
            holder: Option<&HolderWatch>,
            limit: Duration,
        ) -> WakeReason {
            let Some((receiver, _)) = &self.sockets else {
                std::thread::sleep(limit.min(Duration::from_millis(5)));
                return WakeReason::Poll;
            };
            let limit = Timespec {
                tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: limit.subsec_nanos().into(),
            };
            let receiver = PollFd::from_borrowed_fd(receiver.as_fd(), PollFlags::IN);
            // A signal ends the wait early, which costs one attempt.
            #[cfg(target_os = "linux")]
            if let Some(watch) = holder {
                let end = PollFd::from_borrowed_fd(watch.fd.as_fd(), PollFlags::IN);
                let mut both = [end, receiver];
                let _ = poll(&mut both, Some(&limit));
                let [end, _] = both;
                return if end.revents().is_empty() {
                    WakeReason::Poll
                } else {
                    WakeReason::HolderEnded
                };
            }
            let _ = holder;
            let _ = poll(&mut [receiver], Some(&limit));
            WakeReason::Poll
        }
    }

    impl Drop for Parker {
        fn drop(&mut self) {
            if let Some(file) = &self.file {
                let _ = fs::remove_file(file);
            }
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::path::Path;
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    use super::{HolderWatch, Notified, WakeReason};
    use crate::lock;

    #[derive(Debug)]
    pub(super) struct SocketFolder;

    impl SocketFolder {
        pub(super) fn new(_path: &Path) -> Self {
            Self
        }

        pub(super) fn bind(&self) -> Parker {
            Parker::default()
        }

        pub(super) fn notify(&self, _address: &str) -> Notified {
            Notified::Maybe
        }

        pub(super) fn remove_dead_sockets(&self) {}
    }

    /// Wakes one waiter of this process.
    #[derive(Debug, Default)]
    pub(in crate::sqlite) struct Parker {
        is_notified: Mutex<bool>,
        changed: Condvar,
    }

    impl Parker {
        pub(in crate::sqlite) fn address(&self) -> &str {
            ""
        }

        pub(in crate::sqlite) fn exists(&self) -> bool {
            true
        }

        pub(in crate::sqlite) fn unpark(&self) {
            *lock(&self.is_notified) = true;
            self.changed.notify_one();
        }

        pub(in crate::sqlite) fn clear(&self) {
            *lock(&self.is_notified) = false;
        }

        pub(in crate::sqlite) fn wait(
            &self,
            _holder: Option<&HolderWatch>,
            limit: Duration,
        ) -> WakeReason {
            let notified = lock(&self.is_notified);
            drop(
                self.changed
                    .wait_timeout_while(notified, limit, |notified| !*notified),
            );
            WakeReason::Poll
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[test]
    fn sockets_work_in_folders_with_long_paths() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("long".repeat(40));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("locks.db"), "").unwrap();
        let parkers = ParkerPool::new(&folder.join("locks.db"));
        let parker = parkers.take();
        assert_eq!(parker.address().is_empty(), !cfg!(target_os = "linux"));
        assert_eq!(parkers.notify(parker.address()), Notified::Maybe);
        parker.wait(None, Duration::from_secs(60));
        let gone = parker.address().to_owned();
        drop(parker);
        if cfg!(target_os = "linux") {
            assert_eq!(parkers.notify(&gone), Notified::Gone);
        }
        let files = fs::read_dir(&folder).unwrap().flatten();
        let names: Vec<_> = files.map(|file| file.file_name()).collect();
        assert_eq!(names, ["locks.db"]);
    }
}
