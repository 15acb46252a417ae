//! Certificates of a cluster: its own authority, and one certificate for each node.
//!
//! The authority is a folder with `ca.pem` and `ca.key`. A node needs `ca.pem`, `NAME.pem` and
//! `NAME.key`; `ca.key` stays where certificates are created. The name `NAME.farrow.internal` in
//! its certificate ([`CERTIFICATE_DOMAIN`]) identifies a node, wherever it runs. The certificate
//! also contains the names and addresses of its host, for callers that do not know its name.
//!
//! ```
//! use std::time::Duration;
//!
//! let dir = std::env::temp_dir().join(format!("farrow-certs-{}", std::process::id()));
//! let day = Duration::from_secs(86_400);
//! farrow_cluster::certs::init(&dir, 3650 * day)?;
//! let files = farrow_cluster::certs::issue(&dir, "a", &["10.0.0.1".into()], 365 * day)?;
//! assert!(files.key.ends_with("a.key"));
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod revoke;
pub(crate) mod validity;

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farrow_wire::{MOST_FREE, NEAREST, RESERVED_NODE_NAMES};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use time::OffsetDateTime;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

pub use revoke::{REVOKED_FILE, revoke};

pub use farrow_membership::{CERTIFICATE_DOMAIN, NODE_NAME_CHARS_MAX, NodeName, NodeNameError};

/// Longest validity of a certificate: 20 years.
pub const VALIDITY_MAX: Duration = Duration::from_secs(20 * 366 * 86_400);

/// Limit on hosts in one certificate, which is sent with each connection.
pub const HOSTS_MAX: usize = 64;

/// Certificates are valid from this long before their creation, since clocks of machines differ.
const CLOCKS_DIFFER: time::Duration = time::Duration::minutes(5);

/// The start of the subject of each authority. A part of its key follows.
const AUTHORITY: &str = "Farrow cluster authority";

/// Why certificates were not created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertsError {
    /// The file exists already, and is not overwritten.
    #[error("{} is there already", .0.display())]
    Exists(PathBuf),
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The name is not a valid node name.
    #[error(transparent)]
    Name(#[from] NodeNameError),
    /// The name chooses a node by a rule wherever clients name one.
    #[error(
        "no node can have the name {0:?}: {NEAREST:?} and {MOST_FREE:?} are rules by which clients \
         choose a node"
    )]
    Reserved(String),
    /// Neither an address nor a host name, or a name that stands for a node.
    #[error("{0:?} is neither an address nor a DNS name of a host")]
    Host(String),
    /// Too many hosts.
    #[error("{count} hosts, at most {HOSTS_MAX} go into one certificate")]
    TooManyHosts {
        /// Their number.
        count: usize,
    },
    /// The validity is out of range.
    #[error("valid for {seconds} s: 1 s to {} s can be had", VALIDITY_MAX.as_secs())]
    Validity {
        /// The requested validity.
        seconds: u64,
    },
    /// The files of the authority are damaged, not created by [`init`], or do not match.
    #[error("{}: no authority made by `farrow certs init`: {reason}", path.display())]
    Authority {
        /// The rejected file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// A key or certificate could not be created.
    #[error("making a certificate: {0}")]
    Make(String),
}

/// The files that a node needs in addition to the certificate of the authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFiles {
    /// Its certificate, in PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM (PKCS #8), readable by its owner only.
    pub key: PathBuf,
}

/// Creates an authority in a folder: `ca.pem`, and `ca.key` with mode 0600.
///
/// # Errors
///
/// One of the files exists or cannot be written, or the validity is out of range.
pub fn init(dir: &Path, validity: Duration) -> Result<(), CertsError> {
    let (begin, end) = period(validity)?;
    let made = |error: rcgen::Error| CertsError::Make(error.to_string());
    let key = KeyPair::generate().map_err(made)?;
    let mut params = authority(&authority_name(&key));
    (params.not_before, params.not_after) = (begin, end);
    let certificate = params.self_signed(&key).map_err(made)?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| CertsError::File { path: dir.to_owned(), error })?;
    write_pair(&dir.join("ca.pem"), &certificate.pem(), &dir.join("ca.key"), &key)
}

/// A name that a node may have: a valid one that is no rule for the placement of objects.
///
/// # Errors
///
/// [`CertsError::Name`], [`CertsError::Reserved`].
pub fn node_name(name: &str) -> Result<NodeName, CertsError> {
    match RESERVED_NODE_NAMES.contains(&name) {
        true => Err(CertsError::Reserved(name.to_owned())),
        false => Ok(name.parse()?),
    }
}

/// Certifies a node by the authority in a folder: `NAME.pem`, and `NAME.key` with mode 0600.
///
/// `hosts` are addresses and DNS names at which peers reach the node without knowing its name.
///
/// # Errors
///
/// One of the files exists or cannot be written, the authority cannot be read, or the name, a host
/// or the validity is invalid.
pub fn issue(
    dir: &Path,
    node_name: &str,
    hosts: &[String],
    validity: Duration,
) -> Result<NodeFiles, CertsError> {
    let name = self::node_name(node_name)?;
    // Its files would be those of the authority.
    if name.as_str() == "ca" {
        return Err(CertsError::Exists(dir.join("ca.pem")));
    }
    let (begin, end) = period(validity)?;
    let (certificate, key) = sign(dir, &name, hosts, begin, end)?;
    check_chain(&dir.join("ca.pem"), certificate.der())?;
    let files = NodeFiles {
        certificate: dir.join(format!("{name}.pem")),
        key: dir.join(format!("{name}.key")),
    };
    write_pair(&files.certificate, &certificate.pem(), &files.key, &key)?;
    Ok(files)
}

/// Creates a key and its certificate, for any period.
pub(crate) fn sign(
    dir: &Path,
    name: &NodeName,
    hosts: &[String],
    begin: OffsetDateTime,
    end: OffsetDateTime,
) -> Result<(Certificate, KeyPair), CertsError> {
    if hosts.len() > HOSTS_MAX {
        return Err(CertsError::TooManyHosts { count: hosts.len() });
    }
    if let Some(host) = hosts.iter().find(|host| !is_host(host)) {
        return Err(CertsError::Host(host.chars().take(300).collect()));
    }
    let made = |error: rcgen::Error| CertsError::Make(error.to_string());
    let mut names = vec![name.certificate_name()];
    names.extend_from_slice(hosts);
    let mut params = CertificateParams::new(names).map_err(made)?;
    (params.not_before, params.not_after) = (begin, end);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name.as_str());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let issuer = issuer(dir)?;
    let key = KeyPair::generate().map_err(made)?;
    let certificate = params.signed_by(&key, &issuer).map_err(made)?;
    Ok((certificate, key))
}

/// The authority in a folder, as a signer.
fn issuer(dir: &Path) -> Result<Issuer<'static, KeyPair>, CertsError> {
    let key = read_key(&dir.join("ca.key"))?;
    let ca = dir.join("ca.pem");
    let root = CertificateDer::from_pem_file(&ca).map_err(|error| no_authority(&ca, error))?;
    let root = EndEntityCert::try_from(&root).map_err(|error| no_authority(&ca, error))?;
    if root.subject_public_key_info().as_ref() != key.subject_public_key_info() {
        return Err(no_authority(&ca, "ca.key is the key of another authority"));
    }
    let name = authority_name(&key);
    // Authorities of earlier versions have the same name.
    let is_named = root.subject().ends_with(name.as_bytes());
    let name = if is_named { name } else { AUTHORITY.to_owned() };
    Ok(Issuer::new(authority(&name), key))
}

/// A name of its own for each authority: while one replaces another, nodes trust both, and find the
/// revocation list of an authority by its name.
fn authority_name(key: &KeyPair) -> String {
    let bytes = key.public_key_raw();
    let last = bytes.len().saturating_sub(4);
    let part: String = bytes.iter().skip(last).map(|byte| format!("{byte:02x}")).collect();
    format!("{AUTHORITY} {part}")
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn period(validity: Duration) -> Result<(OffsetDateTime, OffsetDateTime), CertsError> {
    let wrong = || CertsError::Validity { seconds: validity.as_secs() };
    if validity < Duration::from_secs(1) || validity > VALIDITY_MAX {
        return Err(wrong());
    }
    let now = OffsetDateTime::now_utc();
    let validity = time::Duration::try_from(validity).map_err(|_| wrong())?;
    now.checked_add(validity).map(|end| (now - CLOCKS_DIFFER, end)).ok_or_else(wrong)
}

/// Whether this is an address or a host name outside the domain of nodes. A certificate for a host
/// must not name another node.
fn is_host(host: &str) -> bool {
    let is_node = || host.to_ascii_lowercase().trim_end_matches('.').ends_with(CERTIFICATE_DOMAIN);
    host.parse::<IpAddr>().is_ok() || (ServerName::try_from(host).is_ok() && !is_node())
}

fn read_key(path: &Path) -> Result<KeyPair, CertsError> {
    let text = fs::read_to_string(path)
        .map_err(|error| CertsError::File { path: path.to_owned(), error })?;
    KeyPair::from_pem(&text).map_err(|error| no_authority(path, error))
}

fn no_authority(path: &Path, reason: impl ToString) -> CertsError {
    CertsError::Authority { path: path.to_owned(), reason: reason.to_string() }
}

/// Checks that a node that trusts the authority admits the new node.
fn check_chain(ca: &Path, certificate: &CertificateDer<'_>) -> Result<(), CertsError> {
    let root = CertificateDer::from_pem_file(ca).map_err(|error| no_authority(ca, error))?;
    let anchor = anchor_from_trusted_cert(&root).map_err(|error| no_authority(ca, error))?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    EndEntityCert::try_from(certificate)
        .and_then(|certificate| {
            let now = UnixTime::since_unix_epoch(since);
            let usage = KeyUsage::client_auth();
            certificate
                .verify_for_usage(algorithms.all, &[anchor], &[], now, usage, None, None)
                .map(|_| ())
        })
        .map_err(|error| no_authority(ca, error))
}

/// Writes both files or none.
fn write_pair(
    certificate: &Path,
    certificate_pem: &str,
    key: &Path,
    key_pair: &KeyPair,
) -> Result<(), CertsError> {
    if certificate.exists() {
        return Err(CertsError::Exists(certificate.to_owned()));
    }
    write_new(key, key_pair.serialize_pem().as_bytes(), 0o600)?;
    write_new(certificate, certificate_pem.as_bytes(), 0o644).inspect_err(|_| {
        let _ = fs::remove_file(key);
    })
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), CertsError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => CertsError::Exists(path.to_owned()),
        _ => CertsError::File { path: path.to_owned(), error },
    };
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.map_err(|error| {
        let _ = fs::remove_file(path);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), DAY).unwrap();
        dir
    }

    #[test]
    fn keys_are_for_their_owner_and_nothing_is_written_over() {
        let dir = folder();
        let files = issue(dir.path(), "a", &["10.0.0.1".into(), "a.example".into()], DAY).unwrap();
        for key in [&dir.path().join("ca.key"), &files.key] {
            assert_eq!(fs::metadata(key).unwrap().mode() & 0o777, 0o600);
        }
        let before = fs::read(dir.path().join("ca.key")).unwrap();
        assert!(matches!(init(dir.path(), DAY), Err(CertsError::Exists(_))));
        assert!(matches!(issue(dir.path(), "a", &[], DAY), Err(CertsError::Exists(_))));
        assert!(matches!(issue(dir.path(), "ca", &[], DAY), Err(CertsError::Exists(_))));
        assert_eq!(fs::read(dir.path().join("ca.key")).unwrap(), before);
        // A certificate is not replaced, even if its key was removed.
        fs::remove_file(&files.key).unwrap();
        assert!(matches!(issue(dir.path(), "a", &[], DAY), Err(CertsError::Exists(_))));
        assert!(!files.key.exists());
    }

    #[test]
    fn names_hosts_and_times_are_checked() {
        let dir = folder();
        for name in ["", "A", "../a", "a.b", "*"] {
            let error = issue(dir.path(), name, &[], DAY).unwrap_err();
            assert!(matches!(error, CertsError::Name(_)), "{error}");
        }
        for host in ["", "a b", "*.example", "b.farrow.internal", "B.Farrow.Internal", "1.2.3.4:5"]
        {
            let error = issue(dir.path(), "a", &[host.into()], DAY).unwrap_err();
            assert!(matches!(error, CertsError::Host(_)), "{host}: {error}");
        }
        let many = vec!["x".to_owned(); HOSTS_MAX + 1];
        let error = issue(dir.path(), "a", &many, DAY).unwrap_err();
        assert!(matches!(error, CertsError::TooManyHosts { .. }), "{error}");
        for validity in [Duration::ZERO, VALIDITY_MAX + DAY] {
            let error = issue(dir.path(), "a", &[], validity).unwrap_err();
            assert!(matches!(error, CertsError::Validity { .. }), "{error}");
        }
        issue(dir.path(), "a", &["::1".into(), "host".into()], VALIDITY_MAX).unwrap();
    }

    #[test]
    fn an_authority_whose_files_do_not_belong_together_certifies_no_node() {
        let (dir, other) = (folder(), folder());
        fs::copy(other.path().join("ca.key"), dir.path().join("ca.key")).unwrap();
        let error = issue(dir.path(), "a", &[], DAY).unwrap_err();
        assert!(matches!(error, CertsError::Authority { .. }), "{error}");
        assert!(!dir.path().join("a.key").exists());
        fs::write(dir.path().join("ca.key"), "no key").unwrap();
        let error = issue(dir.path(), "a", &[], DAY).unwrap_err();
        assert!(matches!(error, CertsError::Authority { .. }), "{error}");
        fs::remove_file(dir.path().join("ca.key")).unwrap();
        let error = issue(dir.path(), "a", &[], DAY).unwrap_err();
        assert!(matches!(error, CertsError::File { .. }), "{error}");
    }
}
