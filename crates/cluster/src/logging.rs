//! The log of a daemon on standard error, and its filter.

use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};

use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::{EnvFilter, reload};

use crate::protocol::LogControl;

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

/// Logs to standard error from here on. Only terminals get colours.
pub(crate) fn start(format: LogFormat) {
    let _ = LOG_FORMAT.set(format);
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
        .with_writer(std::io::stderr);
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
    use std::io::Write;
    if LOG_FORMAT.get() == Some(&LogFormat::Json) {
        tracing::info!("{words}");
    } else {
        let _ = writeln!(std::io::stderr(), "{words}");
    }
}
