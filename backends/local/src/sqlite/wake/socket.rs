//! Parkers with sockets in the folder of the database.

use std::fs;
use std::io::{self, ErrorKind};
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::fd::{AsFd, BorrowedFd};
#[cfg(target_os = "linux")]
use std::os::unix::fs::chown;
#[cfg(not(target_os = "linux"))]
use std::os::unix::fs::lchown as chown;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
#[cfg(target_os = "linux")]
use rustix::fs::{Mode, OFlags};

use super::{Notified, Role, WakeReason};
use crate::sqlite::process::HolderWatch;

/// `sun_path` has 108 bytes on Linux, 104 elsewhere, with the NUL at the end.
const MAX_SOCKET_PATH: usize = 103;
/// A younger socket may not receive yet: its file exists a little earlier.
const MIN_AGE: Duration = Duration::from_secs(10);

/// Returns the start of the names of a database's sockets. It is as short for every database, so that each name fits into a
/// socket's address. It begins with a dot, so that `rm locks.db*` leaves the sockets: by them, the program that
/// creates the file again notifies the holders.
fn prefix(database: &Path) -> String {
    let name = database.file_name().unwrap_or_default();
    // FNV-1a, which is the same in all versions of this program.
    let hash = name.as_encoded_bytes().iter();
    let hash = hash.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!(".lockkeeper-{hash:016x}-wake-")
}

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
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        let sender = UnixDatagram::unbound().ok();
        Self {
            sender: sender.filter(|socket| socket.set_nonblocking(true).is_ok()),
            #[cfg(target_os = "linux")]
            handle: fs::File::open(&folder).ok(),
            prefix: prefix(path),
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
            let handle = self.handle.as_ref()?.as_raw_fd();
            let short = PathBuf::from(format!("/proc/self/fd/{handle}/{address}"));
            (short.as_os_str().len() <= MAX_SOCKET_PATH).then_some(short)
        }
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// Binds a waiter's parker.
    pub(super) fn bind_waiter(&self) -> Parker {
        let bound = (0..4).find_map(|_| self.try_bind(Role::Waiter));
        // Without a bound socket, only this process can notify the parker.
        let unbound = || Parker::default().with_sockets(UnixDatagram::pair().ok()?);
        bound.or_else(unbound).unwrap_or_default()
    }

    /// Binds a parker that other processes can notify. Its role is part of its address.
    pub(super) fn try_bind(&self, role: Role) -> Option<Parker> {
        let (prefix, pid, role) = (&self.prefix, std::process::id(), role.as_str());
        let address = format!("{prefix}{pid}-{role}{:08x}", fastrand::u32(..));
        let short = self.socket_path(&address)?;
        let receiver = UnixDatagram::bind(&short).ok()?;
        let file = self.folder.join(&address);
        // Otherwise, other users find waiters by asking again.
        let _ = self.share(&file);
        // From here on, dropping the parker removes the file.
        let parker = Parker {
            sockets: None,
            address,
            file: Some(file),
            pid,
        };
        let own_sender = UnixDatagram::unbound().ok()?;
        own_sender.connect(&short).ok()?;
        parker.with_sockets((receiver, own_sender))
    }

    /// Gives a socket the database's permissions, and its owner and group where this user may. So all users who may
    /// write the database can notify the socket.
    fn share(&self, socket: &Path) -> io::Result<()> {
        let database = fs::metadata(&self.database)?;
        // The folder's owner could put another file in the socket's place, which only this user may change.
        #[cfg(target_os = "linux")]
        let opened = fs::File::from(rustix::fs::open(
            socket,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?);
        #[cfg(target_os = "linux")]
        let socket = &match opened.metadata()?.file_type().is_socket() {
            true => PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd())),
            false => return Ok(()),
        };
        let _ = chown(socket, None, Some(database.gid()));
        let _ = chown(socket, Some(database.uid()), None);
        fs::set_permissions(socket, database.permissions())
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

    /// Returns the sockets beside the database, each with its address.
    fn sockets(&self) -> impl Iterator<Item = (fs::DirEntry, String)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let address = entry.file_name().into_string().ok()?;
            address
                .starts_with(&self.prefix)
                .then_some((entry, address))
        })
    }

    /// Notifies the processes that hold leases: that with this `pid`, or all of them.
    pub(super) fn notify_holders(&self, pid: Option<u32>) {
        for (_, address) in self.sockets() {
            let rest = address.strip_prefix(&self.prefix);
            let Some((process, rest)) = rest.and_then(|rest| rest.split_once('-')) else {
                continue;
            };
            let is_meant = pid.is_none_or(|pid| process == pid.to_string());
            if is_meant && rest.starts_with(Role::Holder.as_str()) {
                self.notify(&address);
            }
        }
    }

    pub(super) fn remove_dead_sockets(&self) {
        for (entry, address) in self.sockets() {
            let is_old = entry.metadata().is_ok_and(|data| {
                let age = data.modified().map(|at| at.elapsed().unwrap_or_default());
                data.file_type().is_socket() && age.is_ok_and(|age| age > MIN_AGE)
            });
            let refused = || {
                let short = self.socket_path(&address)?;
                let error = UnixDatagram::unbound().ok()?.connect(short).err()?;
                Some(error.kind() == ErrorKind::ConnectionRefused)
            };
            if is_old && refused().unwrap_or(false) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// The socket on which one thread receives notifications. The default has none.
#[derive(Debug, Default)]
pub(in crate::sqlite) struct Parker {
    /// The receiver, and a sender that is connected to it.
    sockets: Option<(UnixDatagram, UnixDatagram)>,
    address: String,
    file: Option<PathBuf>,
    /// The process that made the file. A forked child has a copy of this, and must leave the file.
    pid: u32,
}

impl Parker {
    fn with_sockets(mut self, sockets: (UnixDatagram, UnixDatagram)) -> Option<Self> {
        sockets.0.set_nonblocking(true).ok()?;
        sockets.1.set_nonblocking(true).ok()?;
        self.sockets = Some(sockets);
        Some(self)
    }

    /// Returns the address for other processes. It is empty if they cannot reach this parker.
    pub(in crate::sqlite) fn address(&self) -> &str {
        &self.address
    }

    /// Returns whether the file of the socket still exists: another program may have deleted it.
    pub(in crate::sqlite) fn exists(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.exists())
    }

    /// Wakes the thread that waits on this parker.
    pub(in crate::sqlite) fn unpark(&self) {
        if let Some((_, own_sender)) = &self.sockets {
            // A full buffer contains a notification already.
            let _ = own_sender.send(&[1]);
        }
    }

    /// Discards pending notifications. Returns whether there were any.
    pub(in crate::sqlite) fn clear(&self) -> bool {
        let Some((receiver, _)) = &self.sockets else {
            return false;
        };
        let mut buffer = [0; 8];
        let received = std::iter::from_fn(|| receiver.recv(&mut buffer).ok());
        received.count() > 0
    }

    /// Waits for a notification, for the end of one of `holders`, or until `limit` has passed.
    pub(in crate::sqlite) fn wait(&self, holders: &[HolderWatch], limit: Duration) -> WakeReason {
        let Some((receiver, _)) = &self.sockets else {
            // Without sockets (no descriptor was left) nothing can wake this waiter, so it polls.
            std::thread::sleep(limit.min(Duration::from_millis(5)));
            return WakeReason::Poll;
        };
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mut polled = Vec::with_capacity(holders.len() + 1);
        #[cfg(target_os = "linux")]
        polled.extend(holders.iter().map(|watch| readable(watch.fd.as_fd())));
        polled.push(readable(receiver.as_fd()));
        // A signal ends the wait early, which costs one attempt.
        let _ = poll(&mut polled, Some(&limit));
        let ended = |polled: &PollFd<'_>| !polled.revents().is_empty();
        let ended = polled.iter().take(holders.len()).position(ended);
        ended.map_or(WakeReason::Poll, WakeReason::HolderEnded)
    }
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

impl Drop for Parker {
    fn drop(&mut self) {
        if let Some(file) = &self.file
            && self.pid == std::process::id()
        {
            let _ = fs::remove_file(file);
        }
    }
}
