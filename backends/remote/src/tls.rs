//! TLS over a connection's socket, and the certificates that it trusts.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use lockkeeper_core::Error;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::options::{RemoteOptions, invalid};

/// The TLS settings for the connections to one host.
pub(crate) struct TlsClient {
    config: Arc<ClientConfig>,
    host: ServerName<'static>,
}

impl TlsClient {
    /// Trusts the certificates in `ca_file`, or the system's if it is `None`.
    pub(crate) fn new(host: &str, options: &RemoteOptions) -> Result<Self, Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| {
            invalid(format!("{host:?} is no host's name or address")).with_source(error)
        })?;
        let roots = match &options.ca_file {
            Some(file) => certificates_of(file)?,
            None => system_certificates()?,
        };
        let crypto = crypto();
        let own = client_certificate(options, &crypto)?;
        let config =
            ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions();
        let config = config.map_err(|error| {
            invalid("the cryptography that this program chose for rustls does not do for TLS")
                .with_source(error)
        })?;
        let config = config.with_root_certificates(roots);
        let config = match own {
            None => config.with_no_client_auth(),
            Some(own) => config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own))),
        };
        Ok(Self {
            config: Arc::new(config),
            host: name,
        })
    }

    /// Starts a session. The handshake takes place with the first request.
    pub(crate) fn session(&self) -> io::Result<TlsSession> {
        let session = ClientConnection::new(Arc::clone(&self.config), self.host.clone());
        Ok(TlsSession(Box::new(session.map_err(io::Error::other)?)))
    }
}

/// The TLS state of one connection.
pub(crate) struct TlsSession(Box<ClientConnection>);

impl TlsSession {
    /// Returns whether nothing but the handshake was sent so far.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    /// Returns the encrypted stream over `socket`.
    pub(crate) fn over<'a, S: Read + Write>(&'a mut self, socket: &'a mut S) -> impl Read + Write {
        rustls::Stream::new(&mut *self.0, socket)
    }
}

/// Checks that the files of the options can be read, and that the client's key belongs to its certificate.
pub(crate) fn check_files(options: &RemoteOptions) -> Result<(), Error> {
    if let Some(file) = &options.ca_file {
        certificates_of(file)?;
    }
    client_certificate(options, &crypto()).map(drop)
}

/// Returns the cryptography that the program has chosen, or ring's.
fn crypto() -> Arc<CryptoProvider> {
    let chosen = CryptoProvider::get_default().cloned();
    chosen.unwrap_or_else(|| Arc::new(ring::default_provider()))
}

/// Reads this client's certificate, with the chain to its authority, and its private key.
fn client_certificate(
    options: &RemoteOptions,
    crypto: &CryptoProvider,
) -> Result<Option<CertifiedKey>, Error> {
    let Some((certificate, key)) = &options.client_certificate else {
        return Ok(None);
    };
    let unreadable = |name: &str, file: &Path, error| {
        let text = format!(
            "`{name}` {} cannot be read; it takes a PEM file",
            file.display()
        );
        invalid(text).with_source(error)
    };
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain: Vec<_> = chain.map_err(|error| unreadable("cert_file", certificate, error))?;
    if chain.is_empty() {
        return Err(invalid(
            "`cert_file` has no certificate in it; it takes a PEM file",
        ));
    }
    let key =
        PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("key_file", key, error))?;
    let own = CertifiedKey::from_der(chain, key, crypto).map_err(|error| {
        invalid("`key_file` has not the key for `cert_file`").with_source(error)
    })?;
    Ok(Some(own))
}

fn certificates_of(file: &Path) -> Result<RootCertStore, Error> {
    let pem = fs::read(file).map_err(|error| {
        let text = format!("`ca_file` {} cannot be read", file.display());
        invalid(text).with_source(error)
    })?;
    let mut roots = RootCertStore::empty();
    let unreadable = "`ca_file` has a certificate in it that cannot be read";
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| invalid(unreadable).with_source(error))?;
        let added = roots.add(certificate);
        added.map_err(|error| invalid(unreadable).with_source(error))?;
    }
    if roots.is_empty() {
        return Err(invalid(
            "`ca_file` has no certificate in it; it takes a PEM file",
        ));
    }
    Ok(roots)
}

fn system_certificates() -> Result<RootCertStore, Error> {
    let found = rustls_native_certs::load_native_certs();
    if let Some(error) = found.errors.into_iter().next() {
        return Err(invalid(
            "the system's certificates cannot be read; SSL_CERT_FILE and SSL_CERT_DIR say where they are",
        )
        .with_source(error));
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    Ok(roots)
}
