//! A connection that any number of threads use at once, and the thread that reads it.
//!
//! A server answers the requests of a connection in their order, and sends notices in between. The thread waits for the
//! socket without a mutex, and reads what has come under the same mutex as others write: TLS has one state for both.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{CancelToken, Error, ErrorKind};
use lockkeeper_remote::{Failure, Server, cancelled, has_ended, is_timeout, no_time};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Connection, Learned, NOTICE, Notices, PING, unanswered};
use crate::wire::{Reply, Request};

/// A connection is asked whether it is alive after this time without a request, or after a third of its session's.
const PING_AFTER: Duration = Duration::from_secs(5);
/// The longest time that the reading thread keeps the mutex for a record of TLS that has come in part.
const READ_TIME: Duration = Duration::from_millis(100);

/// The state of a channel, which its thread and its callers share.
pub(super) struct Channel {
    state: Mutex<State>,
    socket: Arc<TcpStream>,
    server: Server,
    member: usize,
    learned: Arc<Learned>,
    is_over: AtomicBool,
    response_timeout: Duration,
    ping_after: Duration,
    notices: Arc<Notices>,
}

struct State {
    connection: Connection,
    /// The requests without all replies, in their order.
    pending: VecDeque<Pending>,
}

/// Requests that were sent together.
struct Pending {
    sent: Instant,
    /// The number of the next reply.
    number: i32,
    /// How many replies are missing.
    missing: usize,
    replies: Vec<Reply>,
    /// `None` for a ping.
    caller: Option<Caller>,
}

/// What takes the replies of a caller that waits, or its failure.
type Caller = Sender<Result<Vec<Reply>, Failure>>;

impl Channel {
    /// Starts the thread. It ends with the connection.
    pub(super) fn start(
        connection: Connection,
        session_timeout: Duration,
        response_timeout: Duration,
        notices: &Arc<Notices>,
    ) -> Result<Arc<Self>, Error> {
        let channel = Arc::new(Self {
            socket: Arc::clone(connection.socket()),
            server: connection.server.clone(),
            member: connection.member,
            learned: Arc::clone(&connection.learned),
            is_over: AtomicBool::new(false),
            response_timeout,
            ping_after: PING_AFTER.min(session_timeout / 3),
            notices: Arc::clone(notices),
            state: Mutex::new(State {
                connection,
                pending: VecDeque::new(),
            }),
        });
        let reader = Arc::clone(&channel);
        let started = thread::Builder::new()
            .name("lockkeeper-zookeeper".to_owned())
            .spawn(move || reader.run());
        match started {
            Ok(_) => Ok(channel),
            Err(error) => Err(Error::new(
                ErrorKind::Unavailable,
                "the system starts no thread for the connection; try again",
            )
            .with_source(error)),
        }
    }

    /// Closes the connection, and makes the next one lead to another member. The thread tells all callers.
    pub(super) fn close(&self) {
        self.learned.members.avoid(self.member);
        self.is_over.store(true, Ordering::Release);
        // It fails if the server has closed the socket already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Ends the session, and closes the connection.
    pub(super) fn end(&self) {
        if let Some(mut state) = self.state.try_lock() {
            let _ = state.connection.send(&[Request::close()], READ_TIME);
        }
        self.close();
    }

    /// Returns whether the connection takes requests. It does not if an answer is overdue.
    pub(super) fn is_fit(&self) -> bool {
        let is_overdue = |state: &State| state.is_overdue(self.response_timeout);
        let state = self.state.try_lock();
        // On a busy machine the thread reads the end of the connection later.
        let is_fit = !self.is_over.load(Ordering::Acquire)
            && !has_ended(&self.socket)
            && !state.as_deref().is_some_and(is_overdue);
        drop(state);
        if !is_fit {
            self.close();
        }
        is_fit
    }

    /// Makes requests and waits for the replies, within `limit`.
    pub(super) fn ask(
        &self,
        requests: &[Request],
        limit: Duration,
        cancel: Option<&CancelToken>,
    ) -> Result<Vec<Reply>, Failure> {
        let began = Instant::now();
        let (caller, answered) = mpsc::channel();
        self.send(requests, limit, caller.clone())?;
        let cancel_call = move || drop(caller.send(Err(cancelled())));
        let _registered = cancel.map(|cancel| cancel.on_cancel(cancel_call));
        let left = limit.saturating_sub(began.elapsed());
        answered.recv_timeout(left).unwrap_or_else(|_| {
            self.is_fit();
            Err(Failure::Unanswered(self.server.silent()))
        })
    }

    fn send(&self, requests: &[Request], limit: Duration, caller: Caller) -> Result<(), Failure> {
        let Some(mut state) = self.state.try_lock_for(limit) else {
            return Err(no_time());
        };
        if self.is_over.load(Ordering::Acquire) {
            return Err(Failure::Closed(self.server.closed()));
        }
        match state.connection.send(requests, limit) {
            Ok(number) => {
                state.enter(number, requests.len(), Some(caller));
                Ok(())
            }
            Err(error) => {
                self.close();
                Err(unanswered(&self.server, error))
            }
        }
    }

    fn run(&self) {
        let error = loop {
            if let Err(error) = self.turn() {
                break error;
            }
        };
        self.close();
        let mut state = self.state.lock();
        let kind = error.kind();
        for pending in state.pending.drain(..) {
            if let Some(caller) = pending.caller {
                // The caller may have gone.
                let _ = caller.send(Err(unanswered(&self.server, kind.into())));
            }
        }
        drop(state);
        self.notices.cut();
    }

    /// Reads what comes next, or asks whether the connection is alive.
    fn turn(&self) -> io::Result<()> {
        let limit = match self.state.lock().pending.is_empty() {
            true => self.ping_after,
            false => self.response_timeout,
        };
        let is_readable = is_readable(&self.socket, limit)?;
        let mut state = self.state.lock();
        if self.is_over.load(Ordering::Acquire) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if is_readable {
            state.connection.stream.begin(READ_TIME);
            match state.connection.fill() {
                Err(error) if !is_timeout(error.kind()) => return Err(error),
                _ => {}
            }
            while let Some(reply) = state.connection.take_reply()? {
                match reply.number {
                    NOTICE => {
                        if let Some((path, is_deleted)) = reply.changed() {
                            self.notices.changed(&path, is_deleted);
                        }
                    }
                    _ => state.note(reply)?,
                }
            }
            return Ok(());
        }
        if state.is_overdue(self.response_timeout) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if state.pending.is_empty() && limit == self.ping_after {
            state
                .connection
                .send_as(PING, &Request::ping(), READ_TIME)?;
            state.enter(PING, 1, None);
        }
        Ok(())
    }
}

impl State {
    fn enter(&mut self, number: i32, missing: usize, caller: Option<Caller>) {
        self.pending.push_back(Pending {
            sent: Instant::now(),
            number,
            missing,
            replies: Vec::with_capacity(missing),
            caller,
        });
    }

    fn is_overdue(&self, limit: Duration) -> bool {
        let first = self.pending.front();
        first.is_some_and(|it| it.sent.elapsed() >= limit)
    }

    /// Gives a reply to the first request without one.
    fn note(&mut self, reply: Reply) -> io::Result<()> {
        let bad = io::ErrorKind::InvalidData;
        let first = self.pending.front_mut().ok_or(bad)?;
        if reply.number != first.number {
            return Err(bad.into());
        }
        first.number = first.number.wrapping_add(1);
        first.missing = first.missing.checked_sub(1).ok_or(bad)?;
        first.replies.push(reply);
        if first.missing == 0
            && let Some(Pending {
                caller: Some(caller),
                replies,
                ..
            }) = self.pending.pop_front()
        {
            // The caller may have gone.
            let _ = caller.send(Ok(replies));
        }
        Ok(())
    }
}

/// Waits until something can be read, or the connection has ended.
fn is_readable(socket: &TcpStream, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use lockkeeper_remote::{Endpoint, RemoteOptions};

    use super::super::connector::Connector;
    use super::*;
    use crate::ZooKeeperOptions;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn connection_takes_no_request_once_the_server_has_closed_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let options = RemoteOptions::new(Endpoint::tcp("127.0.0.1", port));
        let connector = Connector::new(&ZooKeeperOptions::new(options)).unwrap();
        let (member, learned) = (connector.members().first().unwrap(), &connector.learned);
        let connection = Connection {
            stream: member.dial(LIMIT).unwrap(),
            unread: Vec::new(),
            number: 1,
            server: member.server().clone(),
            member: 0,
            learned: Arc::clone(learned),
            counted: None,
        };
        let (peer, _) = listener.accept().unwrap();
        let notices = Notices::new("/sessions");
        let channel = Channel::start(connection, LIMIT, LIMIT, &notices).unwrap();
        assert!(channel.is_fit());
        // The thread does not read the end meanwhile.
        let reading = channel.state.lock();
        drop(peer);
        assert_eq!(channel.socket.peek(&mut [0]).unwrap(), 0);
        assert!(!channel.is_fit());
        drop(reading);
    }
}
