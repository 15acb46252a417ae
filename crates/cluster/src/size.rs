//! Human-readable sizes.

use farrow_memory::Length;

/// Parses `4096`, `64KiB`, `1.5G` or `2GB`: a number and a unit. K, M, G and T are powers of 1024,
/// with or without `iB`. With `B` alone they are powers of 1000.
///
/// # Errors
///
/// A message that quotes the text.
pub fn parse(text: &str) -> Result<Length, String> {
    let trimmed = text.trim();
    let split = trimmed
        .find(|message: char| !message.is_ascii_digit() && message != '.' && message != '_')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number = number.replace('_', "");
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => {
            return Err(format!("{text:?} is no size: use a number and K, M, G or T"));
        }
    };
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(scale),
        Err(_) => match number.parse::<f64>() {
            Ok(part) if part.is_finite() && part * (scale as f64) < 9.0e18 => {
                Some((part * scale as f64) as u64)
            }
            _ => return Err(format!("{text:?} is no size: {number:?} is no number")),
        },
    };
    bytes.map(Length).ok_or_else(|| format!("{text:?} is more than 2^64 bytes"))
}

/// Formats a size as in `1.5 GiB`.
pub fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 64 << 10),
            ("64k", 64 << 10),
            ("1.5G", 3 << 29),
            ("2 GB", 2_000_000_000),
            ("1_000", 1000),
            ("8TiB", 8 << 40),
        ] {
            assert_eq!(parse(text), Ok(Length(bytes)), "{text}");
        }
        for text in ["", "G", "1X", "-1", "1e3", "99999999999T", "..", "1.2.3"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(human(1536), "1.5 KiB");
    }
}
