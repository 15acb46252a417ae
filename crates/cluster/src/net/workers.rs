//! The jobs that wait for one node, and their threads. Short jobs have threads of their own, so that
//! none waits behind long ones.

use std::sync::Arc;

use farrow_memory::Span;
use farrow_net::cache::MirrorHold;
use farrow_net::peer::{Peer, Piece, SMALL_FETCH_BYTES_MAX};
use farrow_store::ObjectId;
use farrow_wire::PartSpec;

use super::pool::WorkerPool;

/// Most threads of each pool. Each works on one object at a time, and ends once it is idle.
const THREADS_MAX: usize = 4;

/// A job that waits for one node.
pub(super) enum NetJob {
    Open { token: u64, peer: Arc<Peer>, want: Vec<u8>, part: Option<PartSpec> },
    Load { origin: ObjectId, peer: Arc<Peer>, hold: u64, pieces: Vec<Piece> },
    Pages { token: u64, peer: Arc<Peer>, hold: u64, object: MirrorHold, ranges: Vec<Span> },
    Resolve { node: String, address: String, section: u64 },
}

/// The threads for one node.
pub(super) struct PeerWorkers {
    opens: WorkerPool<NetJob>,
    /// They read offsets and views first: which bytes a part has.
    part_opens: WorkerPool<NetJob>,
    /// Transfers that do not wait behind bulk data on their connection either.
    small_loads: WorkerPool<NetJob>,
    loads: WorkerPool<NetJob>,
    /// A reader is stopped until its pages have come.
    pages: WorkerPool<NetJob>,
}

impl PeerWorkers {
    /// Makes the pools, each of this many threads at most.
    pub(super) fn new(pool: impl Fn(usize) -> WorkerPool<NetJob>) -> Self {
        let pool = || pool(THREADS_MAX);
        Self {
            opens: pool(),
            part_opens: pool(),
            small_loads: pool(),
            loads: pool(),
            pages: pool(),
        }
    }

    pub(super) fn pool_of(&self, job: &NetJob) -> &WorkerPool<NetJob> {
        match job {
            NetJob::Load { pieces, .. } => {
                let bytes = pieces.iter().map(|piece| piece.from.length.0);
                match bytes.fold(0, u64::saturating_add) <= SMALL_FETCH_BYTES_MAX {
                    true => &self.small_loads,
                    false => &self.loads,
                }
            }
            NetJob::Pages { .. } => &self.pages,
            NetJob::Open { part: Some(_), .. } => &self.part_opens,
            NetJob::Open { .. } | NetJob::Resolve { .. } => &self.opens,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use farrow_memory::{Length, Offset};
    use farrow_net::peer::{DaemonControl, PeerOptions};
    use farrow_net::records::Credentials;
    use farrow_net::ticket::Ticket;

    use super::*;
    use crate::net::pool::WaitGroup;

    const LONG: Duration = Duration::from_secs(20);

    /// No connection is made.
    struct NoControl;

    impl DaemonControl for NoControl {
        fn ticket(&self) -> Result<Ticket, String> {
            Err("no tickets".to_owned())
        }

        fn on_invalidate(&self, _: u64, _: u64) {}
    }

    fn load(peer: &Arc<Peer>, lo: u64, bytes: u64) -> NetJob {
        let from = Span::new(Offset(0), Length(bytes));
        let (origin, pieces) = (ObjectId { hi: 1, lo }, vec![Piece { from, to: Offset(0) }]);
        NetJob::Load { origin, peer: Arc::clone(peer), hold: 1, pieces }
    }

    fn open(peer: &Arc<Peer>, token: u64, is_part: bool) -> NetJob {
        let part = is_part.then_some(PartSpec { columns: None, start: None, stop: Some(1) });
        NetJob::Open { token, peer: Arc::clone(peer), want: Vec::new(), part }
    }

    /// Regression test: a small object waited until one of four transfers of huge ones had ended, and
    /// each open behind four opens of parts.
    #[test]
    fn short_jobs_do_not_wait_for_long_ones() {
        let options = PeerOptions::new("b", "127.0.0.1:9".parse().unwrap(), Length(1 << 30));
        let peer = Peer::start(options, Credentials::Plain, Arc::new(NoControl)).unwrap();
        let (peer, group) = (Arc::new(peer), Arc::<WaitGroup>::default());
        let (done, ended) = channel();
        let (release, gate): (_, Receiver<()>) = channel();
        let gate = Arc::new(Mutex::new(gate));
        let workers = PeerWorkers::new(|threads| {
            let (done, gate) = (done.clone(), Arc::clone(&gate));
            WorkerPool::new(&group, threads, move |job| {
                let (number, is_long) = match &job {
                    NetJob::Load { origin, pieces, .. } => {
                        (origin.lo, pieces[0].from.length.0 > SMALL_FETCH_BYTES_MAX)
                    }
                    NetJob::Open { token, part, .. } => (*token, part.is_some()),
                    NetJob::Pages { token, .. } => (*token, false),
                    NetJob::Resolve { section, .. } => (*section, false),
                };
                if is_long {
                    // Until the test drops the sender.
                    let _ = gate.lock().unwrap().recv_timeout(2 * LONG);
                }
                let _ = done.send(number);
            })
        });
        let push = |job: NetJob| assert!(workers.pool_of(&job).push(job).is_ok());
        for number in 0..10 {
            push(load(&peer, number, SMALL_FETCH_BYTES_MAX + 1));
            push(open(&peer, 100 + number, true));
        }
        push(load(&peer, 1000, SMALL_FETCH_BYTES_MAX));
        assert_eq!(ended.recv_timeout(LONG), Ok(1000), "a small object");
        push(open(&peer, 1001, false));
        assert_eq!(ended.recv_timeout(LONG), Ok(1001), "an open");
        let (node, address) = ("b".to_owned(), "b:9".to_owned());
        push(NetJob::Resolve { node, address, section: 1002 });
        assert_eq!(ended.recv_timeout(LONG), Ok(1002), "an address");
        drop((release, workers));
        group.wait();
        assert_eq!(ended.try_iter().count(), 20);
    }
}
