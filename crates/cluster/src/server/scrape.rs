//! Metrics scrapers in the event loop. They are not trusted: each has a deadline, their number is
//! limited, the oldest is dropped first, and the metrics are computed at most ten times a second.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::tokens::{SCRAPE_LISTENER, SCRAPERS};
use crate::metrics::http::{self, HttpRequest};

/// Limit on connections. One scraper needs one.
const SCRAPERS_MAX: usize = 16;

/// Time limit of a scrape.
const SCRAPE_MS_MAX: u64 = 5_000;

/// Maximum age of the metrics. Computing them visits every hold, which takes time.
const FRESH_MS: u64 = 100;

/// Pause after a failed accept. Most likely descriptors have run out, and the listener stays
/// readable.
const ACCEPT_AGAIN_MS: u64 = 100;

/// Connections accepted in one turn, so that a flood of them leaves room for clients.
const ACCEPTS_PER_TURN: usize = 8;

/// Where scrapers connect.
#[derive(Debug)]
pub(crate) enum ScrapeListener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl ScrapeListener {
    fn accept(&self) -> io::Result<ScrapeStream> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(ScrapeStream::Unix(stream))
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(ScrapeStream::Tcp(stream))
            }
        }
    }
}

impl AsFd for ScrapeListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

#[derive(Debug)]
enum ScrapeStream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl ScrapeStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(bytes),
            Self::Tcp(stream) => stream.read(bytes),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn finish(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl AsFd for ScrapeStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

#[derive(Debug)]
struct Scraper {
    stream: ScrapeStream,
    deadline_ms: u64,
    input: Vec<u8>,
    /// Empty until the request has arrived.
    output: Vec<u8>,
    sent: usize,
    /// It waits for the metrics.
    is_waiting: bool,
}

/// The next step of a scraper.
#[derive(Debug, PartialEq, Eq)]
enum ScrapeStep {
    /// Waits to send or receive more bytes.
    Wait,
    /// Needs the metrics as its answer.
    Metrics,
    /// Needs the readiness of the node as its answer.
    Readiness,
    /// The connection can be dropped.
    Over,
}

/// The scrapers.
#[derive(Debug)]
pub(super) struct Scrapers {
    listener: ScrapeListener,
    all: BTreeMap<u64, Scraper>,
    next: u64,
    /// The text of the metrics, and when it was computed.
    metrics: Option<(u64, String)>,
    /// The listener is ignored until this time.
    accept_at_ms: Option<u64>,
}

impl Scrapers {
    pub(super) fn new(listener: ScrapeListener) -> Self {
        Self { listener, all: BTreeMap::new(), next: 0, metrics: None, accept_at_ms: None }
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// When [`Self::tick`] is due.
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.first_deadline_ms().into_iter().chain(self.accept_at_ms).min()
    }

    /// The earliest deadline. Scrapers are in the order of their arrival.
    fn first_deadline_ms(&self) -> Option<u64> {
        self.all.first_key_value().map(|(_, scraper)| scraper.deadline_ms)
    }

    fn listen(&self, poll: BorrowedFd<'_>, flags: EventFlags) {
        let token = EventData::new_u64(SCRAPE_LISTENER);
        if let Err(error) = epoll::modify(poll, &self.listener, token, flags) {
            tracing::error!(%error, "the listener of metrics cannot be changed");
        }
    }

    pub(super) fn accept(&mut self, poll: BorrowedFd<'_>, now_ms: u64) {
        for _ in 0..ACCEPTS_PER_TURN {
            let stream = match self.listener.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_of_scraper(&error) => continue,
                Err(error) => {
                    tracing::debug!(%error, "a connection for metrics could not be accepted");
                    self.all.pop_first();
                    self.listen(poll, EventFlags::empty());
                    self.accept_at_ms = Some(now_ms.saturating_add(ACCEPT_AGAIN_MS));
                    return;
                }
            };
            while self.all.len() >= SCRAPERS_MAX {
                self.all.pop_first();
            }
            let number = self.next;
            self.next += 1;
            let token = EventData::new_u64(SCRAPERS | number);
            if epoll::add(poll, &stream, token, EventFlags::IN).is_ok() {
                let deadline_ms = now_ms.saturating_add(SCRAPE_MS_MAX);
                let (input, output) = (Vec::new(), Vec::new());
                let (sent, is_waiting) = (0, false);
                let scraper = Scraper { stream, deadline_ms, input, output, sent, is_waiting };
                self.all.insert(number, scraper);
            }
        }
    }

    /// Handles a scraper that is readable or writable. `readiness` contains the reason if the node
    /// does not serve clients. Returns whether it waits for metrics that are not being computed yet.
    pub(super) fn ready(
        &mut self,
        poll: BorrowedFd<'_>,
        token: u64,
        now_ms: u64,
        readiness: Result<(), String>,
    ) -> bool {
        let number = token & !SCRAPERS;
        let is_awaited = self.all.values().any(|scraper| scraper.is_waiting);
        let Some(scraper) = self.all.get_mut(&number) else {
            return false;
        };
        let mut step = scraper.read();
        if step == ScrapeStep::Readiness {
            scraper.output = http::health(readiness);
            step = ScrapeStep::Wait;
        }
        if step == ScrapeStep::Metrics {
            match self.metrics.as_ref().filter(|(at_ms, _)| now_ms < at_ms + FRESH_MS) {
                Some((_, text)) => scraper.output = http::metrics(text),
                None => scraper.is_waiting = true,
            }
            step = ScrapeStep::Wait;
        }
        let is_waiting = scraper.is_waiting;
        self.go_on(poll, number, step);
        is_waiting && !is_awaited
    }

    /// Sends the metrics to the scrapers that wait for them.
    pub(super) fn counted(&mut self, poll: BorrowedFd<'_>, now_ms: u64, text: String) {
        let waiting = self.all.iter_mut().filter(|(_, scraper)| scraper.is_waiting);
        let waiting = waiting.map(|(number, scraper)| {
            scraper.is_waiting = false;
            scraper.output = http::metrics(&text);
            *number
        });
        for number in waiting.collect::<Vec<_>>() {
            self.go_on(poll, number, ScrapeStep::Wait);
        }
        self.metrics = Some((now_ms, text));
    }

    /// Sends what there is for a scraper, and waits for more or drops it.
    fn go_on(&mut self, poll: BorrowedFd<'_>, number: u64, mut step: ScrapeStep) {
        let Some(scraper) = self.all.get_mut(&number) else {
            return;
        };
        if step == ScrapeStep::Wait {
            step = scraper.write();
        }
        let is_writing = scraper.sent < scraper.output.len();
        let flags = if is_writing { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let token = EventData::new_u64(SCRAPERS | number);
        if step == ScrapeStep::Over || epoll::modify(poll, &scraper.stream, token, flags).is_err() {
            self.all.remove(&number);
        }
    }

    /// Drops scrapers whose deadline has passed, and accepts others again after a pause.
    pub(super) fn tick(&mut self, poll: BorrowedFd<'_>, now_ms: u64) {
        while self.first_deadline_ms().is_some_and(|at_ms| at_ms <= now_ms) {
            self.all.pop_first();
        }
        if self.accept_at_ms.take_if(|at_ms| *at_ms <= now_ms).is_some() {
            self.listen(poll, EventFlags::IN);
        }
    }
}

impl Scraper {
    /// Reads the request. Once there is an answer, only detects that the other end closes.
    fn read(&mut self) -> ScrapeStep {
        let mut bytes = [0; 2048];
        match self.stream.read(&mut bytes) {
            Ok(0) => return ScrapeStep::Over,
            Ok(count) if self.output.is_empty() && !self.is_waiting => {
                self.input.extend_from_slice(bytes.get(..count).unwrap_or(&[]));
            }
            // A scraper sends nothing after its request.
            Ok(_) => return ScrapeStep::Over,
            Err(error) if is_pause(&error) => return ScrapeStep::Wait,
            Err(_) => return ScrapeStep::Over,
        }
        match http::read(&self.input) {
            HttpRequest::More => ScrapeStep::Wait,
            HttpRequest::Metrics => ScrapeStep::Metrics,
            HttpRequest::Readiness => ScrapeStep::Readiness,
            HttpRequest::Liveness => {
                self.output = http::health(Ok(()));
                ScrapeStep::Wait
            }
            HttpRequest::Wrong(status, reason) => {
                self.output = http::refusal(status, reason);
                ScrapeStep::Wait
            }
        }
    }

    fn write(&mut self) -> ScrapeStep {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => return ScrapeStep::Over,
                Ok(count) => self.sent += count,
                Err(error) if is_pause(&error) => return ScrapeStep::Wait,
                Err(_) => return ScrapeStep::Over,
            }
            if self.sent == self.output.len() && self.stream.finish().is_err() {
                return ScrapeStep::Over;
            }
        }
        ScrapeStep::Wait
    }
}

/// Whether an accept failed because this one scraper has closed, or a signal arrived.
fn is_of_scraper(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
