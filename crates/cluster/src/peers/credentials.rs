//! The files with the identity of this node, read again when they change: a renewed certificate, a
//! new authority and a revocation need no restart.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use farrow_net::records::{Credentials, PeerChain, TlsConfigs, TlsIdentity, TlsMaterial};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::{CertificateError, Error, RootCertStore};
use tokio::sync::watch;

use super::error::StartError;
use super::options::PeerTls;
use super::tls::{ALPN, check_key_is_private, name_of, unusable};
use crate::certs::{NodeName, validity};

/// Time between two looks at the files. A look is four system calls.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Limit on authorities in one file: those of a cluster while one replaces another, and a margin.
const ROOTS_MAX: usize = 16;

/// What shows that a file was written, replaced, or got another mode: device, inode, size, and the
/// times of the last write and of the last change.
type FileStamp = Option<[i128; 5]>;

/// What the files say about this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CredentialStatus {
    /// When the certificate in use expires, in seconds since 1970. 0: unknown.
    pub(crate) expires_s: i64,
    /// How often new files were used since the start.
    pub(crate) reloads: u64,
    /// Why the present files are not used, if they changed and are refused.
    pub(crate) refused: Option<String>,
}

/// The configurations in use.
#[derive(Clone)]
pub(super) struct CurrentConfigs {
    pub(super) configs: TlsConfigs,
    /// Grows when the certificate of this node is another one.
    pub(super) number: u64,
}

/// The content of the files.
struct Loaded {
    material: TlsMaterial,
    configs: TlsConfigs,
    name: NodeName,
}

impl Loaded {
    fn certificate(&self) -> &[CertificateDer<'static>] {
        &self.material.certificate.cert
    }
}

/// The material in use, and the identity on data connections, if there are any.
struct InUse {
    material: TlsMaterial,
    data: Weak<TlsIdentity>,
}

/// What connections use, for as long as the transport runs.
struct SharedCredentials {
    control: watch::Sender<CurrentConfigs>,
    in_use: Mutex<InUse>,
    status: Mutex<CredentialStatus>,
}

/// The identity of this node, as its files have it.
pub(crate) struct NodeCredentials {
    shared: Arc<SharedCredentials>,
    /// Dropped to end the thread that looks at the files.
    _stop: mpsc::Sender<()>,
}

impl fmt::Debug for NodeCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeCredentials")
    }
}

impl NodeCredentials {
    /// Reads the files, and starts the thread that looks at them.
    pub(super) fn load(files: &PeerTls, own: &NodeName) -> Result<Self, StartError> {
        let stamps = stamps_of(files);
        let loaded = read(files)?;
        if loaded.name != *own {
            let (path, found) = (files.certificate.clone(), loaded.name);
            return Err(StartError::NotOwn { path, own: own.clone(), found });
        }
        match check_own(&loaded) {
            Ok(()) => {}
            Err(error @ Error::InvalidCertRevocationList(_)) => {
                return Err(unusable(&files.revoked, error));
            }
            Err(error) => {
                let path = files.certificate.display();
                tracing::warn!(%path, %error, "other nodes reject the certificate of this node");
            }
        }
        let status = CredentialStatus { expires_s: expiry(&loaded), ..CredentialStatus::default() };
        let in_use = InUse { material: loaded.material.clone(), data: Weak::new() };
        let shared = Arc::new(SharedCredentials {
            control: watch::Sender::new(CurrentConfigs {
                configs: loaded.configs.clone(),
                number: 0,
            }),
            in_use: Mutex::new(in_use),
            status: Mutex::new(status),
        });
        let (stop, stopped) = mpsc::channel();
        let watcher = FileWatcher {
            files: files.clone(),
            own: own.clone(),
            shared: Arc::clone(&shared),
            stamps,
            loaded,
            refused: None,
            reported: None,
        };
        // The thread is not joined: a file system that hangs must not hold up the end of the node.
        std::thread::Builder::new()
            .name("farrow-certs".into())
            .spawn(move || watcher.run(&stopped))
            .map_err(|error| StartError::Tls(error.to_string()))?;
        Ok(Self { shared, _stop: stop })
    }

    /// The configurations for control connections, now and after each change.
    pub(super) fn control(&self) -> watch::Receiver<CurrentConfigs> {
        self.shared.control.subscribe()
    }

    /// The credentials of this node on data connections, which change with the files, too.
    pub(crate) fn data(&self) -> Result<Credentials, String> {
        let mut in_use = self.shared.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let member_of =
            |certificate: &CertificateDer<'_>| name_of(certificate).map(|name| name.to_string());
        let server_name_of = |member: &str| match member.parse::<NodeName>() {
            Ok(name) => name.certificate_name(),
            Err(_) => member.to_owned(),
        };
        let identity = TlsIdentity::new(&in_use.material, member_of, server_name_of);
        let identity = Arc::new(identity.map_err(|error| error.to_string())?);
        in_use.data = Arc::downgrade(&identity);
        Ok(Credentials::Tls(identity))
    }

    pub(crate) fn status(&self) -> CredentialStatus {
        self.shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The thread that looks at the files.
struct FileWatcher {
    files: PeerTls,
    own: NodeName,
    shared: Arc<SharedCredentials>,
    /// Of the files that were used last.
    stamps: [FileStamp; 4],
    loaded: Loaded,
    /// Of the files that were refused at the last look.
    refused: Option<[FileStamp; 4]>,
    /// Of the refused files that the log has a line about.
    reported: Option<[FileStamp; 4]>,
}

impl FileWatcher {
    fn run(mut self, stopped: &mpsc::Receiver<()>) {
        while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            self.look();
        }
    }

    /// Uses the files if they changed and can be used. Files that cannot are read again at each
    /// look: a certificate may become valid later, and a writer may be in the middle of its work.
    fn look(&mut self) {
        let stamps = stamps_of(&self.files);
        if stamps == self.stamps {
            if self.refused.take().is_some() {
                self.set_status(|status| status.refused = None);
            }
            return;
        }
        let result = read(&self.files)
            .map_err(|error| error.to_string())
            .and_then(|new| self.check(&new).map(|()| new));
        match result {
            Ok(new) => self.apply(new, stamps),
            Err(reason) => self.refuse(stamps, reason),
        }
    }

    /// Why new files are not used.
    fn check(&self, new: &Loaded) -> Result<(), String> {
        if new.name != self.own {
            return Err(format!("the certificate is for node {}, this is {}", new.name, self.own));
        }
        // A list that was lost on its way would accept again what it revoked.
        if new.material.revocations.is_empty() && !self.loaded.material.revocations.is_empty() {
            return Err(format!("{} is missing", self.files.revoked.display()));
        }
        match check_own(new) {
            Ok(()) => Ok(()),
            Err(Error::InvalidCertificate(CertificateError::Revoked)) => {
                tracing::error!(node = %self.own, "the certificate of this node is revoked");
                Ok(())
            }
            // The certificate in use is no better, and the other files may be needed.
            Err(error) if is_of_time(&error) && new.certificate() == self.loaded.certificate() => {
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn apply(&mut self, new: Loaded, stamps: [FileStamp; 4]) {
        let mut in_use = self.shared.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = match in_use.data.upgrade().map(|data| data.replace(&new.material)) {
            None => 0,
            Some(Ok(ended)) => ended,
            Some(Err(error)) => {
                drop(in_use);
                return self.refuse(stamps, error.to_string());
            }
        };
        in_use.material = new.material.clone();
        drop(in_use);
        let is_renewed = new.certificate() != self.loaded.certificate();
        self.shared.control.send_modify(|current| {
            current.configs = new.configs.clone();
            current.number += u64::from(is_renewed);
        });
        let expires_s = expiry(&new);
        (self.loaded, self.stamps, self.refused) = (new, stamps, None);
        self.set_status(|status| {
            *status = CredentialStatus { expires_s, reloads: status.reloads + 1, refused: None };
        });
        tracing::info!(
            path = %self.files.certificate.display(),
            expires_s,
            data_connections_ended = ended,
            "the certificate files were read again"
        );
    }

    /// Keeps what is in use. Reports files that were refused at two looks: they are written one
    /// after the other.
    fn refuse(&mut self, stamps: [FileStamp; 4], reason: String) {
        if self.refused.replace(stamps) != Some(stamps) {
            return;
        }
        if self.reported.replace(stamps) != Some(stamps) {
            tracing::warn!(
                %reason,
                "the new certificate files are not used; the earlier ones stay in use"
            );
        }
        self.set_status(|status| status.refused = Some(reason));
    }

    fn set_status(&self, change: impl FnOnce(&mut CredentialStatus)) {
        change(&mut self.shared.status.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn read(files: &PeerTls) -> Result<Loaded, StartError> {
    let PeerTls { ca, certificate, key, revoked } = files;
    let roots = read_roots(ca)?;
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(certificate, error))?;
    let first = chain.first().ok_or_else(|| unusable(certificate, "no certificate"))?;
    let name = name_of(first).map_err(|reason| unusable(certificate, reason))?;
    check_key_is_private(key)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, error))?;
    let mut material = TlsMaterial::new(roots, chain, private)
        .map_err(|error| StartError::Tls(error.to_string()))?;
    material.revocations = read_revocations(revoked)?;
    let configs = material.configs(ALPN).map_err(|error| unusable(revoked, error))?;
    Ok(Loaded { material, configs, name })
}

fn read_roots(ca: &Path) -> Result<RootCertStore, StartError> {
    let found: Vec<_> = CertificateDer::pem_file_iter(ca)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(ca, error))?;
    if found.is_empty() || found.len() > ROOTS_MAX {
        let count = found.len();
        return Err(unusable(ca, format_args!("{count} certificates, 1 to {ROOTS_MAX} are used")));
    }
    let mut roots = RootCertStore::empty();
    for root in found {
        roots.add(root).map_err(|error| unusable(ca, error))?;
    }
    Ok(roots)
}

/// The revocation lists, none if there is no file.
fn read_revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, StartError> {
    match std::fs::read(path) {
        Ok(text) => {
            let lists: Result<Vec<_>, _> =
                CertificateRevocationListDer::pem_slice_iter(&text).collect();
            let lists = lists.map_err(|error| unusable(path, error))?;
            match lists.is_empty() {
                true => Err(unusable(path, "no revocation list")),
                false => Ok(lists),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(unusable(path, error)),
    }
}

/// Checks this node's certificate as another node with the same files does. This checks the
/// signatures of revocation lists, too.
fn check_own(loaded: &Loaded) -> Result<(), Error> {
    loaded.configs.check(&PeerChain::new(loaded.certificate()))
}

fn is_of_time(error: &Error) -> bool {
    use CertificateError as Bad;
    let Error::InvalidCertificate(reason) = error else { return false };
    matches!(
        reason,
        Bad::Expired
            | Bad::ExpiredContext { .. }
            | Bad::NotValidYet
            | Bad::NotValidYetContext { .. }
    )
}

fn expiry(loaded: &Loaded) -> i64 {
    let first = loaded.certificate().first();
    first.and_then(validity::expiry).map_or(0, |at| at.unix_timestamp())
}

fn stamps_of(files: &PeerTls) -> [FileStamp; 4] {
    [&files.ca, &files.certificate, &files.key, &files.revoked].map(|path| stamp_of(path))
}

fn stamp_of(path: &Path) -> FileStamp {
    let of = std::fs::metadata(path).ok()?;
    let time = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    Some([
        of.dev().into(),
        of.ino().into(),
        of.size().into(),
        time(of.mtime(), of.mtime_nsec()),
        time(of.ctime(), of.ctime_nsec()),
    ])
}
