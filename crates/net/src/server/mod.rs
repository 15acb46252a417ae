//! The home's side of the data path: a listener, and a thread for each connection.
//!
//! A ticket, and a certificate with TLS, admits a connection. The connection then belongs to one
//! incarnation of a member. [`DataServer::cut`] ends all its connections, and returns when none of
//! their threads accesses memory.

mod connection;
mod opens;
#[cfg(feature = "rdma")]
mod rdma;
mod registry;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::ConnectionError;
use crate::pack::PackingOptions;
use crate::records::Credentials;
use crate::socket::Socket;
pub use crate::socket::SocketOptions;
use crate::source::{MemberLife, PushTarget, Source};
use crate::ticket::{Ticket, TicketError, Tickets};
#[cfg(feature = "rdma")]
pub use rdma::RdmaHome;
use registry::Registry;
pub use registry::StillRunning;

/// Limits of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Options of each connection.
    pub socket: SocketOptions,
    /// Maximum number of connections, each with a thread.
    pub connections_max: usize,
    /// Maximum connections of one member.
    pub connections_per_member_max: usize,
    /// Time without a request after which a connection is closed; its client reconnects on demand.
    pub idle: Duration,
    /// Whether pieces are packed for readers that ask for it.
    pub packing: PackingOptions,
    /// The network card by which readers may read one-sidedly.
    #[cfg(feature = "rdma")]
    pub rdma: Option<RdmaHome>,
}

impl Default for ServerOptions {
    /// 256 threads with small stacks; five minutes.
    fn default() -> Self {
        Self {
            socket: SocketOptions::default(),
            connections_max: 256,
            connections_per_member_max: 16,
            idle: Duration::from_secs(300),
            packing: PackingOptions::default(),
            #[cfg(feature = "rdma")]
            rdma: None,
        }
    }
}

/// State shared by the threads of a server.
struct ServerShared {
    options: ServerOptions,
    credentials: Credentials,
    source: Arc<dyn Source>,
    target: Option<Arc<dyn PushTarget>>,
    tickets: Mutex<Tickets>,
    registry: Registry,
    started: Instant,
}

impl ServerShared {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Serves a data section to peers.
pub struct DataServer {
    shared: Arc<ServerShared>,
    listener: Arc<TcpListener>,
    accepting: Option<JoinHandle<()>>,
}

impl DataServer {
    /// Serves connections of a listener. Without a target, pushes are refused.
    ///
    /// # Errors
    /// [`ConnectionError::Io`] if the thread cannot be started.
    pub fn start(
        listener: TcpListener,
        options: ServerOptions,
        credentials: Credentials,
        source: Arc<dyn Source>,
        target: Option<Arc<dyn PushTarget>>,
    ) -> Result<Self, ConnectionError> {
        let shared = Arc::new(ServerShared {
            registry: Registry::new(options.connections_max, options.connections_per_member_max),
            options,
            credentials,
            source,
            target,
            tickets: Mutex::default(),
            started: Instant::now(),
        });
        let listener = Arc::new(listener);
        let (of_thread, accepted) = (Arc::clone(&listener), Arc::clone(&shared));
        let accepting = std::thread::Builder::new()
            .name("farrow-net-accept".into())
            .spawn(move || accept_all(&of_thread, &accepted))?;
        Ok(Self { shared, listener, accepting: Some(accepting) })
    }

    /// Address of the listener.
    ///
    /// # Errors
    /// [`ConnectionError::Io`].
    pub fn address(&self) -> Result<SocketAddr, ConnectionError> {
        Ok(self.listener.local_addr()?)
    }

    /// Issues a ticket for one connection of a member; the control channel delivers it.
    ///
    /// # Errors
    /// [`TicketError`].
    pub fn issue_ticket(&self, member: &MemberLife) -> Result<Ticket, TicketError> {
        let now_ms = self.shared.now_ms();
        let mut tickets = self.shared.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.issue(member, now_ms)
    }

    /// Notifies a member that an object was deleted. Returns whether the notice was sent. Without a
    /// connection it is not, and the member's daemon asks again when it connects.
    #[must_use]
    pub fn send_invalidation(&self, member: &MemberLife, object: u64) -> bool {
        self.shared.registry.send_invalidation(member, object)
    }

    /// Disconnects a member whose incarnation has ended: revokes its unused tickets and ends its
    /// connections. When this returns, no thread reads or writes memory for the member, so its
    /// holds and grants can be released.
    ///
    /// # Errors
    /// [`StillRunning`] after `time`: memory of the member must not be reused yet.
    pub fn cut(&self, member: &MemberLife, time: Duration) -> Result<(), StillRunning> {
        self.shared.tickets.lock().unwrap_or_else(PoisonError::into_inner).revoke(member);
        self.shared.registry.cut(Some(member), &format!("{member} was cut off"), time)
    }

    /// Revokes the unused tickets of a member and ends its connections, without waiting for their
    /// threads. A hold that such a thread opens after this call is released by it.
    pub fn disconnect(&self, member: &MemberLife, reason: &str) {
        self.shared.tickets.lock().unwrap_or_else(PoisonError::into_inner).revoke(member);
        self.shared.registry.disconnect(member, reason);
    }

    /// Number of admitted connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.registry.admitted()
    }

    /// Errors that ended the newest 64 failed connections, oldest first: for logs and tests.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.shared.registry.violations()
    }

    /// Stops listening and ends every connection.
    ///
    /// # Errors
    /// [`StillRunning`] after `time`.
    pub fn stop(&mut self, time: Duration) -> Result<(), StillRunning> {
        self.shared.registry.close();
        // Wakes the accepting thread; the listener accepts no more connections.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        self.shared.registry.cut(None, "the server stops", time)
    }
}

impl Drop for DataServer {
    fn drop(&mut self) {
        if self.accepting.is_some()
            && let Err(error) = self.stop(self.shared.options.socket.stall)
        {
            tracing::warn!(%error, "data server");
        }
    }
}

fn accept_all(listener: &TcpListener, shared: &Arc<ServerShared>) {
    while !shared.registry.is_closed() {
        match listener.accept() {
            Ok((stream, address)) => {
                if let Err(error) = begin(stream, address, shared) {
                    tracing::debug!(%address, %error, "connection refused");
                }
            }
            Err(_) if shared.registry.is_closed() => return,
            Err(error) => {
                // Probably out of file descriptors, which become free when connections end.
                tracing::warn!(%error, "accept");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Starts the thread of one connection, which performs the handshake and serves requests.
fn begin(
    stream: TcpStream,
    address: SocketAddr,
    shared: &Arc<ServerShared>,
) -> Result<(), ConnectionError> {
    let socket = Socket::new(stream, &shared.options.socket)?;
    let entry = shared.registry.enter(&socket, address.ip())?;
    let of_thread = Arc::clone(shared);
    std::thread::Builder::new().name("farrow-net-serve".into()).spawn(move || {
        let ended = connection::serve(&of_thread, &socket, &entry);
        match ended {
            Ok(()) | Err(ConnectionError::Closed) => {}
            Err(error) => {
                tracing::debug!(%address, %error, "connection ended");
                of_thread.registry.record(&error);
                socket.cut(error.to_string());
            }
        }
    })?;
    Ok(())
}
