//! What stands in for TLS in a build without the feature `tls`: nothing of it can be made.

use std::convert::Infallible;
use std::io;

use lockkeeper_core::Error;

use crate::options::{RemoteOptions, without_tls};

pub(crate) struct TlsClient(Infallible);

impl TlsClient {
    pub(crate) fn new(_host: &str, _options: &RemoteOptions) -> Result<Self, Error> {
        Err(without_tls())
    }

    pub(crate) fn session(&self) -> io::Result<TlsSession> {
        match self.0 {}
    }
}

pub(crate) struct TlsSession(Infallible);

impl TlsSession {
    pub(crate) fn is_handshaking(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn over<'a, S>(&'a mut self, _: &'a mut S) -> &'a mut S {
        match self.0 {}
    }
}

pub(crate) fn check_files(_options: &RemoteOptions) -> Result<(), Error> {
    Err(without_tls())
}
