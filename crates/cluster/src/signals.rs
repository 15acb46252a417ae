//! Reports SIGTERM and SIGINT as bytes in a socket.

use std::io;
use std::os::unix::net::UnixStream;

use farrow_memory::BlockedSignals;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

const SIGNALS: [i32; 2] = [SIGTERM, SIGINT];

/// Makes each of these signals write a byte to the socket from here on.
///
/// # Errors
///
/// No descriptor is left.
pub(crate) fn write_to(socket: &UnixStream) -> io::Result<()> {
    // `register` installs its handler before it stores the action. A signal between the two would
    // be ignored, and the node would never end.
    let _blocked = BlockedSignals::new(&SIGNALS)?;
    for signal in SIGNALS {
        pipe::register(signal, socket.try_clone()?)?;
    }
    Ok(())
}
