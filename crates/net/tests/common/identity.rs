//! Certificates of one authority, as in a cluster.

use std::sync::Arc;

use farrow_net::records::{Credentials, TlsIdentity};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

pub struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// The certificate and roots of a node of that name.
    pub fn credentials(&self, name: &str) -> Credentials {
        let params = CertificateParams::new(vec![server_name_of(name)]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let chain = vec![certificate];
        let identity = TlsIdentity::new(roots, chain, key, member_of, server_name_of).unwrap();
        Credentials::Tls(Arc::new(identity))
    }
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
