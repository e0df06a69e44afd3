//! The claim on a lock's name. While a watchdog holds it, no other `run` on this host starts a
//! command under that name.
//!
//! Some stores grant a dead holder's lock to the next caller at once. That can be sooner than the
//! watchdog has killed the holder's command. So the watchdog takes the claim before the command
//! starts. It keeps the claim until the command's process group is gone, or the lease is over.
//!
//! Claims have the modes of locks. Several watchdogs can hold a shared claim on the same name, and each slot of a
//! semaphore has its own claim. For several names, the watchdog takes a claim on each.
//!
//! # Which claims count
//!
//! On Linux a claim is an abstract Unix socket whose name is a hash of store, namespace and lock. Any
//! local user can bind such a name. So a claim counts only if its socket belongs to the same user or
//! to root (`SO_PEERCRED`, see unix(7)):
//! - Root's claims are respected by every user.
//! - Only the same user respects a user's claims. If root respected them, every user could delay
//!   root's commands. Two users that share a store are like two hosts: their commands can overlap
//!   until KILL has ended the former one.
//! - If another user's socket has the name, the claim's socket gets a random suffix. Every watchdog
//!   finds such names in `/proc/self/net/unix`.
//! - A shared claim always gets a random suffix, of another kind. Only an exclusive claim blocks it.
//!
//! The watchdog accepts connections, and closes those of other users. So other users cannot fill the
//! queue of its socket for long. A socket with a full queue does not count as a claim.
//!
//! Without claims, 1 of 25 commands started before the grandchildren of the killed one were gone; under load,
//! 15 of 25 did.

use std::os::fd::BorrowedFd;

use lockkeeper::{LockKeeper, LockName, Mode};

#[cfg(target_os = "linux")]
use socket::{Claim, Obstacle};
#[cfg(not(target_os = "linux"))]
use unclaimed::{Claim, Obstacle};

/// The separator between a claim's name and the random suffix of its socket.
const EXCLUSIVE: char = '-';
/// The end of a shared claim's name, before the random suffix of its socket.
const SHARED: char = '+';

/// The claims of a watchdog. It takes them in the order of their names, so that no two watchdogs wait
/// for each other.
pub(super) struct Claims {
    names: Vec<String>,
    taken: Vec<Claim>,
    /// The other process' claim that blocks the next one.
    obstacle: Option<Obstacle>,
}

impl Claims {
    pub(super) fn new(mut names: Vec<String>) -> Self {
        names.sort_unstable();
        names.dedup();
        Self {
            names,
            taken: Vec::new(),
            obstacle: None,
        }
    }

    /// Takes the missing claims, up to the first that another process blocks. Returns whether all are
    /// taken.
    pub(super) fn take(&mut self) -> bool {
        while let Some(name) = self.names.get(self.taken.len()) {
            if self.obstacle.as_ref().is_some_and(|other| !other.is_gone()) {
                return false;
            }
            match Claim::take(name) {
                Ok(claim) => self.taken.push(claim),
                Err(obstacle) => {
                    self.obstacle = Some(obstacle);
                    return false;
                }
            }
        }
        true
    }

    pub(super) fn are_taken(&self) -> bool {
        self.taken.len() == self.names.len()
    }

    pub(super) fn give_up(&mut self) {
        self.taken.clear();
    }

    /// Returns the sockets that become readable when other processes connect.
    pub(super) fn connections(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.taken.iter().filter_map(Claim::connections)
    }

    /// Accepts at most one connection for each claim.
    pub(super) fn accept(&mut self) {
        self.taken.iter_mut().for_each(Claim::accept);
    }
}

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

    use super::{EXCLUSIVE, SHARED};
    use crate::run::poll::is_open;

    /// A claim that this process holds until the value is dropped.
    pub(in crate::run) struct Claim {
        /// `None` on a system that cannot make such a socket; no other process has one there, either.
        socket: Option<UnixListener>,
        /// The connections of watchdogs that wait for the end of this claim.
        waiters: Vec<UnixStream>,
    }

    impl Claim {
        /// Takes the claim, unless a respected claim of another process blocks it.
        ///
        /// Each process binds its own socket first, and checks for others afterwards. So two processes that try at
        /// the same time may block each other, but never both get the claim.
        pub(in crate::run) fn take(name: &str) -> Result<Self, Obstacle> {
            let (name, is_shared) = match name.strip_suffix(SHARED) {
                Some(name) => (name, true),
                None => (name, false),
            };
            let with_suffix = |kind: char| {
                let suffix = RandomState::new().hash_one(name);
                format!("{name}{kind}{suffix:016x}")
            };
            let mut own = match is_shared {
                true => with_suffix(SHARED),
                false => name.to_owned(),
            };
            let mut bound = listen(&own);
            if matches!(&bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
                if let Some(obstacle) = Obstacle::find(&own) {
                    return Err(obstacle);
                }
                own = with_suffix(EXCLUSIVE);
                bound = listen(&own);
            }
            let socket = bound.ok();
            let kinds = match is_shared {
                true => &[EXCLUSIVE][..],
                false => &[EXCLUSIVE, SHARED],
            };
            let mut others = suffixed(name, kinds);
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

        /// Accepts a connection, if there is one.
        ///
        /// It accepts only one: a flood of connections must not keep the watchdog from its deadlines.
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

    /// A connection to another process' respected claim. It is closed when that claim ends.
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

    /// Returns the names of this host's abstract sockets that are `name` and a suffix of one of these kinds.
    fn suffixed(name: &str, kinds: &[char]) -> Vec<String> {
        // Other users may have bound names that are not UTF-8.
        let sockets = std::fs::read("/proc/self/net/unix").unwrap_or_default();
        let sockets = String::from_utf8_lossy(&sockets);
        // The kernel shows the first byte of an abstract name, a NUL, as `@`.
        let names = sockets.split_whitespace();
        let names = names.filter_map(|shown| shown.strip_prefix('@'));
        let is_suffix = |rest: &str| rest.starts_with(kinds);
        let names = names.filter(|shown| shown.strip_prefix(name).is_some_and(is_suffix));
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

/// Other systems have no abstract sockets, so they have no claims.
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

/// Returns the name of the claim on a lock, or on a slot of a semaphore.
pub(super) fn name(keeper: &LockKeeper, name: &LockName, mode: Mode, slot: Option<u32>) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (keeper.location(), name.as_str()).hash(&mut hasher);
    if let Some(slot) = slot {
        slot.hash(&mut hasher);
    }
    let claim = format!("lockkeeper-run-{:016x}", hasher.finish());
    match mode {
        Mode::Shared => format!("{claim}{SHARED}"),
        Mode::Exclusive | Mode::Permit { .. } => claim,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use serial_test::serial;

    use super::*;

    // A child that another test forks keeps the socket open until it executes its program.
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

    #[test]
    #[serial(fork)]
    fn shared_claims_exclude_only_exclusive_ones() {
        let name = format!("lockkeeper-test-shared-{}", std::process::id());
        let shared = format!("{name}{SHARED}");
        let first = Claim::take(&shared).ok().unwrap();
        let second = Claim::take(&shared).ok().unwrap();
        drop(first);
        let obstacle = Claim::take(&name).err().unwrap();
        drop(second);
        assert!(obstacle.is_gone());
        for exclusive in [&name, &format!("{name}{EXCLUSIVE}0")] {
            let claim = Claim::take(exclusive).ok().unwrap();
            let obstacle = Claim::take(&shared).err().unwrap();
            drop(claim);
            assert!(obstacle.is_gone());
        }
        assert!(Claim::take(&shared).is_ok());
    }

    #[test]
    #[serial(fork)]
    fn claims_are_taken_together() {
        let id = std::process::id();
        let [first, second] = ["a", "b"].map(|name| format!("lockkeeper-test-{name}-{id}"));
        let claim = Claim::take(&second).ok().unwrap();
        let mut claims = Claims::new(vec![second.clone(), first.clone()]);
        assert!(!claims.take() && !claims.are_taken());
        // It holds the first claim while it waits for the second.
        assert!(Claim::take(&first).is_err());
        drop(claim);
        assert!(claims.take() && claims.are_taken());
        assert_eq!(claims.connections().count(), 2);
        claims.give_up();
        assert!(Claim::take(&first).is_ok() && Claim::take(&second).is_ok());
    }
}
