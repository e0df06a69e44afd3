//! How the scripted store answers.

use std::time::Duration;

use crate::steps::SECOND;

/// How the store answers the renewals of a name from now on.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) enum Renewals {
    #[default]
    Work,
    Lost,
    /// There is no answer.
    Fail,
    /// No connection.
    Unreachable,
    /// There is no answer, and the call does not return.
    Hang,
    Panic,
    /// Renewed, but the reply takes this long by the test's clock.
    Late(Duration),
}

/// How the store answers acquisitions from now on.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) enum Grants {
    #[default]
    Work,
    /// No connection; an attempt takes this long by the test's clock.
    Unreachable(Duration),
    Panic,
    /// Granted, but the first reply takes this long by the test's clock.
    Late(Duration),
    /// The store grants the name, and the reply is lost. From then on the store works, or is out of reach.
    ReplyLost {
        then_works: bool,
    },
    /// There is no reply to any request.
    NoReply,
    /// A batch finds no connection for its attempts.
    BatchExhausted,
    /// Busy, and then the waiter repeats its attempts itself. Each of them takes a second by the test's clock
    /// and finds no connection.
    Queued,
    /// Busy, and then the wait fails this long behind its start. From then on the store works, or is
    /// gone.
    FailedWait {
        span: Duration,
        then_works: bool,
    },
    /// Busy, and then the waiter has no further answer until the test changes this.
    Waits,
    /// Busy, and with each change of the store the waiter is told again that the name is busy, until the test changes this.
    Polls,
    /// Busy, and then the waiter is granted the lock this long behind its start.
    GrantedWait(Duration),
    /// Busy, and this long behind the start of the wait there is still no reply to the next request. The waiter may ask
    /// whether to repeat that.
    LateReply {
        span: Duration,
        asks: bool,
    },
    /// Busy if the request sees a holder, and at the end of the request no other one was sent.
    NotSent {
        sees_holder: bool,
    },
    /// No answer until the test changes this, and none to a cancelled request.
    Silent,
    /// No answer for this name, and an answer for all others.
    SilentFor(&'static str),
}

impl Grants {
    pub(crate) fn after_failure(then_works: bool) -> Self {
        match then_works {
            true => Self::Work,
            false => Self::Unreachable(SECOND),
        }
    }
}

/// How the store answers releases. Lost is one message; the others last until the test changes them.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) enum Releases {
    #[default]
    Work,
    /// Released, and the reply is lost.
    ReplyLost,
    /// Released, and the reply is lost when the test changes this.
    ReplyLostLate,
    /// Not released, and there is no reply.
    RequestLost,
    /// No connection.
    Unreachable,
    /// All connections are in use.
    PoolExhausted,
    /// There is no answer. A call with a deadline within a second fails; others do not return.
    Hang,
    /// The same for this name alone.
    HangFor(&'static str),
    Panic,
}

/// What the store does with the release of a guard that is dropped.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) enum Sends {
    /// It answers at once, as [`Releases`] says.
    #[default]
    Answered,
    /// It takes the release, and answers as [`Releases`] says when the reply is read.
    Owed,
    /// It sends nothing.
    Nothing,
}
