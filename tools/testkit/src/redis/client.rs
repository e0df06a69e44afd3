//! As much of the Redis protocol as tests need to look at a server.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a server may take to reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A longer reply is an error.
const MAX_REPLY: usize = 64 << 20;

/// A reply of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Status(String),
    /// `-WRONGTYPE …`
    Error(String),
    /// `:1`
    Int(i64),
    /// A string, or nothing.
    Bulk(Option<Vec<u8>>),
    /// A list, or nothing.
    Array(Option<Vec<Reply>>),
}

impl Reply {
    /// Returns the text of a status or a string, `None` for other replies.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Status(text) => Some(text.clone()),
            Self::Bulk(Some(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    /// Returns the number, also if the server sent it as text.
    #[must_use]
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            other => other.text()?.parse().ok(),
        }
    }

    /// Returns the items of a list, none for other replies.
    #[must_use]
    pub fn items(&self) -> &[Self] {
        match self {
            Self::Array(Some(items)) => items,
            _ => &[],
        }
    }
}

/// A connection to a server's unix socket.
pub struct RedisClient {
    stream: BufReader<UnixStream>,
}

impl RedisClient {
    pub(crate) fn connect(socket: &Path, password: Option<&str>) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        let mut client = Self {
            stream: BufReader::new(stream),
        };
        if let Some(password) = password {
            client.command(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// Sends a command and waits for its reply, at most 30 s.
    ///
    /// # Errors
    /// An error that the server replied with ([`RedisClient::raw`] returns it as a reply), no reply in
    /// time, or a broken connection.
    pub fn command<T: AsRef<[u8]>>(&mut self, words: &[T]) -> io::Result<Reply> {
        match self.raw(words)? {
            Reply::Error(error) => Err(io::Error::other(error)),
            reply => Ok(reply),
        }
    }

    /// Sends a command and waits for its reply, which may be an error of the server.
    ///
    /// # Errors
    /// No reply in time, or a broken connection.
    pub fn raw<T: AsRef<[u8]>>(&mut self, words: &[T]) -> io::Result<Reply> {
        self.send(words)?;
        self.receive()
    }

    /// Sends a command and does not wait for its reply.
    ///
    /// # Errors
    /// A broken connection.
    pub fn send<T: AsRef<[u8]>>(&mut self, words: &[T]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let word = word.as_ref();
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes)
    }

    /// Waits for the next reply, or the next message of a subscribed channel.
    ///
    /// # Errors
    /// None in time, or a broken connection.
    pub fn receive(&mut self) -> io::Result<Reply> {
        receive(&mut self.stream, 8)
    }
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClient").finish_non_exhaustive()
    }
}

fn receive(stream: &mut impl BufRead, depth: usize) -> io::Result<Reply> {
    let bad =
        |line: &str| io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {line:?}"));
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let rest = line.get(1..).unwrap_or_default().trim_end();
    let number = || rest.parse::<i64>().map_err(|_| bad(&line));
    // A length of -1 means nil.
    let length = || match usize::try_from(number()?) {
        Ok(length) if length > MAX_REPLY => Err(bad(&line)),
        Ok(length) => Ok(Some(length)),
        Err(_) => Ok(None),
    };
    Ok(match line.as_bytes().first() {
        Some(b'+') => Reply::Status(rest.to_owned()),
        Some(b'-') => Reply::Error(rest.to_owned()),
        Some(b':') => Reply::Int(number()?),
        Some(b'$') => match length()? {
            None => Reply::Bulk(None),
            Some(length) => {
                let mut bytes = vec![0; length + 2];
                stream.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Reply::Bulk(Some(bytes))
            }
        },
        Some(b'*') if depth > 0 => match length()? {
            None => Reply::Array(None),
            Some(length) => Reply::Array(Some(
                (0..length)
                    .map(|_| receive(stream, depth - 1))
                    .collect::<io::Result<_>>()?,
            )),
        },
        _ => return Err(bad(&line)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_reply_is_read() {
        let mut bytes: &[u8] = b"*6\r\n+OK\r\n-ERR no\r\n:-2\r\n$4\r\na\r\nb\r\n$-1\r\n*-1\r\n";
        let reply = receive(&mut bytes, 8).unwrap();
        assert_eq!(
            reply.items(),
            [
                Reply::Status("OK".to_owned()),
                Reply::Error("ERR no".to_owned()),
                Reply::Int(-2),
                Reply::Bulk(Some(b"a\r\nb".to_vec())),
                Reply::Bulk(None),
                Reply::Array(None),
            ]
        );
    }

    #[test]
    fn malformed_reply_is_an_error() {
        for text in [
            "",
            "hello\r\n",
            "$x\r\n",
            "$99999999999\r\n",
            "$5\r\nab",
            "*1\r\n",
        ] {
            let mut bytes = text.as_bytes();
            assert!(receive(&mut bytes, 8).is_err(), "{text:?}");
        }
    }
}
