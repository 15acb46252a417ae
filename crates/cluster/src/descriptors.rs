//! Descriptors of the processes of a node: standard input, output and error, and how many there may
//! be.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Opens `/dev/null` on those of the descriptors 0, 1 and 2 that are closed. Otherwise a socket of
/// the node would become standard error, and its first message would end that connection.
pub(crate) fn open_closed() -> io::Result<()> {
    loop {
        // The lowest descriptor that is free.
        let file = File::options().read(true).write(true).open("/dev/null")?;
        if file.as_raw_fd() > 2 {
            return Ok(());
        }
        // For the daemon, which this process may start.
        fcntl_setfd(&file, FdFlags::empty())?;
        let _ = file.into_raw_fd();
    }
}

/// Raises the soft limit on descriptors to the hard one. The usual soft limit of 1,024 is for
/// programs that call `select`; a node needs up to three for each client.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::debug!(
            %error, ?current, ?maximum,
            "the limit on file descriptors cannot be raised"
        );
    }
}

/// The most descriptors that this process may have.
pub(crate) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether an error says that there is no free descriptor.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}
