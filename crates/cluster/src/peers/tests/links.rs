//! Connections that break, and connections that only seem to be open.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// Forwards between two nodes until it is stopped. Then connections stay open, but no data arrives.
struct Blackhole {
    address: PeerAddress,
    built: Sender<()>,
}

impl Blackhole {
    fn before(node: &DrivenNode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let to = node.peers.local_address();
        let (built, is_built) = channel();
        std::thread::spawn(move || carry(&listener, to, &is_built));
        Self { address, built }
    }
}

fn carry(listener: &TcpListener, to: SocketAddr, is_built: &Receiver<()>) {
    listener.set_nonblocking(true).unwrap();
    let mut pairs: Vec<(TcpStream, TcpStream)> = Vec::new();
    let mut is_open = true;
    let mut bytes = vec![0; 64 << 10];
    loop {
        match is_built.try_recv() {
            Ok(()) => is_open = false,
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
        }
        if let Ok((near, _)) = listener.accept() {
            let far = TcpStream::connect(to).unwrap();
            near.set_nonblocking(true).unwrap();
            far.set_nonblocking(true).unwrap();
            pairs.push((near, far));
        }
        for (near, far) in pairs.iter_mut().filter(|_| is_open) {
            for (mut from, mut into) in [(&*near, &*far), (&*far, &*near)] {
                match from.read(&mut bytes) {
                    Ok(0) => drop(into.shutdown(Shutdown::Write)),
                    Ok(count) => drop(into.write(&bytes[..count])),
                    Err(_) => {}
                }
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Regression test: such an address used up the time for all addresses of a name.
#[test]
fn an_address_that_stays_silent_leaves_the_next_to_be_tried() {
    let dir = tls::authority();
    let b = DrivenNode::with(tls::certified(dir.path(), "b"));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [silent.local_addr().unwrap(), b.peers.local_address()];
    let raw = RawPeer::with(tls::certified(dir.path(), "a"), &b.address().to_string());
    let until = Instant::now() + raw.client.times.connect;
    let connected = runtime().block_on(async {
        let attempt = raw.link.connect_to_one_of(&addresses, &raw.client, until);
        tokio::time::timeout(LIMIT, attempt).await.expect("the second address is tried")
    });
    connected.unwrap();
}

fn alert(name: &str) -> PeersOptions {
    let mut options = options(name);
    options.times.keep_alive_interval = Duration::from_millis(300);
    options.times.keep_alive_timeout = Duration::from_millis(300);
    options
}

#[test]
fn a_link_on_which_nothing_comes_is_noticed_by_both_sides() {
    let (mut a, mut b) = (DrivenNode::with(alert("a")), DrivenNode::with(alert("b")));
    let wall = Blackhole::before(&a);
    let remote_session = RemoteSessionId::outgoing(1);
    b.peers.open_remote_session(remote_session, &wall.address, PROCESS).unwrap();
    let (at_a, ..) = a.opened();
    b.peers.ask(1, &wall.address, Bytes::new(), LIMIT).unwrap();
    a.requested();
    // Idle for longer than the keep-alive takes: the link is alive, so the remote session remains.
    std::thread::sleep(Duration::from_millis(1500));
    b.wait(Instant::now());
    assert!(b.waiting.is_empty(), "{:?}", b.waiting);
    wall.built.send(()).unwrap();
    assert_eq!(b.ended(remote_session).0, None);
    assert_eq!(a.ended(at_a).0, None);
    let lost = b.answered(1).unwrap_err();
    assert!(matches!(lost, PeerError::Refused { .. }), "long before its deadline: {lost}");
}

#[test]
fn a_node_that_comes_back_at_its_address_is_reached_again() {
    let mut a = DrivenNode::new("a");
    let b = DrivenNode::new("b");
    let address = b.address();
    let mut again = options("b");
    again.listen = b.peers.local_address();
    let mut b = b;
    a.ask_through(&mut b, 1);
    drop(b);
    // Until the port is free and the back-off has passed, requests fail at once.
    a.peers.ask(2, &address, Bytes::new(), LIMIT).unwrap();
    a.answered(2).unwrap_err();
    let mut b = DrivenNode::with(again);
    let until = Instant::now() + LIMIT;
    for token in 3.. {
        a.peers.ask(token, &address, Bytes::new(), LIMIT).unwrap();
        let answer = loop {
            b.wait(Instant::now() + Duration::from_millis(20));
            if let Some(PeerEvent::Request { token, .. }) = b.waiting.pop() {
                b.peers.answer(token, Bytes::new()).unwrap();
            }
            a.wait(Instant::now() + Duration::from_millis(20));
            if let Some(PeerEvent::Response { result, .. }) = a.waiting.pop() {
                break result;
            }
        };
        if answer.is_ok() {
            break;
        }
        assert!(Instant::now() < until, "never reached again");
    }
}

#[test]
fn a_forgotten_peer_has_no_connection_left() {
    let (mut a, mut b) = (DrivenNode::new("a"), DrivenNode::new("b"));
    a.ask_through(&mut b, 1);
    a.peers.forget(&b.address());
    assert!(a.peers.retained().links.is_empty());
    a.ask_through(&mut b, 2);
}

#[test]
fn links_with_nothing_under_way_are_forgotten_beyond_the_limit() {
    let a = DrivenNode::new("a");
    for port in 1..=u16::try_from(2 * LINKS_MAX).unwrap() {
        a.peers.link(&PeerAddress { name: None, host: "127.0.0.1".into(), port });
    }
    assert!(a.peers.retained().links.len() <= LINKS_MAX);
}
