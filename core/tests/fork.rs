//! The owner of a request in forked processes, which share everything that was cached before.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use lockkeeper_core::{
    AcquireRequest, Backend, Capabilities, Error, ErrorKind, Grant, LockKeeper, Operation, Owner,
    StoreInfo,
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

/// The pid and the nonce of a request that a forked child makes.
fn owner_of_a_fork() -> (u32, u64) {
    let (mut here, mut there) = UnixStream::pair().unwrap();
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
        let owner = owner();
        let _ = there.write_all(&owner.nonce.to_ne_bytes());
        let _ = there.write_all(&owner.pid.to_ne_bytes());
        #[allow(
            unsafe_code,
            reason = "a forked child must not run the parent's exit handlers"
        )]
        // SAFETY: it has no requirements.
        unsafe {
            libc::_exit(0)
        };
    }
    drop(there);
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
