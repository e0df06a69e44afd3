//! Certificates, and the TLS settings made from them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use lockkeeper_core::{Error, ErrorKind};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Returns settings that trust the certificates in `ca_file`, or the system's if it is `None`.
pub(crate) fn client_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, Error> {
    let roots = match ca_file {
        Some(file) => read_certificates(file)?,
        None => system_certificates()?,
    };
    // The program may have chosen its cryptography already.
    let chosen = CryptoProvider::get_default().cloned();
    let crypto = chosen.unwrap_or_else(|| Arc::new(ring::default_provider()));
    let config = ClientConfig::builder_with_provider(crypto).with_safe_default_protocol_versions();
    let config = config.map_err(|error| {
        invalid("the cryptography that this program chose for rustls does not do for TLS")
            .with_source(error)
    })?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(Arc::new(config))
}

/// Reads the certificates of a PEM file.
///
/// # Errors
/// [`ErrorKind::InvalidValue`] if the file, or one of its certificates, cannot be read, or if it has
/// none.
pub fn read_certificates(file: &Path) -> Result<RootCertStore, Error> {
    let pem = fs::read(file).map_err(|error| {
        let text = format!("`ca_file` {} cannot be read ({error})", file.display());
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
        return Err(invalid(format!(
            "the system's certificates cannot be read; SSL_CERT_FILE and SSL_CERT_DIR say where they are ({error})"
        ))
        .with_source(error));
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    Ok(roots)
}

pub(crate) fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidValue, text)
}
