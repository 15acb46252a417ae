//! Certificates of one authority, as in a cluster.

use std::sync::Arc;

use farrow_net::records::{Credentials, TlsIdentity, TlsMaterial};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer,
};

pub struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// The certificate and roots of a node of that name.
    pub fn credentials(&self, name: &str) -> Credentials {
        Credentials::Tls(Arc::new(identity(&self.material(name, 1))))
    }

    /// The same, with a serial number and without revocations.
    pub fn material(&self, name: &str, serial: u64) -> TlsMaterial {
        let mut params = CertificateParams::new(vec![server_name_of(name)]).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        TlsMaterial::new(roots, vec![certificate], key).unwrap()
    }

    /// A list that revokes the certificate with this serial number.
    pub fn revoke(&self, serial: u64) -> CertificateRevocationListDer<'static> {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2026, 1, 2),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().der().clone()
    }
}

pub fn identity(material: &TlsMaterial) -> TlsIdentity {
    TlsIdentity::new(material, member_of, server_name_of).unwrap()
}

fn server_name_of(name: &str) -> String {
    format!("{name}.net.test")
}

/// The daemon parses the certificate; the tests only search for its one DNS name.
fn member_of(certificate: &CertificateDer<'_>) -> Result<String, String> {
    let text = String::from_utf8_lossy(certificate);
    let before = text.split(".net.test").next().filter(|before| before.len() < text.len());
    let name: String = before
        .ok_or("the certificate names no node")?
        .chars()
        .rev()
        .take_while(char::is_ascii_alphanumeric)
        .collect();
    Ok(name.chars().rev().collect())
}
