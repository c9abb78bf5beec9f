//! Certificates of the TCP listeners: the operator's own, or ones that are made here. And of those who connect: workers can be
//! asked for one.
//!
//! What is made is an authority, which stays in the data folder so that clients can be told once to trust it, and with every
//! start a certificate by it for the names that the server has now.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use sha2::{Digest, Sha256};
use std::{
    fmt, fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};
use thiserror::Error;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, RootCertStore, ServerConfig,
        crypto::{CryptoProvider, ring},
        pki_types::{
            CertificateDer, PrivateKeyDer,
            pem::{self, PemObject},
        },
        server::{NoServerSessionStorage, WebPkiClientVerifier},
    },
};

const FOLDER: &str = "tls";
const AUTHORITY: &str = "ca.pem";
const AUTHORITY_KEY: &str = "ca.key";
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The longest that clients commonly accept of a private authority.
const VALID_DAYS: u32 = 825;

/// How the server proves who it is.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    /// Where clients are asked for a certificate.
    asking: Option<Arc<ServerConfig>>,
    /// Of certificates that were made here: whom clients must trust.
    pub authority: Option<Authority>,
}

#[derive(Clone, Debug)]
pub struct Authority {
    pub path: PathBuf,
    /// SHA-256 of the certificate, as other tools print it.
    pub fingerprint: String,
}

#[derive(Debug, Error)]
pub enum TlsError {
    #[error("cannot read {path}: {source}")]
    Pem { path: PathBuf, source: pem::Error },
    #[error("{0} has no certificate")]
    NoCertificate(PathBuf),
    #[error("{path} cannot be used as the authority of workers: {source}")]
    ClientAuthority { path: PathBuf, source: rustls::Error },
    #[error("the certificate and the key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    #[error("cannot keep the authority in {path}: {source}")]
    Folder { path: PathBuf, source: io::Error },
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl Tls {
    /// From files in PEM: the certificate with those that vouch for it, and its key.
    pub fn of_files(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let chain = certificates(cert)?;
        let unreadable = |source| TlsError::Pem { path: key.to_owned(), source };
        Self::of(chain, PrivateKeyDer::from_pem_file(key).map_err(unreadable)?, None)
    }

    /// By the authority of the data folder, which is made if there is none. `names` are host names and addresses.
    pub fn self_signed(data: &Path, names: Vec<String>) -> Result<Self, TlsError> {
        let folder = data.join(FOLDER);
        let failed = |source| TlsError::Folder { path: folder.clone(), source };
        let (path, key_path) = (folder.join(AUTHORITY), folder.join(AUTHORITY_KEY));
        if !path.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
            let key = KeyPair::generate()?;
            let certificate = authority().self_signed(&key)?;
            // The certificate comes last: where it is, the key is, too.
            write(&key_path, &key.serialize_pem(), 0o600).map_err(failed)?;
            write(&path, &certificate.pem(), 0o644).map_err(failed)?;
        }
        let trusted =
            CertificateDer::from_pem_file(&path).map_err(|source| TlsError::Pem { path: path.clone(), source })?;
        let issuer_key = KeyPair::from_pem(&fs::read_to_string(&key_path).map_err(failed)?)?;
        let issuer = Issuer::new(authority(), issuer_key);
        let key = KeyPair::generate()?;
        let certificate = server(names)?.signed_by(&key, &issuer)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(|why| rustls::Error::General(why.to_owned()))?;
        let fingerprint = fingerprint(&trusted);
        Self::of(vec![certificate.der().clone()], key, Some(Authority { path, fingerprint }))
    }

    fn of(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        authority: Option<Authority>,
    ) -> Result<Self, TlsError> {
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        Ok(Self { config: Arc::new(config), asking: None, authority })
    }

    /// The same, and over the network workers must have a certificate that an authority in this file, in PEM, vouches for.
    pub fn with_client_authority(self, path: &Path) -> Result<Self, TlsError> {
        let unusable = |source| TlsError::ClientAuthority { path: path.to_owned(), source };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(unusable)?;
        }
        // People have API tokens instead, and come through the same listener.
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .allow_unauthenticated()
            .build()
            .map_err(|error| unusable(rustls::Error::General(error.to_string())))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&self.config.cert_resolver));
        // Whoever resumes a session is not asked again, and the certificate may have expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { asking: Some(Arc::new(config)), ..self })
    }

    /// Whether workers over the network must have a certificate.
    pub(crate) fn asks_workers(&self) -> bool {
        self.asking.is_some()
    }

    pub(crate) fn grpc_acceptor(&self) -> TlsAcceptor {
        acceptor(self.asking.as_ref().unwrap_or(&self.config), "h2")
    }

    pub(crate) fn http_acceptor(&self) -> TlsAcceptor {
        acceptor(&self.config, "http/1.1")
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// `protocol`: what is offered, by its name in ALPN.
fn acceptor(config: &ServerConfig, protocol: &str) -> TlsAcceptor {
    let mut config = config.clone();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// All certificates of a file in PEM, of which there must be one at least.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(|source| TlsError::Pem { path: path.to_owned(), source })?;
    if all.is_empty() { Err(TlsError::NoCertificate(path.to_owned())) } else { Ok(all) }
}

/// The same at every start: what it signs must fit the certificate that clients have.
fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Hodei, made for one data folder");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_after = rcgen::date_time_ymd(2100, 1, 1);
    params
}

fn server(names: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "Hodei server");
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = SystemTime::now();
    // Clocks differ.
    params.not_before = (now - DAY).into();
    params.not_after = (now + DAY * VALID_DAYS).into();
    Ok(params)
}

fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = fs::File::options().create(true).truncate(true).write(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let bytes = Sha256::digest(certificate.as_ref());
    bytes.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authority_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let tls = Tls::self_signed(folder.path(), names).expect("a certificate");
            tls.authority.expect("an authority")
        };
        let first = of(&["localhost", "127.0.0.1"]);
        let trusted = fs::read(&first.path).expect("a file");
        let second = of(&["localhost", "hodei.example"]);
        assert_eq!(first.fingerprint, second.fingerprint);
        assert_eq!(fs::read(&second.path).expect("a file"), trusted);
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(folder.path().join(FOLDER).join(AUTHORITY_KEY)).expect("a key").permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn files_that_do_not_fit_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        assert!(matches!(Tls::of_files(&cert, &key), Err(TlsError::Pem { .. })), "no file");
        let (one, other) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
        let certificate = server(vec!["localhost".into()]).expect("names").self_signed(&one).expect("a certificate");
        fs::write(&cert, certificate.pem()).expect("a file");
        fs::write(&key, other.serialize_pem()).expect("a file");
        assert!(matches!(Tls::of_files(&cert, &key), Err(TlsError::Unusable(_))), "another's key");
        fs::write(&key, one.serialize_pem()).expect("a file");
        assert!(Tls::of_files(&cert, &key).is_ok());
    }

    #[test]
    fn an_authority_of_workers_is_a_certificate() {
        let folder = tempfile::tempdir().expect("a folder");
        let tls = Tls::self_signed(folder.path(), vec!["localhost".into()]).expect("a certificate");
        assert!(!tls.asks_workers());
        let path = folder.path().join("workers.pem");
        let with = |text: &str| {
            fs::write(&path, text).expect("a file");
            tls.clone().with_client_authority(&path)
        };
        assert!(matches!(tls.clone().with_client_authority(&path), Err(TlsError::Pem { .. })), "no file");
        assert!(matches!(with("no PEM"), Err(TlsError::NoCertificate(_))));
        let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(with(empty), Err(TlsError::ClientAuthority { .. })));
        let key = KeyPair::generate().expect("a key");
        let made = authority().self_signed(&key).expect("a certificate").pem();
        assert!(with(&made).expect("an authority").asks_workers());
    }
}
