//! Ranges that a reader's network card reads by itself, without a thread of this node.
//!
//! Each connection has a queue pair and a protection domain of its own, so its keys are of no use on
//! another one. A range is registered when the reader asks for it, with the checks of every read, and
//! only until the reader says that it is done or its connection ends. So the card refuses what the
//! reader may not read, and a member that is cut off has no way left into memory.

use std::sync::Arc;

use farrow_memory::FileMap;
use farrow_rdma::{ADDRESS_BYTES, Endpoint, EndpointAddress, MemoryRegistration, RdmaError};

use crate::error::{ConnectionError, FrameError};
use crate::frame::{ErrorCode, FrameHeader, Op, decode_exposed_ranges};
use crate::source::{Guard, HoldId, MemberLife, Source, SourceRefusal};

/// The network card of a home.
#[derive(Clone, Debug)]
pub struct RdmaHome {
    /// Its name, such as `mlx5_0`.
    pub device: String,
    /// The data section of the server's source. It has to be writable: some kernels register no
    /// other.
    pub map: Arc<FileMap>,
}

/// What the card reads now. The registrations end before the guard.
struct Exposure {
    _registrations: Vec<MemoryRegistration>,
    _guard: Guard,
}

/// One connection's end at the home.
pub(super) struct Exposures {
    home: RdmaHome,
    exposure: Option<Exposure>,
    endpoint: Option<Endpoint>,
}

/// An answer: its op and its body.
pub(super) type CardAnswer = Option<(Op, Vec<u8>)>;

impl Exposures {
    pub(super) fn new(home: RdmaHome) -> Self {
        Self { home, exposure: None, endpoint: None }
    }

    /// Handles one request.
    pub(super) fn on_frame(
        &mut self,
        source: &dyn Source,
        member: &MemberLife,
        header: &FrameHeader,
        body: &[u8],
    ) -> Result<Result<CardAnswer, SourceRefusal>, ConnectionError> {
        // One at a time: the reader asks for the next when it has the last.
        self.exposure = None;
        Ok(match header.op {
            Op::Meet => {
                let peer = <&[u8; ADDRESS_BYTES]>::try_from(body).map(EndpointAddress::decode);
                let peer = peer.map_err(|_| unexpected(header))?;
                self.meet(&peer).map_err(refusal).map(|own| Some((Op::Met, own)))
            }
            Op::Expose => {
                let ranges = decode_exposed_ranges(body)?;
                match source.read(member, HoldId(header.offset), &ranges) {
                    Ok(guard) => self.expose(&ranges, guard).map_err(refusal),
                    Err(refusal) => Err(refusal),
                }
            }
            Op::Conceal => Ok(None),
            _ => return Err(unexpected(header)),
        })
    }

    fn meet(&mut self, peer: &EndpointAddress) -> Result<Vec<u8>, RdmaError> {
        // An earlier one ends first.
        self.endpoint = None;
        let mut endpoint = Endpoint::open(&self.home.device)?;
        endpoint.connect(peer)?;
        let own = endpoint.address().encode().to_vec();
        self.endpoint = Some(endpoint);
        Ok(own)
    }

    fn expose(
        &mut self,
        ranges: &[farrow_memory::Span],
        guard: Guard,
    ) -> Result<CardAnswer, RdmaError> {
        let endpoint = self.endpoint.as_ref().ok_or(RdmaError::NotConnected)?;
        let registrations = ranges.iter().map(|range| endpoint.expose(&self.home.map, *range));
        let registrations = registrations.collect::<Result<Vec<_>, _>>()?;
        let keys = registrations.iter().flat_map(|one| one.key().to_le_bytes()).collect();
        self.exposure = Some(Exposure { _registrations: registrations, _guard: guard });
        Ok(Some((Op::Exposed, keys)))
    }
}

fn refusal(error: RdmaError) -> SourceRefusal {
    SourceRefusal::new(ErrorCode::Other, error.to_string())
}

fn unexpected(header: &FrameHeader) -> ConnectionError {
    let place = "at a server, on a connection of network cards";
    FrameError::Unexpected { op: header.op, id: header.id, place }.into()
}
