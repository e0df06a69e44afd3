//! The calls on a socket in one exchange with a server. An exchange is a request and its replies, or the
//! opening.
//!
//! A socket's own time-out is for one call. A server that sends a byte now and then would restart it with each
//! byte. So each call gets the time that is left of one deadline, also the calls that TLS makes.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::socket::{SocketTimeout, set_timeout};

/// The largest number of bytes that a server may send in one exchange. Replies to lockkeeper's requests are far
/// shorter.
pub const MAX_REPLY: usize = 16 << 20;

/// Linux ends a socket's time-out late by up to an eighth: 200 ms of 4 s were seen. Its timer wheel has a coarser
/// resolution for later timers. So a call that waits for longer than this gets seven eighths of the time, and is
/// repeated with the rest.
const PRECISE: Duration = Duration::from_millis(100);

/// A time-out that was set for a shorter call stays, from this length on. A call that it ends is repeated with the time
/// that is left, so the server has to be that slow before it costs another call. A lone lock and its release have different
/// deadlines, and would otherwise set four time-outs.
const SHORTEST_KEPT: Duration = Duration::from_millis(50);

/// The rest of an exchange.
pub(crate) struct Exchange {
    /// `None` if there is no deadline.
    until: Option<Instant>,
    /// The number of bytes that may still be read.
    readable: usize,
    timeout: SocketTimeout,
}

impl Exchange {
    /// Returns an exchange that lasts `limit`, on a socket whose time-out is unknown.
    pub(crate) fn new(limit: Duration) -> Self {
        let mut exchange = Self {
            until: None,
            readable: MAX_REPLY,
            timeout: SocketTimeout::default(),
        };
        exchange.extend(Some(limit));
        exchange
    }

    /// Begins another exchange.
    pub(crate) fn begin(&mut self, limit: Option<Duration>) {
        self.readable = MAX_REPLY;
        self.extend(limit);
    }

    /// Sets another deadline. A time that `Instant` cannot represent is no deadline.
    pub(crate) fn extend(&mut self, limit: Option<Duration>) {
        let limit = limit.map(|limit| limit.max(Duration::from_millis(1)));
        self.until = limit.and_then(|limit| Instant::now().checked_add(limit));
    }

    /// Makes the socket's time-out no longer than the time that is left. If the call is not `repeated`, it may be shorter.
    fn limit(&mut self, socket: &TcpStream, repeated: bool) -> io::Result<()> {
        let Some(until) = self.until else {
            let unlimited = |_| set_timeout(socket, None);
            return self.timeout.set_by(Duration::MAX, unlimited);
        };
        let left = until.saturating_duration_since(Instant::now());
        let longest = match left {
            Duration::ZERO => return Err(io::ErrorKind::TimedOut.into()),
            left if left <= PRECISE => left,
            left => left / 8 * 7,
        };
        if !repeated && self.timeout.is_within(SHORTEST_KEPT, longest) {
            return Ok(());
        }
        self.timeout.set(socket, longest)
    }

    /// Returns whether a call has to be repeated after this error.
    fn goes_on(&self, error: &io::Error) -> bool {
        match error.kind() {
            // The kernel does not restart a call with a time-out, whatever flags the application's signal handler
            // has. See signal(7).
            io::ErrorKind::Interrupted => true,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                self.until.is_some_and(|until| Instant::now() < until)
            }
            _ => false,
        }
    }
}

/// A socket in an exchange.
pub(crate) struct Wire<'a> {
    pub(crate) socket: &'a TcpStream,
    pub(crate) exchange: &'a mut Exchange,
}

impl Wire<'_> {
    /// Makes a call that reads into a buffer, which is cut to the bytes that may still be read.
    pub(crate) fn read_by(
        &mut self,
        buffer: &mut [u8],
        mut read: impl FnMut(&TcpStream, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let most = buffer.len().min(self.exchange.readable);
        if most == 0 && !buffer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, TooLong));
        }
        let buffer = buffer.get_mut(..most).unwrap_or_default();
        let count = self.call(|socket| read(socket, buffer))?;
        self.exchange.readable -= count.min(most);
        Ok(count)
    }

    /// Makes a call on the socket, with the time that is left.
    pub(crate) fn call<T>(
        &mut self,
        mut call: impl FnMut(&TcpStream) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut repeated = false;
        loop {
            self.exchange.limit(self.socket, repeated)?;
            match call(self.socket) {
                Err(error) if self.exchange.goes_on(&error) => repeated = true,
                result => return result,
            }
        }
    }
}

impl Read for Wire<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_by(buffer, |mut socket, buffer| socket.read(buffer))
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.call(|mut socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The cause of the error for more bytes than [`MAX_REPLY`].
#[derive(Debug)]
struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the reply has more than {} MiB", MAX_REPLY >> 20)
    }
}

impl std::error::Error for TooLong {}

/// Returns whether a read failed because the server sent more than [`MAX_REPLY`] bytes in one exchange.
pub fn is_too_long(error: &io::Error) -> bool {
    matches!(error.get_ref(), Some(cause) if cause.is::<TooLong>())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(100);
    const MOMENT: Duration = Duration::from_millis(20);

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (socket, listener.accept().unwrap().0)
    }

    fn on<'a>(socket: &'a TcpStream, exchange: &'a mut Exchange) -> Wire<'a> {
        Wire { socket, exchange }
    }

    #[test]
    fn timeout_is_set_only_when_it_changes() {
        let (socket, _peer) = connected();
        let mut exchange = Exchange::new(LIMIT);
        let timeout_of_call = |exchange: &mut Exchange| {
            let limits = |socket: &TcpStream| {
                assert_eq!(socket.read_timeout()?, socket.write_timeout()?);
                socket.read_timeout()
            };
            on(&socket, exchange).call(limits).unwrap()
        };
        // The kernel may round up to its own ticks, of 10 ms at most.
        let is_about = |found: Option<Duration>, limit: Duration| {
            found.is_some_and(|it| it > limit.saturating_sub(MOMENT) && it <= limit + MOMENT)
        };
        assert!(is_about(timeout_of_call(&mut exchange), LIMIT / 8 * 7));

        // To see whether it is set again.
        let other = Some(LIMIT / 2);
        set_timeout(&socket, other).unwrap();
        exchange.begin(Some(LIMIT));
        assert_eq!(timeout_of_call(&mut exchange), other);
        exchange.begin(Some(LIMIT / 5));
        let shorter = LIMIT / 5 / 8 * 7;
        assert!(is_about(timeout_of_call(&mut exchange), shorter));
        // A time-out that ends before the deadline stays, unless it is very short.
        exchange.begin(Some(LIMIT));
        assert!(is_about(timeout_of_call(&mut exchange), shorter));
        exchange.begin(Some(MOMENT));
        assert!(is_about(timeout_of_call(&mut exchange), MOMENT));
        exchange.begin(Some(LIMIT));
        assert!(is_about(timeout_of_call(&mut exchange), LIMIT / 8 * 7));
        exchange.begin(None);
        assert_eq!(timeout_of_call(&mut exchange), None);
        // The kernel takes zero for no limit.
        exchange.begin(Some(Duration::from_nanos(1)));
        let shortest = timeout_of_call(&mut exchange);
        assert!(is_about(shortest, Duration::ZERO), "{shortest:?}");
    }

    #[test]
    fn timeout_that_ends_before_the_deadline_is_no_end() {
        let (socket, _peer) = connected();
        let began = Instant::now();
        let mut exchange = Exchange::new(2 * MOMENT);
        let mut calls = 0;
        let result = on(&socket, &mut exchange).call(|_| {
            calls += 1;
            Err::<(), _>(io::ErrorKind::WouldBlock.into())
        });
        assert!(result.is_err() && began.elapsed() >= 2 * MOMENT && calls > 1);
    }

    #[test]
    fn further_call_gets_the_time_that_is_left() {
        let (socket, _peer) = connected();
        let mut exchange = Exchange::new(LIMIT);
        let mut timeouts = Vec::new();
        let answer = on(&socket, &mut exchange).call(|socket| {
            timeouts.push(socket.read_timeout()?.unwrap());
            // Longer than what the socket's time-out may be too long.
            thread::sleep(MOMENT);
            match timeouts.len() {
                ..3 => Err(io::ErrorKind::Interrupted.into()),
                _ => Ok(7),
            }
        });
        assert_eq!(answer.unwrap(), 7);
        assert!(timeouts.is_sorted_by(|a, b| a > b), "{timeouts:?}");
    }

    #[test]
    fn calls_without_end_are_a_timeout() {
        let (socket, peer) = connected();
        let mut exchange = Exchange::new(MOMENT);
        let interrupted = |_: &TcpStream| Err::<(), _>(io::ErrorKind::Interrupted.into());
        let error = on(&socket, &mut exchange).call(interrupted).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        exchange.begin(Some(Duration::from_millis(100)));
        let ends = thread::spawn(move || {
            let mut socket = &peer;
            while socket.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(2));
            }
        });
        let mut wire = on(&socket, &mut exchange);
        let error = loop {
            if let Err(error) = wire.read(&mut [0]) {
                break error;
            }
        };
        assert!(crate::is_timeout(error.kind()), "{error}");
        drop(socket);
        ends.join().unwrap();
    }

    #[test]
    fn bytes_of_one_exchange_are_bounded() {
        let (socket, peer) = connected();
        let sends = thread::spawn(move || {
            let mut socket = &peer;
            while socket.write_all(&[0; 1 << 16]).is_ok() {}
        });
        let mut exchange = Exchange::new(LIMIT);
        for _ in 0..2 {
            exchange.begin(Some(LIMIT));
            let mut wire = on(&socket, &mut exchange);
            let mut read = Vec::new();
            let error = wire.read_to_end(&mut read).unwrap_err();
            assert!(is_too_long(&error), "{error}");
            assert_eq!(read.len(), MAX_REPLY);
        }
        drop(socket);
        sends.join().unwrap();
    }
}
