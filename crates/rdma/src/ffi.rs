//! The functions of `verbs.c`.

use std::ffi::{c_char, c_int, c_void};

/// `struct farrow_rdma`.
#[repr(C)]
pub(crate) struct RawEndpoint {
    _opaque: [u8; 0],
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct RawRegistration {
    _opaque: [u8; 0],
}

/// `struct farrow_rdma_address`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawAddress {
    pub(crate) gid: [u8; 16],
    pub(crate) pair: u32,
    pub(crate) first_packet: u32,
    pub(crate) lid: u32,
    pub(crate) mtu: u32,
    pub(crate) reads_max: u32,
}

unsafe extern "C" {
    pub(crate) fn farrow_rdma_open(
        name: *const c_char,
        first_packet: u32,
        opened: *mut *mut RawEndpoint,
    ) -> c_int;
    pub(crate) fn farrow_rdma_close(own: *mut RawEndpoint);
    pub(crate) fn farrow_rdma_stop(own: *mut RawEndpoint);
    pub(crate) fn farrow_rdma_address(own: *const RawEndpoint, address: *mut RawAddress);
    pub(crate) fn farrow_rdma_connect(own: *mut RawEndpoint, peer: *const RawAddress) -> c_int;
    pub(crate) fn farrow_rdma_reads_max(own: *const RawEndpoint) -> c_int;
    pub(crate) fn farrow_rdma_register(
        own: *mut RawEndpoint,
        start: *mut c_void,
        length: usize,
        offset: u64,
        is_for_peer: c_int,
        registered: *mut *mut RawRegistration,
        key: *mut u32,
    ) -> c_int;
    pub(crate) fn farrow_rdma_unregister(registered: *mut RawRegistration) -> c_int;
    pub(crate) fn farrow_rdma_read(
        own: *mut RawEndpoint,
        to: u64,
        local: u32,
        from: u64,
        remote: u32,
        length: u32,
    ) -> c_int;
    pub(crate) fn farrow_rdma_ended(own: *mut RawEndpoint, status: *mut c_int) -> c_int;
    pub(crate) fn farrow_rdma_arm(own: *mut RawEndpoint) -> c_int;
    pub(crate) fn farrow_rdma_wait(own: *mut RawEndpoint, milliseconds: c_int) -> c_int;
    pub(crate) fn farrow_rdma_status(status: c_int) -> *const c_char;
}
