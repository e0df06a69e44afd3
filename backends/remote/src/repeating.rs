//! Calls on a socket in a program that handles signals: a profiler's, or those of a child's end.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::socket::set_timeout;

/// A socket that repeats a call which a signal has interrupted, within the time that [`set_timeout`] has set. The kernel
/// begins no call with a time-out again, whatever the application asks for with its handler: see signal(7).
pub(crate) struct Repeating<'a>(pub(crate) &'a TcpStream);

impl Repeating<'_> {
    pub(crate) fn repeat<T>(
        &self,
        mut call: impl FnMut(&TcpStream) -> io::Result<T>,
    ) -> io::Result<T> {
        let began = Instant::now();
        let first = call(self.0);
        if !is_interrupted(&first) {
            return first;
        }
        let limit = self.0.read_timeout()?;
        let last = loop {
            if let Some(limit) = limit {
                match limit.saturating_sub(began.elapsed()) {
                    Duration::ZERO => break Err(io::ErrorKind::TimedOut.into()),
                    left => set_timeout(self.0, left)?,
                }
            }
            let next = call(self.0);
            if !is_interrupted(&next) {
                break next;
            }
        };
        if let Some(limit) = limit {
            set_timeout(self.0, limit)?;
        }
        last
    }
}

impl Read for Repeating<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.repeat(|mut socket| socket.read(buffer))
    }
}

impl Write for Repeating<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.repeat(|mut socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_interrupted<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn connected(limit: Duration) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_timeout(&socket, limit).unwrap();
        socket
    }

    #[test]
    fn interrupted_call_gets_the_time_that_is_left() {
        let limit = Duration::from_secs(100);
        let socket = connected(limit);
        let mut timeouts = Vec::new();
        let answer = Repeating(&socket).repeat(|socket| {
            timeouts.push(socket.read_timeout()?.unwrap());
            // As long as the clock of the kernel needs.
            thread::sleep(Duration::from_millis(20));
            match timeouts.len() {
                ..3 => Err(io::ErrorKind::Interrupted.into()),
                _ => Ok(7),
            }
        });
        assert_eq!(answer.unwrap(), 7);
        assert!(timeouts.is_sorted_by(|a, b| a > b), "{timeouts:?}");
        assert_eq!(socket.read_timeout().unwrap(), Some(timeouts[0]));
        assert_eq!(socket.write_timeout().unwrap(), Some(timeouts[0]));
    }

    #[test]
    fn signals_without_end_are_a_timeout() {
        let socket = connected(Duration::from_millis(20));
        let interrupted = |_: &TcpStream| Err::<(), _>(io::ErrorKind::Interrupted.into());
        let error = Repeating(&socket).repeat(interrupted).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
