//! Certificates for servers of tests.

#[cfg(feature = "tls")]
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[cfg(feature = "tls")]
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// The files (PEM) of an authority that is made for one test, and of a server certificate that it signed
/// for `localhost` and `127.0.0.1`.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// The authority's certificate, which a client has to trust.
    pub authority: PathBuf,
    /// The server's certificate.
    pub certificate: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
}

/// Makes certificates in a folder.
pub(crate) type MakeCertificates = fn(&Path) -> io::Result<Certificates>;

/// Defines the setter of servers' options, for a struct with a field `tls`. The argument says where the server listens.
macro_rules! tls_setter {
    ($docs:literal) => {
        #[doc = $docs]
        #[cfg(feature = "tls")]
        #[must_use]
        pub fn tls(mut self) -> Self {
            self.tls = Some($crate::Certificates::make);
            self
        }
    };
}

pub(crate) use tls_setter;

#[cfg(feature = "tls")]
impl Certificates {
    /// Makes the files in `folder`, which must exist. Each call makes another authority, so a client that
    /// trusts the first one must refuse the second.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn make(folder: &Path) -> io::Result<Self> {
        let [authority, certificate, key] = pems().map_err(io::Error::other)?;
        let write = |name: &str, pem: String| {
            let file = folder.join(name);
            fs::write(&file, pem).map(|()| file)
        };
        Ok(Self {
            authority: write("authority.pem", authority)?,
            certificate: write("server.pem", certificate)?,
            key: write("server.key", key)?,
        })
    }
}

#[cfg(feature = "tls")]
fn pems() -> Result<[String; 3], rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "lockkeeper test authority");
    let authority_key = KeyPair::generate()?;
    let authority = params.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(params, authority_key);

    let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    params
        .distinguished_name
        .push(DnType::CommonName, "localhost");
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    Ok([authority, certificate, key.serialize_pem()])
}
