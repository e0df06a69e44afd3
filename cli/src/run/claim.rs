//! The claim on a lock's name: while a watchdog holds it, no other `run` of this host starts a
//! command under that name.
//!
//! Some stores grant a dead holder's lock to the next caller at once, which can be quicker than
//! killing the holder's command. So the watchdog takes the claim before the command starts. It keeps
//! the claim until the command's process group is gone, or the lock is over.
//!
//! # Which claims count
//!
//! On Linux a claim is an abstract Unix socket whose name is a hash of store, namespace and lock. Any
//! local user can bind such a name. So a claim counts only if its socket belongs to the same user or
//! to root (`SO_PEERCRED`, see unix(7)):
//! - Root's claims are respected by every user.
//! - A user's claims are respected by that user alone. If root respected them, every user could delay
//!   root's commands. Two users that share a store are like two hosts: only the speed of KILL keeps
//!   their commands apart.
//! - If the socket of another user is bound to the name, the claim takes the name with a random
//!   suffix. Every watchdog finds such names in `/proc/self/net/unix`.
//!
//! The watchdog accepts connections and drops those of other users, so they cannot fill the queue of its
//! socket for long. A socket with a full queue is not a claim.

use lockkeeper::{LockKeeper, LockName};

#[cfg(target_os = "linux")]
pub(super) use socket::{Claim, Obstacle};
#[cfg(not(target_os = "linux"))]
pub(super) use unclaimed::{Claim, Obstacle};

#[cfg(target_os = "linux")]
mod socket {
    use std::hash::{BuildHasher, RandomState};
    use std::io;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    use nix::sys::socket::sockopt::PeerCredentials;
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket,
    };
    use rustix::process::{Uid, geteuid};

    use crate::run::poll::is_open;

    /// A claim that this process holds until the value is dropped.
    pub(in crate::run) struct Claim {
        /// `None` where no such socket can be made, so that no process has one.
        socket: Option<UnixListener>,
        /// The connections of the watchdogs that wait for the end of this claim.
        waiters: Vec<UnixStream>,
    }

    impl Claim {
        /// Takes the claim, unless a respected claim of another process is in the way.
        ///
        /// Two processes that try at the same time may both find the other in the way, but never
        /// both get the claim: each checks for others after it has bound its own socket.
        pub(in crate::run) fn take(name: &str) -> Result<Self, Obstacle> {
            let mut own = name.to_owned();
            let mut bound = listen(name);
            if matches!(&bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
                if let Some(obstacle) = Obstacle::find(name) {
                    return Err(obstacle);
                }
                let suffix = RandomState::new().hash_one(name);
                own = format!("{name}-{suffix:016x}");
                bound = listen(&own);
            }
            let socket = bound.ok();
            let mut others = with_suffix(name);
            others.push(name.to_owned());
            others.retain(|other| *other != own);
            let obstacle = others.iter().find_map(|other| Obstacle::find(other));
            match obstacle.filter(|_| socket.is_some()) {
                Some(obstacle) => Err(obstacle),
                None => Ok(Self {
                    socket,
                    waiters: Vec::new(),
                }),
            }
        }

        /// Returns what becomes readable when another process connects.
        pub(in crate::run) fn connections(&self) -> Option<BorrowedFd<'_>> {
            self.socket.as_ref().map(AsFd::as_fd)
        }

        /// Accepts one connection, if there is one.
        ///
        /// Not more than one: a flood of connections must not keep the watchdog from its deadlines.
        pub(in crate::run) fn accept(&mut self) {
            let accepted = self.socket.as_ref().map(UnixListener::accept);
            self.waiters.retain(is_open);
            if let Some(Ok((connection, _))) = accepted
                && is_respected(&connection)
            {
                self.waiters.push(connection);
            }
        }
    }

    /// A respected claim of another process, as a connection to its socket. The connection is closed
    /// when that claim ends.
    pub(in crate::run) struct Obstacle(OwnedFd);

    impl Obstacle {
        fn find(name: &str) -> Option<Self> {
            let address = UnixAddr::new_abstract(name.as_bytes()).ok()?;
            // If the queue of the other socket is full, a blocking `connect` would wait.
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
            connect(socket.as_raw_fd(), &address).ok()?;
            is_respected(&socket).then_some(Self(socket))
        }

        pub(in crate::run) fn is_gone(&self) -> bool {
            !is_open(&self.0)
        }
    }

    fn listen(name: &str) -> io::Result<UnixListener> {
        let socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Returns the names of this host's abstract sockets that are `name` and a suffix.
    fn with_suffix(name: &str) -> Vec<String> {
        // Other users may have bound names that are no UTF-8.
        let sockets = std::fs::read("/proc/self/net/unix").unwrap_or_default();
        let sockets = String::from_utf8_lossy(&sockets);
        let start = format!("{name}-");
        // The kernel shows the first byte of an abstract name, a NUL, as `@`.
        let names = sockets.split_whitespace();
        let names = names.filter_map(|shown| shown.strip_prefix('@'));
        let names = names.filter(|name| name.starts_with(&start));
        names.map(str::to_owned).collect()
    }

    /// Returns whether the other end of a connection belongs to this user or to root.
    fn is_respected(connection: &impl AsFd) -> bool {
        // rustix' `socket_peercred` has no value for the process id 0, which the kernel answers for a
        // process of another PID namespace.
        let peer = getsockopt(connection, PeerCredentials);
        peer.is_ok_and(|peer| [geteuid(), Uid::ROOT].contains(&Uid::from_raw(peer.uid())))
    }
}

/// Elsewhere there are no abstract sockets, and no claims.
#[cfg(not(target_os = "linux"))]
mod unclaimed {
    use std::os::fd::BorrowedFd;

    pub(in crate::run) struct Claim;

    impl Claim {
        pub(in crate::run) fn take(_name: &str) -> Result<Self, Obstacle> {
            Ok(Self)
        }

        pub(in crate::run) fn connections(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        pub(in crate::run) fn accept(&mut self) {}
    }

    pub(in crate::run) enum Obstacle {}

    impl Obstacle {
        pub(in crate::run) fn is_gone(&self) -> bool {
            match *self {}
        }
    }
}

/// Returns the name of the claim on a lock.
pub(super) fn name(keeper: &LockKeeper, lock: &LockName) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (keeper.location(), lock.as_str()).hash(&mut hasher);
    format!("lockkeeper-run-{:016x}", hasher.finish())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use serial_test::serial;

    use super::*;

    // A child that another test forks has the socket open until it executes its program.
    #[test]
    #[serial(fork)]
    fn claim_excludes_others_until_it_is_dropped() {
        let name = format!("lockkeeper-test-claim-{}", std::process::id());
        let claim = Claim::take(&name).ok().unwrap();
        let obstacle = Claim::take(&name).err().unwrap();
        assert!(!obstacle.is_gone());
        drop(claim);
        assert!(obstacle.is_gone());
        let claim = Claim::take(&name).ok().unwrap();
        // A name that another user has bound would not be free, but the claim beside it counts.
        let beside = format!("{name}-0");
        drop(claim);
        let claim = Claim::take(&beside).ok().unwrap();
        assert!(Claim::take(&name).is_err());
        drop(claim);
        assert!(Claim::take(&name).is_ok());
    }
}
