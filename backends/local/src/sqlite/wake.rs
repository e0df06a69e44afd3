//! How a release in one process wakes a waiter in another: every waiter listens on a datagram
//! socket bound to a file beside the database, and its row names that file.
//!
//! A datagram says "look"; nothing depends on its arrival but how soon that happens. Where no
//! socket can be bound, a waiter's looks in between are all there is.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::process::Process;

/// What became of a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    /// It was sent, or there is no way to send it.
    Perhaps,
    /// Nobody listens there any more.
    Gone,
}

/// The bells of one provider: those that are not in use, and the way to other processes' bells.
#[derive(Debug)]
pub(super) struct Bells {
    idle: Mutex<Vec<Arc<Bell>>>,
    place: system::Place,
}

/// Bells that are kept for later; more than that many threads rarely wait at once.
const KEPT: usize = 8;

impl Bells {
    /// For the database at `path`, which is absolute. Removes what dead processes left there.
    pub(super) fn new(path: &Path) -> Self {
        let place = system::Place::new(path);
        place.sweep();
        Self {
            idle: Mutex::default(),
            place,
        }
    }

    /// A silent bell.
    pub(super) fn take(&self) -> Arc<Bell> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let bell = idle.filter(|bell| bell.is_there()).unwrap_or_else(|| {
            Arc::new(Bell {
                inner: self.place.bind(),
            })
        });
        bell.drain();
        bell
    }

    /// Keeps a bell that no waiter's row names any more.
    pub(super) fn keep(&self, bell: Arc<Bell>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(bell);
        }
    }

    /// Rings the bell of that address, which may be another process's.
    pub(super) fn ring(&self, address: &str) -> Rung {
        self.place.ring(address)
    }
}

/// What one waiter listens on.
#[derive(Debug)]
pub(super) struct Bell {
    inner: system::Bell,
}

impl Bell {
    /// For other processes; empty where they cannot reach it.
    pub(super) fn address(&self) -> &str {
        self.inner.address()
    }

    /// Whether others still find it: somebody may have cleaned up.
    pub(super) fn is_there(&self) -> bool {
        self.inner.is_there()
    }

    /// Wakes the one that waits with it.
    pub(super) fn poke(&self) {
        self.inner.poke();
    }

    /// Forgets what rang before.
    pub(super) fn drain(&self) {
        self.inner.drain();
    }

    /// Waits until it rings, `holder` ends or `limit` has passed.
    pub(super) fn wait(&self, holder: Option<&Watch>, limit: Duration) -> Woken {
        self.inner.wait(holder, limit)
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// It rang, or time passed.
    Look,
    /// The watched holder ended.
    HolderEnded,
}

/// A holder whose end is to be noticed at once.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) process: Process,
    #[cfg(target_os = "linux")]
    fd: std::os::fd::OwnedFd,
}

impl Watch {
    /// `None` where the system cannot do it, or where it has nothing to wait for.
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

    use super::{Rung, Watch, Woken};

    /// `sun_path` has 108 bytes on Linux, 104 elsewhere, with the NUL at the end.
    const LONGEST: usize = 103;
    /// A file is there a moment before somebody listens on it.
    const YOUNG: Duration = Duration::from_secs(10);

    #[derive(Debug)]
    pub(super) struct Place {
        database: PathBuf,
        folder: PathBuf,
        prefix: String,
        /// Unbound and non-blocking; what rings other bells.
        sender: Option<UnixDatagram>,
        /// A short way to a folder with a long name.
        #[cfg(target_os = "linux")]
        handle: Option<fs::File>,
    }

    impl Place {
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

        /// Where a socket of that file name can be bound or reached.
        fn short(&self, address: &str) -> Option<PathBuf> {
            let direct = self.folder.join(address);
            if direct.as_os_str().len() <= LONGEST {
                return Some(direct);
            }
            #[cfg(target_os = "linux")]
            {
                use std::os::fd::AsRawFd;
                let handle = self.handle.as_ref()?.as_raw_fd();
                let short = PathBuf::from(format!("/proc/self/fd/{handle}/{address}"));
                (short.as_os_str().len() <= LONGEST).then_some(short)
            }
            #[cfg(not(target_os = "linux"))]
            None
        }

        pub(super) fn bind(&self) -> Bell {
            for _ in 0..4 {
                let address = format!(
                    "{}{}-{:08x}",
                    self.prefix,
                    std::process::id(),
                    fastrand::u32(..)
                );
                let Some(short) = self.short(&address) else {
                    break;
                };
                let Ok(ears) = UnixDatagram::bind(&short) else {
                    continue;
                };
                let file = self.folder.join(&address);
                // Whoever may write the database may ring.
                if let Ok(data) = fs::metadata(&self.database) {
                    let _ = fs::set_permissions(&file, data.permissions());
                }
                let mouth = UnixDatagram::unbound().and_then(|mouth| {
                    mouth.connect(&short)?;
                    Ok(mouth)
                });
                if let Some(bell) = Bell::new(ears, mouth, address, Some(file.clone())) {
                    return bell;
                }
                let _ = fs::remove_file(file);
            }
            // Out of others' reach: it can be poked by this process, and looks now and then.
            UnixDatagram::pair()
                .ok()
                .and_then(|(ears, mouth)| Bell::new(ears, Ok(mouth), String::new(), None))
                .unwrap_or_default()
        }

        pub(super) fn ring(&self, address: &str) -> Rung {
            // An address is another process's word: never a way out of the folder.
            let (true, Some(sender)) = (address.starts_with(&self.prefix), &self.sender) else {
                return Rung::Perhaps;
            };
            let Some(short) = self.short(address).filter(|_| !address.contains('/')) else {
                return Rung::Perhaps;
            };
            match sender.send_to(&[1], short) {
                Err(error) => match error.kind() {
                    ErrorKind::NotFound => Rung::Gone,
                    ErrorKind::ConnectionRefused => {
                        let _ = fs::remove_file(self.folder.join(address));
                        Rung::Gone
                    }
                    _ => Rung::Perhaps,
                },
                Ok(_) => Rung::Perhaps,
            }
        }

        pub(super) fn sweep(&self) {
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
                    data.file_type().is_socket() && age.is_ok_and(|age| age > YOUNG)
                });
                let refused = || {
                    let short = self.short(name)?;
                    let error = UnixDatagram::unbound().ok()?.connect(short).err()?;
                    Some(error.kind() == ErrorKind::ConnectionRefused)
                };
                if is_old && refused().unwrap_or(false) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }

    /// The default neither rings nor is rung.
    #[derive(Debug, Default)]
    pub(super) struct Bell {
        line: Option<(UnixDatagram, UnixDatagram)>,
        address: String,
        file: Option<PathBuf>,
    }

    impl Bell {
        fn new(
            ears: UnixDatagram,
            mouth: std::io::Result<UnixDatagram>,
            address: String,
            file: Option<PathBuf>,
        ) -> Option<Self> {
            let mouth = mouth.ok()?;
            ears.set_nonblocking(true).ok()?;
            mouth.set_nonblocking(true).ok()?;
            Some(Self {
                line: Some((ears, mouth)),
                address,
                file,
            })
        }

        pub(super) fn address(&self) -> &str {
            &self.address
        }

        pub(super) fn is_there(&self) -> bool {
            self.file.as_ref().is_none_or(|file| file.exists())
        }

        pub(super) fn poke(&self) {
            if let Some((_, mouth)) = &self.line {
                // A full buffer rings, too.
                let _ = mouth.send(&[1]);
            }
        }

        pub(super) fn drain(&self) {
            if let Some((ears, _)) = &self.line {
                let mut buffer = [0; 8];
                while ears.recv(&mut buffer).is_ok() {}
            }
        }

        pub(super) fn wait(&self, holder: Option<&Watch>, limit: Duration) -> Woken {
            let Some((ears, _)) = &self.line else {
                std::thread::sleep(limit.min(Duration::from_millis(5)));
                return Woken::Look;
            };
            let limit = Timespec {
                tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: limit.subsec_nanos().into(),
            };
            let ears = PollFd::from_borrowed_fd(ears.as_fd(), PollFlags::IN);
            // A signal ends the wait early: one look more.
            #[cfg(target_os = "linux")]
            if let Some(watch) = holder {
                let end = PollFd::from_borrowed_fd(watch.fd.as_fd(), PollFlags::IN);
                let mut both = [end, ears];
                let _ = poll(&mut both, Some(&limit));
                let [end, _] = both;
                return if end.revents().is_empty() {
                    Woken::Look
                } else {
                    Woken::HolderEnded
                };
            }
            let _ = holder;
            let _ = poll(&mut [ears], Some(&limit));
            Woken::Look
        }
    }

    impl Drop for Bell {
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
    use std::sync::{Condvar, Mutex, PoisonError};
    use std::time::Duration;

    use super::{Rung, Watch, Woken};

    #[derive(Debug)]
    pub(super) struct Place;

    impl Place {
        pub(super) fn new(_path: &Path) -> Self {
            Self
        }

        pub(super) fn bind(&self) -> Bell {
            Bell::default()
        }

        pub(super) fn ring(&self, _address: &str) -> Rung {
            Rung::Perhaps
        }

        pub(super) fn sweep(&self) {}
    }

    #[derive(Debug, Default)]
    pub(super) struct Bell {
        rung: Mutex<bool>,
        changed: Condvar,
    }

    impl Bell {
        pub(super) fn address(&self) -> &str {
            ""
        }

        pub(super) fn is_there(&self) -> bool {
            true
        }

        pub(super) fn poke(&self) {
            *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.changed.notify_one();
        }

        pub(super) fn drain(&self) {
            *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = false;
        }

        pub(super) fn wait(&self, _holder: Option<&Watch>, limit: Duration) -> Woken {
            let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.changed.wait_timeout_while(rung, limit, |rung| !*rung));
            Woken::Look
        }
    }
}
