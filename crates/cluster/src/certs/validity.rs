//! The end of the validity of a certificate, which `webpki` checks but does not tell.

use rustls::pki_types::CertificateDer;
use time::{Date, Month, OffsetDateTime, Time};

// Tags of DER (X.690) in the start of a certificate (RFC 5280, section 4.1).
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// When a certificate expires. `None`: it cannot be parsed.
pub(crate) fn expiry(certificate: &CertificateDer<'_>) -> Option<OffsetDateTime> {
    let (_, whole, _) = element(certificate)?;
    let (_, signed, _) = element(whole)?;
    let (tag, _, after_first) = element(signed)?;
    // The version is absent in version 1.
    let rest = if tag == VERSION { after_first } else { signed };
    let rest = skip(rest, INTEGER)?;
    let rest = skip(rest, SEQUENCE)?;
    let rest = skip(rest, SEQUENCE)?;
    let (_, validity, _) = element(rest).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, _, rest) = element(validity)?;
    let (tag, text, _) = element(rest)?;
    time_of(tag, text)
}

fn skip(bytes: &[u8], expected: u8) -> Option<&[u8]> {
    let (tag, _, rest) = element(bytes)?;
    (tag == expected).then_some(rest)
}

/// The tag and content of the first element, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Certificates are shorter than 2^32 bytes.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |sum, digit| (sum << 8) | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `YYMMDDHHMMSSZ`, or `YYYYMMDDHHMMSSZ` if generalized.
fn time_of(tag: u8, text: &[u8]) -> Option<OffsetDateTime> {
    let text = std::str::from_utf8(text).ok()?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: i32 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let digits = rest.strip_suffix('Z').filter(|digits| digits.len() == 10)?;
    let pair = |at: usize| digits.get(at..at + 2)?.parse::<u8>().ok();
    let date = Date::from_calendar_date(year, Month::try_from(pair(0)?).ok()?, pair(2)?).ok()?;
    let time = Time::from_hms(pair(4)?, pair(6)?, pair(8)?).ok()?;
    Some(date.with_time(time).assume_utc())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn the_expiry_is_that_with_which_a_certificate_was_made() {
        let dir = tempfile::tempdir().unwrap();
        let day = Duration::from_secs(86_400);
        crate::certs::init(dir.path(), 20 * 365 * day).unwrap();
        let now = OffsetDateTime::now_utc();
        // On both sides of 2050, where the form of a time changes.
        for years in [1, 40] {
            let end = now + years * 365 * time::Duration::DAY;
            let name = format!("n{years}").parse().unwrap();
            let (made, _) = crate::certs::sign(dir.path(), &name, &[], now, end).unwrap();
            assert_eq!(expiry(made.der()).unwrap().unix_timestamp(), end.unix_timestamp());
        }
        let root = CertificateDer::from_pem_file(dir.path().join("ca.pem")).unwrap();
        assert!(expiry(&root).unwrap() > now);
    }

    #[test]
    fn damaged_bytes_have_no_expiry_and_do_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        crate::certs::init(dir.path(), Duration::from_secs(86_400)).unwrap();
        let root = CertificateDer::from_pem_file(dir.path().join("ca.pem")).unwrap();
        for length in 0..root.len() {
            assert_eq!(expiry(&CertificateDer::from(root[..length].to_vec())), None);
        }
        for at in 0..200.min(root.len()) {
            for value in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut bytes = root.to_vec();
                bytes[at] = value;
                let _ = expiry(&CertificateDer::from(bytes));
            }
        }
        for (tag, text) in [
            (UTC_TIME, "260102030405"),
            (UTC_TIME, "261302030405Z"),
            (UTC_TIME, "2601\u{e9}0304Z"),
            (GENERALIZED_TIME, "20260102030460Z"),
            (SEQUENCE, "260102030405Z"),
        ] {
            assert_eq!(time_of(tag, text.as_bytes()), None, "{text}");
        }
    }
}
