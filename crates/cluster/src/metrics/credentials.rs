//! Metrics of a node's certificate.

use super::lines::{head, line};
use crate::peers::CredentialStatus;

/// Writes when the certificate expires, and whether its files are used.
pub(super) fn write(out: &mut String, status: &CredentialStatus) {
    let CredentialStatus { expires_s, reloads, refused } = status;
    for (name, kind, help, value) in [
        (
            "farrow_certificate_expires_seconds",
            "gauge",
            "When the certificate of the node expires, in seconds since 1970; 0: it has none.",
            *expires_s as f64,
        ),
        (
            "farrow_certificate_reloads_total",
            "counter",
            "How often changed certificate files were read and used.",
            *reloads as f64,
        ),
        (
            "farrow_certificate_refused",
            "gauge",
            "Whether the present certificate files are not used: the log says why.",
            f64::from(u8::from(refused.is_some())),
        ),
    ] {
        head(out, name, kind, help);
        line(out, name, "", value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_used_show() {
        let refused = Some("no certificate".to_owned());
        let status = CredentialStatus { expires_s: 1_800_000_000, reloads: 2, refused };
        let mut text = String::new();
        write(&mut text, &status);
        for sample in [
            "farrow_certificate_expires_seconds 1800000000",
            "farrow_certificate_reloads_total 2",
            "farrow_certificate_refused 1",
        ] {
            assert!(text.lines().any(|line| line == sample), "{sample} in {text}");
        }
    }
}
