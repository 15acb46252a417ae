//! The serving process. It answers lines on its standard input, as a control channel.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farrow_memory::shm::ShmFabric;
use farrow_memory::{
    Fabric, FileMap, Geometry, HUGE_PAGE_BYTES_USUAL, Length, Offset, Section, Span, mount,
};
use farrow_net::peer::DaemonControl;
use farrow_net::records::{Credentials, TlsIdentity, TlsMaterial};
use farrow_net::server::{DataServer, ServerOptions, SocketOptions};
use farrow_net::source::MemberLife;
use farrow_net::source::table::TableSource;
use farrow_net::ticket::{TICKET_BYTES, Ticket};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::fs::MemfdFlags;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

use crate::{AnyError, raw};

/// The table.
pub const TABLE: u64 = 1;

/// An object of 1 kB, stored after the table.
pub const SMALL: u64 = 2;
pub const SMALL_BYTES: u64 = 1000;

/// Addresses of the servers, and the credentials of a reader.
#[derive(Clone, Serialize, Deserialize)]
pub struct Greeting {
    pub section: u64,
    pub plain: SocketAddr,
    pub tls: SocketAddr,
    pub raw: SocketAddr,
    authority: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

pub fn member() -> MemberLife {
    MemberLife { name: "reader".into(), incarnation: 1 }
}

pub fn socket_options(congestion: &str) -> SocketOptions {
    SocketOptions { stall: Duration::from_secs(20), congestion: Some(congestion.to_owned()) }
}

/// A memory file, mapped, without pages.
pub fn memory(bytes: u64) -> Result<Arc<FileMap>, AnyError> {
    let file = rustix::fs::memfd_create("bench-fabric", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, bytes)?;
    Ok(Arc::new(FileMap::new(file, 0, Length(bytes), true)?))
}

/// The same on huge pages; `None` if there are none or this process may not mount.
pub fn huge_memory(bytes: u64) -> Result<Option<Arc<FileMap>>, AnyError> {
    if !mount::can_mount_huge() {
        return Ok(None);
    }
    let data = Length(bytes.next_multiple_of(HUGE_PAGE_BYTES_USUAL.0));
    let fabric = ShmFabric::nameless_in_mount(Geometry { control: HUGE_PAGE_BYTES_USUAL, data })?;
    let (file, at) = fabric.write_fd(Section::Data).ok_or("no writable descriptor")?;
    let file = file.try_clone_to_owned()?;
    let map = FileMap::new(file, at, Length(bytes), true)?;
    // The fabric allocates memory for a region; a mirror begins with none.
    map.punch(Span::new(Offset(0), Length(bytes)))?;
    Ok(Some(Arc::new(map)))
}

/// The bytes of a span of the data section.
pub fn pattern(span: Span) -> Vec<u8> {
    let words = span.offset.0 / 8..(span.offset.0 + span.length.0).div_ceil(8);
    words.flat_map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()).collect()
}

fn certified(name: &str, issuer: &Issuer<'_, KeyPair>) -> Result<(Vec<u8>, Vec<u8>), AnyError> {
    let key = KeyPair::generate()?;
    let params = CertificateParams::new(vec![server_name_of(name)])?;
    Ok((params.signed_by(&key, issuer)?.der().to_vec(), key.serialize_der()))
}

fn server_name_of(name: &str) -> String {
    format!("{name}.bench.test")
}

/// The name in such a certificate.
fn member_of(certificate: &CertificateDer<'_>) -> Result<String, String> {
    let text = String::from_utf8_lossy(certificate);
    let found = ["home", "reader"].into_iter().find(|name| text.contains(&server_name_of(name)));
    found.map(str::to_owned).ok_or_else(|| "the certificate names no node".to_owned())
}

fn identity(authority: &[u8], certificate: &[u8], key: &[u8]) -> Result<Credentials, AnyError> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(authority.to_vec()))?;
    let chain = vec![CertificateDer::from(certificate.to_vec())];
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.to_vec()));
    let material = TlsMaterial::new(roots, chain, key)?;
    let identity = TlsIdentity::new(&material, member_of, server_name_of)?;
    Ok(Credentials::Tls(Arc::new(identity)))
}

impl Greeting {
    pub fn credentials(&self) -> Result<Credentials, AnyError> {
        identity(&self.authority, &self.certificate, &self.key)
    }
}

/// Runs the process until its input ends.
pub fn run(bytes: u64, congestion: &str) -> Result<(), AnyError> {
    let section = bytes.next_multiple_of(4096) + 4096;
    let map = memory(section)?;
    let step = 1 << 20;
    for at in (0..section).step_by(step) {
        let span = Span::new(Offset(at), Length((section - at).min(step as u64)));
        map.write(span.offset, &pattern(span))?;
    }
    map.commit(Span::new(Offset(0), Length(section)))?;
    let source = TableSource::new(Arc::clone(&map));
    source.add(TABLE, vec![Span::new(Offset(0), Length(bytes))]);
    source.add(SMALL, vec![Span::new(Offset(section - 4096), Length(SMALL_BYTES))]);

    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let key = KeyPair::generate()?;
    let authority = params.self_signed(&key)?.der().to_vec();
    let issuer = Issuer::new(params, key);
    let (own, own_key) = certified("home", &issuer)?;
    let (certificate, key) = certified("reader", &issuer)?;

    let options = ServerOptions { socket: socket_options(congestion), ..ServerOptions::default() };
    let start = |credentials| -> Result<(DataServer, SocketAddr), AnyError> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let source = Arc::clone(&source) as _;
        let server = DataServer::start(listener, options.clone(), credentials, source, None)?;
        let address = server.address()?;
        Ok((server, address))
    };
    let (plain_server, plain) = start(Credentials::Plain)?;
    let (tls_server, tls) = start(identity(&authority, &own, &own_key)?)?;
    let raw = raw::serve(Arc::clone(&map), congestion.to_owned())?;
    let greeting = Greeting { section, plain, tls, raw, authority, certificate, key };
    let mut output = std::io::stdout();
    writeln!(output, "{}", serde_json::to_string(&greeting)?)?;
    for line in std::io::stdin().lines() {
        let answer = match line?.as_str() {
            "cpu" => format!("{}", cpu_seconds()),
            "plain" => hex(&plain_server.issue_ticket(&member())?),
            "tls" => hex(&tls_server.issue_ticket(&member())?),
            other => return Err(format!("{other:?} is not understood").into()),
        };
        writeln!(output, "{answer}")?;
    }
    Ok(())
}

fn hex(ticket: &Ticket) -> String {
    ticket.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// CPU time of this process, all threads.
pub fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

struct Pipes {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// A handle of the serving process, which ends when it is dropped.
pub struct HomeProcess {
    child: Child,
    pipes: Arc<Mutex<Pipes>>,
    pub greeting: Greeting,
}

impl HomeProcess {
    pub fn start(bytes: u64, congestion: &str) -> Result<Self, AnyError> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["home", &bytes.to_string(), congestion])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or("no pipe")?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let greeting = serde_json::from_str(&line)?;
        Ok(Self { child, pipes: Arc::new(Mutex::new(Pipes { input, output })), greeting })
    }

    pub fn cpu_seconds(&self) -> Result<f64, AnyError> {
        Ok(ask(&self.pipes, "cpu")?.parse()?)
    }

    /// The control channel of a peer over that record layer.
    pub fn control(&self, layer: &'static str) -> Arc<dyn DaemonControl> {
        Arc::new(Channel { pipes: Arc::clone(&self.pipes), layer })
    }
}

impl Drop for HomeProcess {
    fn drop(&mut self) {
        // Kill the child process by its id.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(pipes: &Mutex<Pipes>, question: &str) -> Result<String, AnyError> {
    let mut pipes = pipes.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(pipes.input, "{question}")?;
    let mut line = String::new();
    pipes.output.read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

struct Channel {
    pipes: Arc<Mutex<Pipes>>,
    layer: &'static str,
}

impl DaemonControl for Channel {
    fn ticket(&self) -> Result<Ticket, String> {
        let line = ask(&self.pipes, self.layer).map_err(|error| error.to_string())?;
        let byte = |at: usize| u8::from_str_radix(line.get(2 * at..2 * at + 2)?, 16).ok();
        let mut bytes = [0; TICKET_BYTES];
        for (at, target) in bytes.iter_mut().enumerate() {
            *target = byte(at).ok_or_else(|| format!("no ticket: {line:?}"))?;
        }
        Ok(Ticket::from_bytes(bytes))
    }

    fn on_invalidate(&self, _: u64, _: u64) {}
}
