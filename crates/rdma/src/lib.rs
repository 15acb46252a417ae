//! Reads of a peer's registered memory by its network card, over libibverbs (InfiniBand, RoCE).
//!
//! One `Endpoint` is one queue pair with a protection domain of its own, for one connection. The
//! home registers the ranges that a reader may read; a `MemoryRegistration` ends that right when it is
//! dropped, at the latest with its endpoint. No peer can write: no registration allows it. What the
//! peers tell each other (`EndpointAddress`, the key of a registration) goes over another connection.
//!
//! Without the feature `verbs` this crate is empty.
#![cfg(feature = "verbs")]

mod ffi;

use std::ffi::{CStr, CString, c_int};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::{AccessError, FileMap, Offset, Span};

use ffi::{RawAddress, RawEndpoint, RawRegistration};

/// Bytes of an encoded [`EndpointAddress`].
pub const ADDRESS_BYTES: usize = 36;

/// Bytes of one read: as of one request over TCP.
const READ_BYTES_MAX: u64 = 1 << 20;

/// Maximum time between two checks of the deadline.
const LOOK: Duration = Duration::from_millis(100);

/// An error of the device, or of a read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// A call failed.
    #[error("{call}: {error}")]
    Call {
        /// What was to be done.
        call: &'static str,
        /// The error.
        error: io::Error,
    },
    /// A read failed: the peer refused it or is not reached.
    #[error("read of {bytes} B: {status}")]
    Read {
        /// Bytes of all reads of the call.
        bytes: u64,
        /// The status of the device.
        status: String,
    },
    /// No read ended within the limit.
    #[error("timed out after {:.1} s waiting for {left} of {bytes} B", waited.as_secs_f64())]
    Stalled {
        /// Bytes that have not arrived.
        left: u64,
        /// Bytes of all reads of the call.
        bytes: u64,
        /// The limit.
        waited: Duration,
    },
    /// There is no connection to a peer.
    #[error("no peer is connected")]
    NotConnected,
    /// The caller ended it.
    #[error("ended by the caller")]
    Ended,
    /// A range is not in the map.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The name of a device has a zero byte.
    #[error("no device {0:?}")]
    Name(String),
    /// There are no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}

fn check(call: &'static str, result: c_int) -> Result<c_int, RdmaError> {
    match result {
        0.. => Ok(result),
        _ => Err(RdmaError::Call { call, error: io::Error::from_raw_os_error(-result) }),
    }
}

/// Where a queue pair is: what its peer needs to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointAddress(RawAddress);

impl EndpointAddress {
    /// Encodes to bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ADDRESS_BYTES] {
        let mut bytes = [0; ADDRESS_BYTES];
        let raw = &self.0;
        let words = [raw.pair, raw.first_packet, raw.lid, raw.mtu, raw.reads_max];
        bytes[..16].copy_from_slice(&raw.gid);
        for (place, word) in bytes[16..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes bytes. The device checks the numbers.
    #[must_use]
    pub fn decode(bytes: &[u8; ADDRESS_BYTES]) -> Self {
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[..16]);
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[16 + 4 * at..20 + 4 * at]);
            u32::from_le_bytes(word)
        };
        let (pair, first_packet, lid) = (word(0), word(1), word(2));
        Self(RawAddress { gid, pair, first_packet, lid, mtu: word(3), reads_max: word(4) })
    }
}

/// The device's objects, which registrations need too.
struct OpenDevice(NonNull<RawEndpoint>);

// SAFETY: libibverbs allows calls on its objects from any thread, several at once.
unsafe impl Send for OpenDevice {}
// SAFETY: as above.
unsafe impl Sync for OpenDevice {}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: each registration holds a reference to this, so all of them have ended.
        unsafe { ffi::farrow_rdma_close(self.0.as_ptr()) }
    }
}

/// One end of a connection between two network cards.
pub struct Endpoint {
    opened: Arc<OpenDevice>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address()).finish()
    }
}

impl Endpoint {
    /// Opens a device by its name, such as `mlx5_0`: its first port.
    ///
    /// # Errors
    /// [`RdmaError`]: there is no such device, or its port is down.
    pub fn open(device: &str) -> Result<Self, RdmaError> {
        let name = CString::new(device).map_err(|_| RdmaError::Name(device.to_owned()))?;
        // A random number, so that packets of an earlier connection are not taken for its own.
        let first_packet = getrandom::u32().map_err(RdmaError::Random)?;
        let mut opened = std::ptr::null_mut();
        // SAFETY: the name ends with a zero, and `opened` is written only on success.
        let result = unsafe { ffi::farrow_rdma_open(name.as_ptr(), first_packet, &raw mut opened) };
        check("open the device", result)?;
        let opened = NonNull::new(opened).ok_or_else(|| RdmaError::Name(device.to_owned()))?;
        Ok(Self { opened: Arc::new(OpenDevice(opened)) })
    }

    fn raw(&self) -> *mut RawEndpoint {
        self.opened.0.as_ptr()
    }

    /// Where the peer reaches this end.
    #[must_use]
    pub fn address(&self) -> EndpointAddress {
        let mut address = RawAddress::default();
        // SAFETY: both structures are alive, and have the layout of the header.
        unsafe { ffi::farrow_rdma_address(self.raw(), &raw mut address) };
        EndpointAddress(address)
    }

    /// Connects to the peer, whose end is not yet connected or is connected to this one.
    ///
    /// # Errors
    /// [`RdmaError::Call`] if the device refuses the address.
    pub fn connect(&mut self, peer: &EndpointAddress) -> Result<(), RdmaError> {
        // SAFETY: both structures are alive, and have the layout of the header.
        let result = unsafe { ffi::farrow_rdma_connect(self.raw(), &raw const peer.0) };
        check("connect", result).map(drop)
    }

    /// Lets the peer read a span of a map until the registration is dropped. The peer names bytes by
    /// their offset in the map.
    ///
    /// # Errors
    /// [`RdmaError`]: the span is outside the map, or its pages cannot be pinned.
    pub fn expose(&self, map: &Arc<FileMap>, span: Span) -> Result<MemoryRegistration, RdmaError> {
        self.register(map, span, true)
    }

    fn register(
        &self,
        map: &Arc<FileMap>,
        span: Span,
        is_for_peer: bool,
    ) -> Result<MemoryRegistration, RdmaError> {
        let start = map.start_of(span, !is_for_peer)?;
        let (mut registered, mut key) = (std::ptr::null_mut(), 0);
        // SAFETY: the span is inside the map, which the registration keeps until its end.
        let result = unsafe {
            ffi::farrow_rdma_register(
                self.raw(),
                start.cast(),
                span.length.as_usize(),
                span.offset.0,
                c_int::from(is_for_peer),
                &raw mut registered,
                &raw mut key,
            )
        };
        check("register memory", result)?;
        let registered = NonNull::new(registered).ok_or_else(|| RdmaError::Call {
            call: "register memory",
            error: io::ErrorKind::Other.into(),
        })?;
        let (opened, map) = (Arc::clone(&self.opened), Arc::clone(map));
        Ok(MemoryRegistration { registered, key, _opened: opened, _map: map })
    }

    /// Reads ranges of the peer into a map, until `is_over`. When this returns, also with an error,
    /// the device writes there no more. After an error the endpoint is of no use.
    ///
    /// The caller sees to it that no other thread uses these ranges of the map meanwhile.
    ///
    /// # Errors
    /// [`RdmaError::Read`] if the peer allows it no more or is not reached; [`RdmaError::Stalled`]
    /// if nothing arrives for `stall`; [`RdmaError::Ended`].
    pub fn read(
        &mut self,
        map: &Arc<FileMap>,
        ranges: &[RemoteRange],
        stall: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), RdmaError> {
        let local =
            |range: &RemoteRange| self.register(map, Span::new(range.to, range.from.length), false);
        let registrations = ranges.iter().map(local).collect::<Result<Vec<_>, _>>()?;
        let outcome = self.transfer(&mut pieces(ranges, &registrations), stall, is_over);
        if outcome.is_err() {
            // SAFETY: the endpoint is alive.
            unsafe { ffi::farrow_rdma_stop(self.raw()) };
        }
        // The end of each registration waits for what the device still does there.
        drop(registrations);
        outcome
    }

    fn transfer(
        &self,
        pieces: &mut dyn Iterator<Item = ReadPiece>,
        stall: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), RdmaError> {
        // SAFETY: the endpoint is alive.
        let reads_max = unsafe { ffi::farrow_rdma_reads_max(self.raw()) }.max(1);
        let (mut running, mut requested, mut arrived) = (std::collections::VecDeque::new(), 0, 0);
        let mut moved = Instant::now();
        loop {
            while (running.len() as c_int) < reads_max
                && let Some(piece) = pieces.next()
            {
                let ReadPiece { to, local, from, remote, length } = piece;
                // SAFETY: the endpoint is alive; `local` is a registration that outlives the read.
                let result =
                    unsafe { ffi::farrow_rdma_read(self.raw(), to, local, from, remote, length) };
                check("post a read", result)?;
                running.push_back(u64::from(length));
                requested += u64::from(length);
            }
            if running.is_empty() {
                return Ok(());
            }
            if is_over() {
                return Err(RdmaError::Ended);
            }
            // Reads of one queue pair end in order.
            let ended = self.ended(requested)?;
            for bytes in running.drain(..ended.min(running.len())) {
                arrived += bytes;
            }
            if ended > 0 {
                moved = Instant::now();
            } else if moved.elapsed() > stall {
                let left = requested - arrived;
                return Err(RdmaError::Stalled { left, bytes: requested, waited: stall });
            }
        }
    }

    /// Waits a while for reads to end; their number.
    fn ended(&self, bytes: u64) -> Result<usize, RdmaError> {
        let look = || {
            let mut status = 0;
            // SAFETY: the endpoint is alive.
            let result = unsafe { ffi::farrow_rdma_ended(self.raw(), &raw mut status) };
            if status == 0 {
                return check("poll", result);
            }
            // SAFETY: the text is static and ends with a zero.
            let status = unsafe { CStr::from_ptr(ffi::farrow_rdma_status(status)) };
            Err(RdmaError::Read { bytes, status: status.to_string_lossy().into_owned() })
        };
        let mut count = look()?;
        if count == 0 {
            // SAFETY: the endpoint is alive.
            check("ask for a notice", unsafe { ffi::farrow_rdma_arm(self.raw()) })?;
            count = look()?;
        }
        if count == 0 {
            let milliseconds = c_int::try_from(LOOK.as_millis()).unwrap_or(c_int::MAX);
            // SAFETY: the endpoint is alive.
            check("wait", unsafe { ffi::farrow_rdma_wait(self.raw(), milliseconds) })?;
        }
        Ok(usize::try_from(count).unwrap_or_default())
    }
}

impl Drop for Endpoint {
    /// The peer reads no more, also where a registration still lives.
    fn drop(&mut self) {
        // SAFETY: the endpoint is alive.
        unsafe { ffi::farrow_rdma_stop(self.raw()) };
    }
}

/// A range of the peer, and where its bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// The range at the peer.
    pub from: Span,
    /// The key of the peer's registration of it.
    pub key: u32,
    /// Offset in the map.
    pub to: Offset,
}

/// What one read moves.
#[derive(Clone, Copy, Debug)]
struct ReadPiece {
    to: u64,
    local: u32,
    from: u64,
    remote: u32,
    length: u32,
}

fn pieces(
    ranges: &[RemoteRange],
    registrations: &[MemoryRegistration],
) -> impl Iterator<Item = ReadPiece> {
    let pairs: Vec<(RemoteRange, u32)> =
        ranges.iter().copied().zip(registrations.iter().map(|one| one.key)).collect();
    pairs.into_iter().flat_map(|(range, local)| {
        let length = range.from.length.0;
        (0..length.div_ceil(READ_BYTES_MAX)).map(move |number| {
            let skip = number * READ_BYTES_MAX;
            ReadPiece {
                to: range.to.0 + skip,
                local,
                from: range.from.offset.0 + skip,
                remote: range.key,
                // At most 1 MiB.
                length: (length - skip).min(READ_BYTES_MAX) as u32,
            }
        })
    })
}

/// Memory that the device may use. Dropping it ends that.
pub struct MemoryRegistration {
    registered: NonNull<RawRegistration>,
    key: u32,
    /// Its device, which has to be there at its end.
    _opened: Arc<OpenDevice>,
    _map: Arc<FileMap>,
}

// SAFETY: libibverbs allows calls on its objects from any thread.
unsafe impl Send for MemoryRegistration {}

impl std::fmt::Debug for MemoryRegistration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryRegistration").finish_non_exhaustive()
    }
}

impl MemoryRegistration {
    /// The key that a peer needs.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.key
    }
}

impl Drop for MemoryRegistration {
    fn drop(&mut self) {
        // SAFETY: it is registered, and nothing uses it after this.
        let result = unsafe { ffi::farrow_rdma_unregister(self.registered.as_ptr()) };
        // The device could still use memory that is given to others: nothing may go on.
        if result != 0 {
            std::process::abort();
        }
    }
}
