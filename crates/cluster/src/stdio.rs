//! Standard input, output and error of the processes of a node.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};

use rustix::io::{FdFlags, fcntl_setfd};

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
