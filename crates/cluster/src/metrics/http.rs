//! The subset of HTTP/1.1 (RFC 9112) that a scraper needs: one request per connection, no body.

/// A request with longer headers is refused.
pub(crate) const HEADER_BYTES_MAX: usize = 8 << 10;

/// More headers than a browser sends.
const HEADERS_MAX: usize = 64;

/// The exposition format that `text` writes.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A parsed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpRequest {
    /// The request is incomplete.
    More,
    /// The metrics.
    Metrics,
    /// Whether the node is alive. Any response shows that.
    Liveness,
    /// Whether the node serves clients.
    Readiness,
    /// Any other request, with the status of its response.
    Wrong(u16, &'static str),
}

/// Parses the part of a request that has arrived.
pub(crate) fn read(input: &[u8]) -> HttpRequest {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(input) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if input.len() < HEADER_BYTES_MAX => {
            return HttpRequest::More;
        }
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return HttpRequest::Wrong(431, "Request Header Fields Too Large");
        }
        Err(_) => return HttpRequest::Wrong(400, "Bad Request"),
    }
    let path = request.path.unwrap_or_default();
    match (request.method.unwrap_or_default(), path.split('?').next()) {
        ("GET", Some("/metrics")) => HttpRequest::Metrics,
        ("GET", Some("/livez")) => HttpRequest::Liveness,
        ("GET", Some("/readyz")) => HttpRequest::Readiness,
        ("GET", _) => HttpRequest::Wrong(404, "Not Found"),
        _ => HttpRequest::Wrong(405, "Method Not Allowed"),
    }
}

/// The response with the metrics.
pub(crate) fn metrics(body: &str) -> Vec<u8> {
    answer(200, "OK", CONTENT_TYPE, body)
}

/// The response to a health check: 200, or 503 with the cause.
pub(crate) fn health(state: Result<(), String>) -> Vec<u8> {
    let content_type = "text/plain; charset=utf-8";
    match state {
        Ok(()) => answer(200, "OK", content_type, "ok\n"),
        Err(cause) => answer(503, "Service Unavailable", content_type, &format!("{cause}\n")),
    }
}

/// The response to an invalid request.
pub(crate) fn refusal(status: u16, reason: &str) -> Vec<u8> {
    let body = format!("{status} {reason}: GET /metrics, /livez and /readyz are served\n");
    answer(status, reason, "text/plain; charset=utf-8", &body)
}

fn answer(status: u16, reason: &str, content_type: &str, body: &str) -> Vec<u8> {
    let allow = if status == 405 { "Allow: GET\r\n" } else { "" };
    let length = body.len();
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\n{allow}\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_in_any_pieces() {
        let request = b"GET /metrics?x=1 HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";
        for cut in 0..request.len() {
            assert_eq!(read(&request[..cut]), HttpRequest::More, "{cut} bytes");
        }
        assert_eq!(read(request), HttpRequest::Metrics);
        assert_eq!(read(b"GET /livez HTTP/1.1\r\n\r\n"), HttpRequest::Liveness);
        assert_eq!(read(b"GET /readyz?verbose HTTP/1.1\r\n\r\n"), HttpRequest::Readiness);
    }

    #[test]
    fn what_is_no_question_for_numbers_gets_its_status() {
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "y".repeat(HEADER_BYTES_MAX));
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(HEADERS_MAX + 1));
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", 404),
            ("GET /metricsx HTTP/1.0\r\n\r\n", 404),
            ("POST /metrics HTTP/1.1\r\n\r\n", 405),
            ("\u{0}\u{1}\u{2}\r\n\r\n", 400),
            ("GET /metrics SPDY/3\r\n\r\n", 400),
            (&long, 431),
            (&many, 431),
        ] {
            let requested = read(request.as_bytes());
            assert!(
                matches!(requested, HttpRequest::Wrong(found, _) if found == status),
                "{requested:?}"
            );
        }
        let refusal = String::from_utf8(refusal(405, "Method Not Allowed")).unwrap();
        assert!(refusal.starts_with("HTTP/1.1 405 ") && refusal.contains("\r\nAllow: GET\r\n"));
    }
}
