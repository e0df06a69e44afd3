//! Releases of which the reply is owed: they are written without a wait, and the next request reads the reply.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::backend::{
    AcquireRequest, AttemptRequest, Backend as _, Grant, Operation, ReleaseDispatch,
    ReleaseRequest, SentRelease,
};
use lockkeeper::backends::etcd::{EtcdLease, EtcdOptions, EtcdProvider};
use lockkeeper::clock::{Clock as _, HostInstant, SystemClock};
use lockkeeper::{Error, ErrorKind, LockName, Released};
use lockkeeper_testkit::{EtcdKind, EtcdServer, Fault, Proxy, Shared, cases, until};

use super::Case;
use super::late::{LOCK_REQUEST, OF_A};
use super::relay::{Held, relay};
use crate::common::{WAIT_LIMIT, share};

/// The answer to an attempt.
type Attempted = Result<Option<Grant<EtcdLease>>, Error>;

pub(super) const CASES: &[Case] = cases![
    owed_reply_is_read_by_the_next_request,
    owed_reply_that_is_lost_is_unknown,
    owed_reply_that_is_an_error_is_unknown,
];

struct Rig {
    provider: EtcdProvider,
    held: Arc<Mutex<Held>>,
    proxy: Proxy,
    _server: Shared<EtcdServer>,
}

fn soon() -> HostInstant {
    SystemClock.now() + WAIT_LIMIT
}

impl Rig {
    fn start(kind: EtcdKind) -> Self {
        let server = share::<EtcdServer>(kind);
        let proxy = Proxy::new(server.addr()).unwrap();
        let held = Arc::default();
        let addr = relay(&held, proxy.addr());
        let options = EtcdOptions::tcp("127.0.0.1", addr.port()).response_timeout(2 * LATE);
        let mut provider = None;
        until("the server replies in time", || {
            provider = EtcdProvider::open(&options, "default").ok();
            provider.is_some()
        });
        Self {
            held,
            _server: server,
            proxy,
            provider: provider.unwrap(),
        }
    }

    /// Carries out an operation, and then an attempt to acquire `a`.
    fn attempt_after(
        &self,
        first: Option<Operation<'_, EtcdLease>>,
    ) -> (Option<Result<Released, Error>>, Attempted) {
        let (name, ttl) = (LockName::new("a").unwrap(), Duration::from_secs(600));
        let request = AcquireRequest::attempt(&name, ttl, &SystemClock);
        let mut batch: Vec<_> = first.into_iter().collect();
        batch.push(Operation::Acquire(AttemptRequest {
            request: &request,
            deadline: soon(),
            answer: None,
        }));
        self.provider.batch(&mut batch);
        let Some(Operation::Acquire(attempt)) = batch.pop() else {
            panic!("the last one is the attempt");
        };
        let released = batch.pop().and_then(|first| match first {
            Operation::Release(it) => it.answer,
            _ => None,
        });
        (released, attempt.answer.unwrap())
    }

    fn lease(&self) -> EtcdLease {
        let granted = self.attempt_after(None).1.unwrap();
        granted.expect("it is free").lease
    }

    fn send(&self, lease: &mut EtcdLease) -> SentRelease {
        match self.provider.send_release(lease) {
            ReleaseDispatch::Sent(sent) => sent,
            other => panic!("a connection is idle: {other:?}"),
        }
    }

    fn release(&self, lease: &mut EtcdLease) -> Result<Released, Error> {
        ReleaseRequest::new(lease, soon()).ask(|one| self.provider.batch(one))
    }

    /// Reads the reply to a release that was sent, and makes an attempt behind it.
    fn attempt_behind(
        &self,
        lease: &mut EtcdLease,
        sent: SentRelease,
    ) -> (Result<Released, Error>, Attempted) {
        let sent = Some(sent);
        let release = ReleaseRequest {
            sent,
            ..ReleaseRequest::new(lease, soon())
        };
        let (released, attempt) = self.attempt_after(Some(Operation::Release(release)));
        (released.unwrap(), attempt)
    }

    /// Checks that the release and the attempt behind it are unknown. Then the release is repeated.
    fn assert_unknown(&self, lease: &mut EtcdLease, sent: SentRelease, repeated: Released) {
        let (released, attempt) = self.attempt_behind(lease, sent);
        for error in [released.unwrap_err(), attempt.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
        }
        self.proxy.set(Fault::Pass);
        self.held.lock().unwrap().refused = None;
        assert_eq!(self.release(lease).unwrap(), repeated);
        let mut next = self.lease();
        let released = self.release(&mut next);
        assert_eq!(released.unwrap(), Released::Done);
    }
}

/// Less than the time for a reply, also on a busy machine.
const LATE: Duration = Duration::from_secs(2);

fn owed_reply_is_read_by_the_next_request(kind: EtcdKind) {
    let rig = Rig::start(kind);
    let mut lease = rig.lease();
    let before = rig.proxy.counts().accepted;
    for fault in [Fault::Pass, Fault::DelayReplies(LATE / 2)] {
        rig.proxy.once(LOCK_REQUEST, fault);
        let sent = rig.send(&mut lease);
        let (released, attempt) = rig.attempt_behind(&mut lease, sent);
        assert_eq!(released.unwrap(), Released::Done);
        lease = attempt.unwrap().expect("it was released").lease;
    }
    assert_eq!(rig.proxy.counts().accepted, before);
    // Nobody asks for the connection of a release whose reply is of no use.
    let sent = rig.send(&mut lease);
    drop(sent);
    let released = rig.release(&mut lease);
    assert!(released.is_ok(), "{released:?}");
}

fn owed_reply_that_is_lost_is_unknown(kind: EtcdKind) {
    let rig = Rig::start(kind);
    for fault in [Fault::DropReplies, Fault::CutReplyAfter(40)] {
        let mut lease = rig.lease();
        rig.proxy.once(LOCK_REQUEST, fault);
        let sent = rig.send(&mut lease);
        rig.assert_unknown(&mut lease, sent, Released::AlreadyLost);
    }
}

/// A member that cannot serve has not carried it out.
fn owed_reply_that_is_an_error_is_unknown(kind: EtcdKind) {
    let rig = Rig::start(kind);
    let mut lease = rig.lease();
    rig.held.lock().unwrap().refused = Some(OF_A);
    let sent = rig.send(&mut lease);
    rig.assert_unknown(&mut lease, sent, Released::Done);
}
