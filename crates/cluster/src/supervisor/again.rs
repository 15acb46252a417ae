//! Starts the running program again, as the daemon that it supervises.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::channel::SupervisorChannel;

/// Argument of a daemon that has a supervisor at its standard input.
pub(super) const SUPERVISED: &str = "--supervised";

/// The file that this process runs, even if it has been replaced.
const PROGRAM: &str = "/proc/self/exe";

/// This program's own command line, with the options that it has read from files.
#[derive(Debug)]
pub(super) struct Again {
    words: Vec<OsString>,
}

impl Again {
    /// Returns `None` if the command line does not end with these arguments of the node: then
    /// another program calls the node as a function. `expanded` takes their place: a file that is
    /// edited while the node serves must not end it.
    pub(super) fn find(arguments: &[OsString], expanded: &[OsString]) -> Option<Self> {
        let line = fs::read("/proc/self/cmdline").ok()?;
        let line = line.strip_suffix(b"\0")?;
        let words = line.split(|byte| *byte == 0);
        let mut words: Vec<OsString> =
            words.map(|word| OsString::from_vec(word.to_vec())).collect();
        if words.len() <= arguments.len() || !words.ends_with(arguments) {
            return None;
        }
        words.truncate(words.len() - arguments.len());
        words.extend_from_slice(expanded);
        Some(Self { words })
    }

    /// Starts the daemon by executing this program again, not by forking this process.
    pub(super) fn start(&self) -> io::Result<(Child, SupervisorChannel)> {
        let (ours, theirs) = SupervisorChannel::pair()?;
        let mut command = Command::new(PROGRAM);
        if let Some((name, rest)) = self.words.split_first() {
            command.arg0(name).args(rest);
        }
        let child = command.arg(SUPERVISED).stdin(Stdio::from(theirs)).spawn()?;
        Ok((child, ours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_command_line_that_ends_with_the_arguments_is_run_again() {
        assert!(Again::find(&["--no such".into()], &[]).is_none());
        let own: Vec<OsString> = std::env::args_os().skip(1).collect();
        let again = Again::find(&own, &["--fresh".into()]).unwrap();
        let all: Vec<OsString> = std::env::args_os().collect();
        assert_eq!(again.words, [all[0].clone(), "--fresh".into()]);
        assert!(Again::find(&all, &[]).is_none(), "a program has a name");
    }
}
