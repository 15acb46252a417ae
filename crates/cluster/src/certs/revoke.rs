//! Revocation of single certificates, by a list that the authority signs (RFC 5280, section 5).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use time::OffsetDateTime;
use webpki::{BorrowedCertRevocationList, EndEntityCert};

use super::{CLOCKS_DIFFER, CertsError, VALIDITY_MAX, issuer, no_authority, write_new};
use crate::certs::NodeName;

/// Longest wait for other revocations, which take some milliseconds each.
const LOCK_MAX: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The list of revoked certificates, beside `ca.pem`.
pub const REVOKED_FILE: &str = "ca.crl";

/// Revokes the certificate `NAME.pem` of a folder: adds it to the list [`REVOKED_FILE`] there,
/// which is created or replaced in one step. Returns the path of the list, which each node needs
/// beside its `ca.pem`. A certificate that is in the list already stays there.
///
/// # Errors
///
/// The certificate is not of this authority, a file cannot be read or written, or the name is
/// invalid.
pub fn revoke(dir: &Path, node_name: &str) -> Result<PathBuf, CertsError> {
    let name: NodeName = node_name.parse()?;
    let path = dir.join(format!("{name}.pem"));
    let RevokedCertificate { serial, issuer } = certificate_of(dir, &path)?;
    let list = dir.join(REVOKED_FILE);
    // Two revocations at the same time would each write a list without the other one.
    let _locked = lock(&dir.join("ca.key"))?;
    let mut lists = read_lists(&list, &issuer)?;
    let revoked = &mut lists.own;
    let now = OffsetDateTime::now_utc();
    if !revoked.iter().any(|one| one.serial_number.as_ref() == serial) {
        revoked.push(entry_of(&serial, now));
    }
    write_lists(dir, &list, lists, now)?;
    Ok(list)
}

/// Locks the key of the authority against other revocations, until the file is closed.
fn lock(key: &Path) -> Result<fs::File, CertsError> {
    let failed = |error: io::Error| CertsError::File { path: key.to_owned(), error };
    let file = fs::File::open(key).map_err(failed)?;
    let until = Instant::now() + LOCK_MAX;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => {
                let reason = "another revocation has it locked";
                return Err(failed(io::Error::new(io::ErrorKind::WouldBlock, reason)));
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// The entry of a certificate in a list.
fn entry_of(serial: &[u8], revocation_time: OffsetDateTime) -> RevokedCertParams {
    RevokedCertParams {
        serial_number: SerialNumber::from_slice(serial),
        revocation_time,
        reason_code: None,
        invalidity_date: None,
    }
}

/// A certificate to revoke: its serial number, and the name of its authority in DER.
struct RevokedCertificate {
    serial: Vec<u8>,
    issuer: Vec<u8>,
}

/// Reads a certificate of this authority.
fn certificate_of(dir: &Path, path: &Path) -> Result<RevokedCertificate, CertsError> {
    let wrong = |reason: String| {
        let error = io::Error::new(io::ErrorKind::InvalidData, reason);
        CertsError::File { path: path.to_owned(), error }
    };
    let ca = dir.join("ca.pem");
    let root = CertificateDer::from_pem_file(&ca).map_err(|error| no_authority(&ca, error))?;
    let root = EndEntityCert::try_from(&root).map_err(|error| no_authority(&ca, error))?;
    let text = fs::read(path).map_err(|error| CertsError::File { path: path.to_owned(), error })?;
    let found = CertificateDer::from_pem_slice(&text).map_err(|error| wrong(error.to_string()))?;
    let found = EndEntityCert::try_from(&found).map_err(|error| wrong(error.to_string()))?;
    if found.issuer() != root.subject() {
        return Err(wrong("a certificate of another authority".to_owned()));
    }
    Ok(RevokedCertificate { serial: found.serial().to_vec(), issuer: found.issuer().to_vec() })
}

/// Last line of a list in PEM (RFC 7468, section 6).
const LIST_END: &str = "-----END X509 CRL-----";

/// The earlier lists in a file.
#[derive(Default)]
struct RevocationLists {
    /// The entries of the authority's own list.
    own: Vec<RevokedCertParams>,
    /// The lists of other authorities as they are, in PEM: only these may change them.
    foreign: String,
}

/// The lists of a file, none if there is no file. `subject`: the authority's name, in DER.
fn read_lists(path: &Path, subject: &[u8]) -> Result<RevocationLists, CertsError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(RevocationLists::default());
        }
        Err(error) => return Err(CertsError::File { path: path.to_owned(), error }),
    };
    let damaged = |error: &dyn std::fmt::Display| {
        let error = io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        CertsError::File { path: path.to_owned(), error }
    };
    let mut found = RevocationLists::default();
    for block in text.split_inclusive(LIST_END).filter(|block| block.contains(LIST_END)) {
        let der = CertificateRevocationListDer::from_pem_slice(block.as_bytes());
        let der = der.map_err(|error| damaged(&error))?;
        let list = BorrowedCertRevocationList::from_der(&der).map_err(|error| damaged(&error))?;
        if !der.windows(subject.len()).any(|part| part == subject) {
            found.foreign.push_str(block.trim_start());
            found.foreign.push('\n');
            continue;
        }
        for entry in &list {
            let entry = entry.map_err(|error| damaged(&error))?;
            let seconds = i64::try_from(entry.revocation_date.as_secs()).unwrap_or(i64::MAX);
            let at = OffsetDateTime::from_unix_timestamp(seconds);
            found.own.push(entry_of(entry.serial_number, at.map_err(|error| damaged(&error))?));
        }
    }
    if !text.contains(LIST_END) {
        return Err(damaged(&"no list of revoked certificates"));
    }
    Ok(found)
}

fn write_lists(
    dir: &Path,
    list: &Path,
    RevocationLists { own, foreign }: RevocationLists,
    now: OffsetDateTime,
) -> Result<(), CertsError> {
    let made = |error: rcgen::Error| CertsError::Make(error.to_string());
    let validity = time::Duration::try_from(VALIDITY_MAX);
    let validity = validity.map_err(|error| CertsError::Make(error.to_string()))?;
    let signed = CertificateRevocationListParams {
        this_update: now - CLOCKS_DIFFER,
        // Nodes do not enforce it: a list that expires must not stop a cluster.
        next_update: now + validity,
        // Later lists have larger numbers.
        crl_number: SerialNumber::from(now.unix_timestamp().unsigned_abs()),
        issuing_distribution_point: None,
        revoked_certs: own,
        key_identifier_method: KeyIdMethod::Sha256,
    }
    .signed_by(&issuer(dir)?)
    .and_then(|signed| signed.pem())
    .map_err(made)?;
    // A node that reads at this moment finds the former list or the new one.
    let temporary = dir.join(format!("{REVOKED_FILE}.{}", std::process::id()));
    write_new(&temporary, (signed + &foreign).as_bytes(), 0o644)?;
    fs::rename(&temporary, list).map_err(|error| {
        let _ = fs::remove_file(&temporary);
        CertsError::File { path: list.to_owned(), error }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::{init, issue};

    const DAY: Duration = Duration::from_secs(86_400);

    fn serials(dir: &Path) -> Vec<SerialNumber> {
        let RevokedCertificate { issuer, .. } = certificate_of(dir, &dir.join("a.pem")).unwrap();
        let lists = read_lists(&dir.join(REVOKED_FILE), &issuer).unwrap();
        lists.own.into_iter().map(|one| one.serial_number).collect()
    }

    /// Regression test: the lists of other authorities in the file were left out, and what these had
    /// revoked was accepted again.
    #[test]
    fn lists_of_other_authorities_stay() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&dir, &other] {
            init(dir.path(), DAY).unwrap();
            issue(dir.path(), "a", &[], DAY).unwrap();
            issue(dir.path(), "b", &[], DAY).unwrap();
            revoke(dir.path(), "a").unwrap();
        }
        let text = |dir: &Path| fs::read_to_string(dir.join(REVOKED_FILE)).unwrap();
        let foreign = text(other.path());
        for both in [foreign.clone() + &text(dir.path()), text(dir.path()) + &foreign] {
            fs::write(dir.path().join(REVOKED_FILE), both).unwrap();
            revoke(dir.path(), "b").unwrap();
            assert_eq!(serials(dir.path()).len(), 2);
            assert_eq!(text(dir.path()).matches(LIST_END).count(), 2);
            assert!(text(dir.path()).contains(foreign.trim()));
        }
    }

    #[test]
    fn a_list_grows_and_a_certificate_is_in_it_once() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), DAY).unwrap();
        for name in ["a", "b", "c"] {
            issue(dir.path(), name, &[], DAY).unwrap();
        }
        revoke(dir.path(), "a").unwrap();
        revoke(dir.path(), "b").unwrap();
        let before = serials(dir.path());
        revoke(dir.path(), "a").unwrap();
        assert_eq!((before.len(), serials(dir.path())), (2, before));
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        // Two files each of the authority and three nodes, and the list.
        assert_eq!(left.len(), 9);
    }

    /// Regression test: both read the same list, and the one that wrote it first was lost, though it
    /// reported success.
    #[test]
    fn revocations_at_the_same_time_are_all_in_the_list() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), DAY).unwrap();
        let names: Vec<String> = (0..8).map(|number| format!("n{number}")).collect();
        for name in names.iter().map(String::as_str).chain(["a"]) {
            issue(dir.path(), name, &[], DAY).unwrap();
        }
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| revoke(dir.path(), name).unwrap());
            }
        });
        assert_eq!(serials(dir.path()).len(), names.len());
    }

    #[test]
    fn what_is_not_of_this_authority_is_not_revoked() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&dir, &other] {
            init(dir.path(), DAY).unwrap();
            issue(dir.path(), "a", &[], DAY).unwrap();
        }
        fs::copy(other.path().join("a.pem"), dir.path().join("a.pem")).unwrap();
        let error = revoke(dir.path(), "a").unwrap_err().to_string();
        assert!(error.contains("another authority"), "{error}");
        let error = revoke(dir.path(), "b").unwrap_err();
        assert!(matches!(&error, CertsError::File { path, .. } if path.ends_with("b.pem")));
        fs::copy(other.path().join("a.pem"), dir.path().join("a.pem")).unwrap();
        fs::copy(other.path().join("ca.pem"), dir.path().join("ca.pem")).unwrap();
        let error = revoke(dir.path(), "a").unwrap_err().to_string();
        assert!(error.contains("ca.key"), "{error}");
        assert!(!dir.path().join(REVOKED_FILE).exists());
    }

    #[test]
    fn a_damaged_list_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), DAY).unwrap();
        issue(dir.path(), "a", &[], DAY).unwrap();
        fs::write(dir.path().join(REVOKED_FILE), "half of a list").unwrap();
        revoke(dir.path(), "a").unwrap_err();
        assert_eq!(fs::read(dir.path().join(REVOKED_FILE)).unwrap(), b"half of a list");
    }
}
