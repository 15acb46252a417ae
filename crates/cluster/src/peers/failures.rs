//! Failures to reach or admit other nodes: as plain messages, logged at a limited rate.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicBool, Ordering};
use rustls::CertificateError;
use tonic::Code;

use super::error::{PeerError, shorten};

/// Pause before the same cause of the same peer is logged again. It doubles each time, since a node
/// that left is called as long as its cluster runs.
const AGAIN: Duration = Duration::from_secs(60);

/// Limit on the doublings of that pause: 17 hours.
const DOUBLINGS_MAX: u32 = 10;

/// Limit on causes logged in one such period. Strangers cannot exceed it with invented names.
const CAUSES_MAX: usize = 256;

/// A node that does not listen may still be starting, since nodes of a cluster are started one by
/// one.
const STARTING_MAX: Duration = Duration::from_secs(2);

/// When a cause was last logged, and how often before.
#[derive(Debug)]
struct LastReport {
    at: Instant,
    times: u32,
}

/// The logged causes of each peer.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    reports: Mutex<BTreeMap<(String, String), LastReport>>,
}

impl FailureLog {
    /// Whether to log a cause now.
    fn is_due(&self, peer: &str, cause: &str, now: Instant) -> bool {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        // Times and ports differ between attempts.
        let cause = cause.chars().filter(|c| !c.is_ascii_digit()).collect();
        let key = (peer.to_owned(), cause);
        if let Some(last) = reports.get_mut(&key) {
            let pause = AGAIN.saturating_mul(1 << last.times.min(DOUBLINGS_MAX));
            let is_due = now.saturating_duration_since(last.at) >= pause;
            if is_due {
                *last = LastReport { at: now, times: last.times.saturating_add(1) };
            }
            return is_due;
        }
        if reports.len() >= CAUSES_MAX {
            reports.retain(|_, last| now.saturating_duration_since(last.at) < AGAIN);
        }
        let is_due = reports.len() < CAUSES_MAX;
        if is_due {
            reports.insert(key, LastReport { at: now, times: 0 });
        }
        is_due
    }

    /// Logs that a calling peer was not admitted.
    pub(super) fn refused(&self, peer: &str, cause: &str) {
        if self.is_due(peer, cause, Instant::now()) {
            tracing::warn!(peer, cause, "a connection of a node is rejected");
        }
    }

    /// Logs that a peer could not be reached.
    pub(super) fn unreached(&self, peer: &str, cause: &str) {
        if self.is_due(peer, cause, Instant::now()) {
            tracing::warn!(peer, cause, "a node cannot be reached");
        }
    }
}

/// Whether messages to one address arrive.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    failing: Mutex<Option<(Instant, String)>>,
    /// A message has arrived, so the choice of TLS or plain text is right.
    has_arrived: AtomicBool,
}

impl Delivery {
    /// Whether any message has arrived there.
    pub(super) fn has_arrived(&self) -> bool {
        self.has_arrived.load(Ordering::Relaxed)
    }

    /// Records the result of a message. Returns `Some` if the state of the address has changed:
    /// `None` inside if messages arrive, else the cause.
    pub(super) fn note(
        &self,
        peer: &str,
        result: Result<(), (&PeerError, String)>,
        failures: &FailureLog,
    ) -> Option<Option<String>> {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let Err((error, cause)) = result else {
            self.has_arrived.store(true, Ordering::Relaxed);
            return failing.take().map(|_| None);
        };
        let now = Instant::now();
        let since = failing.as_ref().map_or(now, |(since, _)| *since);
        let is_certain = is_about_tls(&cause) || matches!(error, PeerError::WrongNode { .. });
        // The end of a connection is less informative than its cause, which other attempts reveal.
        let is_vague = !is_certain && !cause.contains("os error");
        if is_vague && failing.as_ref().is_some_and(|(_, known)| is_about_tls(known)) {
            return None;
        }
        let is_refused = cause.starts_with(REFUSED);
        if is_certain || is_refused || now.saturating_duration_since(since) >= STARTING_MAX {
            failures.unreached(peer, &cause);
        }
        let is_news = failing.as_ref().is_none_or(|(_, known)| *known != cause);
        *failing = Some((since, cause.clone()));
        is_news.then_some(Some(cause))
    }
}

/// First words of a cause if the other node answered.
const REFUSED: &str = "it refuses this node";

/// Whether a cause concerns certificates or plain text.
fn is_about_tls(cause: &str) -> bool {
    cause.contains("certificate") || cause.contains("TLS")
}

/// Why a connection ended, once that is known.
#[derive(Debug, Default)]
pub(super) struct LinkEnd {
    cause: Mutex<Option<String>>,
    is_orderly: AtomicBool,
}

impl LinkEnd {
    pub(super) fn set(&self, cause: String) {
        let mut ended = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        ended.get_or_insert(cause);
    }

    /// The peer takes no more calls on it, as when it has other certificate files.
    pub(super) fn set_orderly(&self) {
        self.is_orderly.store(true, Ordering::Release);
    }

    pub(super) fn is_orderly(&self) -> bool {
        self.is_orderly.load(Ordering::Acquire)
    }

    pub(super) fn get(&self) -> Option<String> {
        self.cause.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Why a call to a peer failed, as a message for the operator.
pub(super) fn cause_of_call(error: &PeerError, ended: Option<String>, is_plain: bool) -> String {
    match error {
        // The peer answered, so the connection works.
        PeerError::Refused {
            code:
                Code::FailedPrecondition
                | Code::PermissionDenied
                | Code::InvalidArgument
                | Code::ResourceExhausted
                | Code::Unimplemented,
            reason,
        } => format!("{REFUSED}: {reason}"),
        PeerError::Refused { .. } if is_plain => {
            let why = ended.unwrap_or_else(|| error.to_string());
            format!("it does not answer in plain text, so it may speak TLS (--certs): {why}")
        }
        _ => ended.unwrap_or_else(|| error.to_string()),
    }
}

/// The meaning of a connection error.
pub(super) fn cause_of(error: &(dyn Error + 'static)) -> String {
    let mut words = vec![error.to_string()];
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = of_tls(error) {
            return shorten(&meaning(tls));
        }
        let text = error.to_string();
        // HTTP/2 preserves only the text of the error.
        if let Some((_, alert)) = text.split_once(ALERT) {
            return shorten(&format!("{}: {ALERT}{alert}", of_alert(alert)));
        }
        if words.last().is_some_and(|last| !last.contains(&text)) {
            words.push(text);
        }
        next = error.source();
    }
    shorten(&words.join(": "))
}

fn of_tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
    inner.or_else(|| error.downcast_ref())
}

fn meaning(error: &rustls::Error) -> String {
    use CertificateError as Bad;
    let meaning = match error {
        rustls::Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "its certificate is not of this node's authority (ca.pem in --certs)"
        }
        rustls::Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "its certificate has expired, if the clocks are right"
        }
        rustls::Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            "its certificate is not valid yet: compare the clocks"
        }
        rustls::Error::InvalidCertificate(
            Bad::NotValidForName | Bad::NotValidForNameContext { .. },
        ) => "its certificate is not for the host or node that was called",
        rustls::Error::InvalidCertificate(Bad::Revoked) => {
            "its certificate is revoked (ca.crl in --certs)"
        }
        rustls::Error::InvalidCertificate(_) => "its certificate cannot be used",
        rustls::Error::NoCertificatesPresented => "it shows no certificate (--certs)",
        rustls::Error::AlertReceived(alert) => of_alert(&format!("{alert:?}")),
        rustls::Error::InvalidMessage(_) => "it does not speak TLS: it may use --plaintext",
        _ => "TLS failed",
    };
    format!("{meaning}: {error}")
}

/// The text of rustls before the name of an alert from the other side.
const ALERT: &str = "received fatal alert: ";

fn of_alert(alert: &str) -> &'static str {
    match alert.trim() {
        "CertificateExpired" => {
            "it says that this node's certificate has expired, or is not valid yet by its clock"
        }
        "CertificateRevoked" => "it says that this node's certificate is revoked",
        "UnknownCA"
        | "DecryptError"
        | "BadCertificate"
        | "CertificateUnknown"
        | "UnsupportedCertificate"
        | "CertificateRequired" => "it does not accept this node's certificate (--certs)",
        _ => "TLS failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_reported_once_a_minute_at_most_whatever_numbers_are_in_it() {
        let (failures, now) = (FailureLog::default(), Instant::now());
        assert!(failures.is_due("a", "expired at 17", now));
        assert!(!failures.is_due("a", "expired at 18", now + AGAIN / 2));
        assert!(failures.is_due("b", "expired at 18", now + AGAIN / 2));
        assert!(failures.is_due("a", "refused", now + AGAIN / 2));
        assert!(failures.is_due("a", "expired at 19", now + AGAIN));
        assert!(!failures.is_due("a", "expired at 19", now + 2 * AGAIN));
        assert!(failures.is_due("a", "expired at 19", now + 3 * AGAIN));
    }

    #[test]
    fn what_a_node_says_is_reported_before_what_became_of_the_connection() {
        let refused = |code, reason: &str| PeerError::Refused { code, reason: reason.to_owned() };
        let version = refused(Code::FailedPrecondition, "version 2 of the protocol");
        let cause = cause_of_call(&version, Some("closed".to_owned()), true);
        assert_eq!(cause, "it refuses this node: version 2 of the protocol");
        let closed = refused(Code::Unknown, "transport error");
        assert!(cause_of_call(&closed, None, true).contains("--certs"));
        assert_eq!(cause_of_call(&closed, Some("an alert".to_owned()), false), "an alert");
    }

    #[test]
    fn strangers_cannot_fill_the_log() {
        let (failures, now) = (FailureLog::default(), Instant::now());
        let name = |n: usize| char::from_u32(0x4e00 + n as u32).unwrap().to_string();
        let reports = (0..2 * CAUSES_MAX).filter(|n| failures.is_due(&name(*n), "x", now)).count();
        assert_eq!(reports, CAUSES_MAX);
        assert!(failures.is_due("x", "x", now + AGAIN));
    }
}
