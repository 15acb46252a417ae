//! The log of a daemon on standard error, and its filter.
//!
//! A thread writes it: a terminal that is held, a pipe that is not read or a full disk must neither
//! stop nor end the daemon or its supervisor. Lines that are lost are counted in the log.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::{EnvFilter, reload};

use crate::line_queue::{LineQueue, LineRecord, LineSink, utc, wall_clock_ns};
use crate::protocol::LogControl;

/// Limit on the bytes of lines that wait to be written, some 20,000 lines.
const QUEUED_BYTES_MAX: u64 = 4 << 20;

/// The format of log lines on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The chosen format. Unset before the arguments are parsed.
static LOG_FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// The filter at the start, and how it is changed. Unset if other code set up the log.
static CONTROL: OnceLock<(String, LogControl)> = OnceLock::new();

/// The lines to write. Unset before the arguments are parsed, and where there is no thread.
static LINES: OnceLock<LineQueue<LogLine>> = OnceLock::new();

/// At the end of the program, waits until the log is written, for a limited time.
#[must_use]
pub(crate) struct LogEnd;

impl Drop for LogEnd {
    fn drop(&mut self) {
        if let Some(lines) = LINES.get() {
            let _ = lines.flush();
        }
    }
}

/// Lines of the log, with their line feed.
struct LogLine(Vec<u8>);

impl LineRecord for LogLine {
    fn lines(&self) -> u64 {
        1
    }

    fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.0.capacity()) as u64
    }

    fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn missing(lines: u64) -> Self {
        let (time, target) = (utc(wall_clock_ns()), module_path!());
        let words = format!("{lines} lines are missing before this one");
        let line = match LOG_FORMAT.get() {
            Some(LogFormat::Json) => {
                let fields = serde_json::json!({ "message": words, "count": lines });
                let level = "WARN";
                serde_json::json!({
                    "timestamp": time, "level": level, "fields": fields, "target": target,
                })
                .to_string()
            }
            _ => format!("{time}  WARN {target}: {words}"),
        };
        Self((line + "\n").into_bytes())
    }
}

/// Standard error. It is written without its lock in this program: a write may never return.
#[derive(Default)]
struct StandardError {
    /// A failed write may have left half of a line.
    has_half_line: bool,
}

impl StandardError {
    fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        let stderr = io::stderr();
        while !bytes.is_empty() {
            match rustix::io::write(&stderr, bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or(&[]),
                Err(Errno::INTR) => {}
                // A process that shares the terminal or pipe may have made it non-blocking.
                Err(Errno::AGAIN) => {
                    let _ = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl LineSink for StandardError {
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        let ended = if self.has_half_line { self.write(b"\n") } else { Ok(()) };
        let written = ended.and_then(|()| self.write(lines));
        self.has_half_line = written.is_err();
        written
    }
}

/// Queues what is written, each write being one line. It never waits and never fails.
struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match LINES.get() {
            Some(lines) => lines.push(LogLine(line.to_vec())),
            None => drop(StandardError::default().write(line)),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs to standard error from here on, until the result is dropped. Only terminals get colours.
pub(crate) fn start(format: LogFormat) -> LogEnd {
    let _ = LOG_FORMAT.set(format);
    if LINES.get().is_none() {
        let queue = LineQueue::start("farrow-log", StandardError::default(), QUEUED_BYTES_MAX);
        // Without a thread, the event loop writes.
        queue.into_iter().for_each(|queue| drop(LINES.set(queue)));
    }
    // In JSON, messages of `say` are part of the log.
    let default =
        if format == LogFormat::Json { "warn,farrow_cluster::logging=info" } else { "warn" };
    let given = std::env::var("FARROW_LOG").ok();
    let parsed = given.and_then(|text| Some((EnvFilter::try_new(&text).ok()?, text)));
    let (filter, text) = parsed.unwrap_or_else(|| (EnvFilter::new(default), default.to_owned()));
    let is_coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(is_coloured)
        // An error would be written to standard error, which ends the program if that fails too.
        .log_internal_errors(false)
        .with_writer(|| LogWriter);
    // Other code in this process may have set up a log already.
    let control = match format {
        LogFormat::Text => {
            let log = log.with_filter_reloading();
            let control = control_of(log.reload_handle());
            log.try_init().map(|()| control)
        }
        LogFormat::Json => {
            let log = log.json().with_filter_reloading();
            let control = control_of(log.reload_handle());
            log.try_init().map(|()| control)
        }
    };
    if let Ok(control) = control {
        let _ = CONTROL.set((text, control));
    }
    LogEnd
}

fn control_of<S: 'static>(handle: reload::Handle<EnvFilter, S>) -> LogControl {
    LogControl(Arc::new(move |text: &str| {
        let filter = EnvFilter::try_new(text).map_err(|error| error.to_string())?;
        handle.reload(filter).map_err(|error| error.to_string())
    }))
}

/// The filter at the start, and how it is changed. `None`: the log is not the daemon's own.
pub(crate) fn control() -> Option<(String, LogControl)> {
    CONTROL.get().cloned()
}

/// Prints a message for the user who started the daemon. Everything else is logged by `tracing`.
pub(crate) fn say(words: &str) {
    if LOG_FORMAT.get() == Some(&LogFormat::Json) {
        tracing::info!("{words}");
    } else {
        let _ = LogWriter.write_all(format!("{words}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_lines_are_one_line_with_their_number() {
        let mut out = Vec::new();
        LogLine::missing(3).append(&mut out);
        let line = String::from_utf8(out).unwrap();
        assert!(line.ends_with(": 3 lines are missing before this one\n"), "{line}");
        assert_eq!(line.matches('\n').count(), 1);
    }
}
