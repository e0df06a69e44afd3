//! Forked processes, which share everything that was there before: the owner of a request, and a guard.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use lockkeeper_core::{
    AcquireRequest, Backend, Capabilities, Error, ErrorKind, Grant, LockKeeper, Operation, Owner,
    ReleaseDispatch, Released, StoreInfo,
};

/// Records the owner of the last request, and grants nothing.
#[derive(Debug, Default)]
struct Recorder(Mutex<Option<Owner>>);

impl StoreInfo for Recorder {
    fn backend(&self) -> &'static str {
        "recorder"
    }

    fn location(&self) -> String {
        "recorder:".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }
}

impl Backend for Recorder {
    type Lease = ();

    fn batch(&self, batch: &mut [Operation<'_, ()>]) {
        for operation in batch {
            match operation {
                Operation::Acquire(it) => it.answer = Some(Backend::acquire(self, it.request)),
                _ => unreachable!("nothing is granted"),
            }
        }
    }

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<()>>, Error> {
        let owner = request.owner();
        assert_eq!(request.owner(), owner, "every attempt has the same owner");
        *self.0.lock().unwrap() = Some(owner);
        Err(Error::new(ErrorKind::Unavailable, "as the test wants"))
    }
}

/// Grants every name, and tells of each release.
#[derive(Debug)]
struct Teller(UnixStream);

impl StoreInfo for Teller {
    fn backend(&self) -> &'static str {
        "teller"
    }

    fn location(&self) -> String {
        "teller:".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }
}

impl Backend for Teller {
    type Lease = ();

    fn batch(&self, batch: &mut [Operation<'_, ()>]) {
        for operation in batch {
            match operation {
                Operation::Acquire(it) => it.answer = Some(Backend::acquire(self, it.request)),
                Operation::Release(it) => it.answer = Some(self.release()),
                Operation::Renew(_) => unreachable!("the lease lasts"),
            }
        }
    }

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<()>>, Error> {
        Ok(Some(Grant {
            lease: (),
            epoch: 1,
            asked_at: request.started(),
            slot: 0,
        }))
    }

    fn send_release(&self, (): &mut ()) -> ReleaseDispatch {
        ReleaseDispatch::Answered(self.release())
    }
}

impl Teller {
    fn release(&self) -> Result<Released, Error> {
        (&self.0).write_all(b"r").unwrap();
        Ok(Released::Done)
    }
}

/// The owner of the first request of a new keeper.
fn owner() -> Owner {
    let recorder = Arc::new(Recorder::default());
    let keeper = LockKeeper::builder(Arc::clone(&recorder) as _)
        .build()
        .unwrap();
    assert!(keeper.try_lock("a").is_err());
    let owner = recorder.0.lock().unwrap().take();
    owner.expect("the keeper asked")
}

/// Returns the id of a forked child, and the end of what `work` writes to.
fn forked(work: impl FnOnce(UnixStream)) -> (i32, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    // SAFETY: only this thread continues in the child. The child uses memory, which the C library
    // keeps usable over a fork, and a thread and a socket of its own. It ends without the exit
    // handlers that the parent registered.
    #[allow(
        unsafe_code,
        reason = "there is no safe fork, and forks are what is tested"
    )]
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no process can be started");
    if pid == 0 {
        work(there);
        #[allow(
            unsafe_code,
            reason = "a forked child must not run the parent's exit handlers"
        )]
        // SAFETY: it has no requirements.
        unsafe {
            libc::_exit(0)
        };
    }
    (pid, here)
}

/// The pid and the nonce of a request that a forked child makes.
fn owner_of_a_fork() -> (u32, u64) {
    let (pid, mut here) = forked(|mut there| {
        let owner = owner();
        let _ = there.write_all(&owner.nonce.to_ne_bytes());
        let _ = there.write_all(&owner.pid.to_ne_bytes());
    });
    let (mut nonce, mut own) = ([0; 8], [0; 4]);
    here.read_exact(&mut nonce).unwrap();
    here.read_exact(&mut own).unwrap();
    assert_eq!(u32::from_ne_bytes(own), pid.cast_unsigned(), "its own pid");
    (u32::from_ne_bytes(own), u64::from_ne_bytes(nonce))
}

#[test]
fn forked_siblings_have_different_owners() {
    let parent = owner();
    let siblings = [owner_of_a_fork(), owner_of_a_fork()];
    let nonces: HashSet<u64> = siblings.iter().map(|(_, nonce)| *nonce).collect();
    assert_eq!(nonces.len(), 2, "two siblings have one nonce: {siblings:?}");
    assert!(!nonces.contains(&parent.nonce));
}

#[test]
fn guard_that_a_forked_child_drops_stays_with_the_parent() {
    let (mut told, teller) = UnixStream::pair().unwrap();
    let keeper = LockKeeper::builder(Arc::new(Teller(teller)) as _)
        .build()
        .unwrap();
    let mut guard = keeper.lock("a").ok();
    let (_, mut child) = forked(|mut there| {
        // The parent has another copy.
        drop(guard.take());
        let _ = there.write_all(b"d");
    });
    child.read_exact(&mut [0]).unwrap();
    told.set_nonblocking(true).unwrap();
    assert!(told.read(&mut [0]).is_err(), "the child has released it");
    told.set_nonblocking(false).unwrap();
    assert_eq!(guard.unwrap().release().unwrap(), Released::Done);
    told.read_exact(&mut [0]).unwrap();
}
