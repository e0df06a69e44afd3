//! An etcd server for a group of rows, and a raw connection to it.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use lockkeeper_testkit::{EtcdKind, EtcdOptions, EtcdServer};

use crate::server::Missing;

/// Starts a server. Its data are in memory, so no row waits for a disk.
pub(crate) fn start() -> Result<EtcdServer, Box<dyn Error>> {
    let kind = EtcdKind::Etcd3_4;
    kind.program().map_err(Missing::new)?;
    Ok(EtcdServer::start(kind, &EtcdOptions::new())?)
}

/// A connection that is kept, on which prepared requests are sent.
pub(crate) struct Raw(BufReader<TcpStream>);

impl Raw {
    pub(crate) fn connect(server: &EtcdServer) -> Result<Self, Box<dyn Error>> {
        let stream = TcpStream::connect(server.addr())?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Returns the text of a request.
    pub(crate) fn request(path: &str, body: &str) -> String {
        let length = body.len();
        format!("POST {path} HTTP/1.1\r\nHost: raw\r\nContent-Length: {length}\r\n\r\n{body}")
    }

    /// Sends a request and returns the body of the reply.
    pub(crate) fn send(&mut self, request: &str) -> Result<String, Box<dyn Error>> {
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(count) = line.strip_prefix("Content-Length: ") {
                length = count.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok(String::from_utf8(body)?)
    }
}
