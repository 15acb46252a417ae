//! Dissociated IPC.
