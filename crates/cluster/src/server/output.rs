//! Replies to clients, with the descriptors of the memory that they map.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use farrow_memory::{Fabric, FabricError, Section, family};
use farrow_wire::{Reply, ReplyBody, WireError};

use super::connection::ClientConnection;
use crate::descriptors;

/// Writes as many bytes as the client accepts, with the descriptors of its memory.
pub(super) fn flush(connection: &mut ClientConnection, own: &Arc<dyn Fabric>) -> io::Result<()> {
    if !connection.has_output() {
        return Ok(());
    }
    let file = std::mem::take(&mut connection.file);
    if !file.is_empty() {
        let flushed = connection.flush(&file.iter().map(AsFd::as_fd).collect::<Vec<_>>());
        if connection.has_descriptors() {
            connection.file = file;
        }
        return flushed;
    }
    let fabric = connection.fabric.clone().unwrap_or_else(|| Arc::clone(own));
    // Put back below if it was not sent.
    let data_read = connection.data_read.take();
    let data = data_read.as_ref().map(AsFd::as_fd);
    let flushed = connection.flush(&descriptors(fabric.as_ref(), data));
    if connection.has_descriptors() {
        connection.data_read = data_read;
    }
    flushed
}

/// Attaches a descriptor to a welcome that shows for how long the slot's client reads.
pub(super) fn open_for_client(
    connection: &mut ClientConnection,
    own: &Arc<dyn Fabric>,
    reply: &mut Reply,
) {
    let Ok(ReplyBody::Welcome(welcome)) = &reply.body else {
        return;
    };
    let fabric = connection.fabric.as_ref().unwrap_or(own);
    match family::open_for_client(fabric.as_ref(), welcome.slot) {
        Ok(opened) => connection.data_read = Some(opened),
        Err(FabricError::System { source, .. }) if descriptors::is_exhausted(&source) => {
            let max = descriptors::limit();
            tracing::warn!(max, "a client is rejected: no file descriptor is free");
            reply.body = Err(WireError::TooMany { what: "descriptors of the node".into(), max });
        }
        Err(error) => {
            let what = format!("the region cannot be opened for slot {}: {error}", welcome.slot);
            tracing::error!(
                slot = welcome.slot, %error,
                "the region cannot be opened for a client"
            );
            reply.body = Err(WireError::Damaged(what));
        }
    }
}

fn descriptors<'a>(fabric: &'a dyn Fabric, data: Option<BorrowedFd<'a>>) -> Vec<BorrowedFd<'a>> {
    let control = fabric.read_fd(Section::Control).0;
    let data = data.unwrap_or(fabric.read_fd(Section::Data).0);
    let writable = fabric.write_fd(Section::Data).map(|(fd, _)| fd);
    [Some(control), Some(data), writable].into_iter().flatten().collect()
}
