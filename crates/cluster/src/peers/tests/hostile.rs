//! Broken and malicious peers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream;
use tonic::{Code, Request, Status};

use super::*;
use crate::peers::generated::pb::{End, Frame, Message, Open, Question, frame::Kind};
use crate::peers::limits::{REMOTE_SESSION_FRAME_BYTES_MAX, VERSION};

fn message(version: u32, from: &str, bytes: usize) -> Message {
    Message { version, from: from.into(), incarnation: 1, body: vec![0; bytes].into() }
}

fn open(version: u32, from: &str) -> Kind {
    Kind::Open(Open { version, from: from.into(), pid: 1, start_time: 1, uid: 1 })
}

/// The status with which a remote session with these frames ends.
async fn remote_session(
    calls: &mut NodeClient<LiveConnection>,
    kinds: Vec<Option<Kind>>,
) -> Option<Status> {
    let frames = kinds.into_iter().map(|kind| Frame { kind });
    match calls.remote_session(stream::iter(frames)).await {
        Ok(answer) => {
            let mut answer = answer.into_inner();
            while let Some(frame) = answer.message().await.transpose() {
                if let Err(status) = frame {
                    return Some(status);
                }
            }
            None
        }
        Err(status) => Some(status),
    }
}

#[test]
fn another_version_another_name_or_no_name_are_refused_with_a_reason() {
    let mut b = DrivenNode::new("b");
    runtime().block_on(async {
        let raw = RawPeer::new(b.peers.local_address());
        let mut calls = raw.calls().await.unwrap();
        let refused = calls.tell(message(VERSION + 1, "raw", 1)).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let version = format!("version {}", VERSION + 1);
        assert!(refused.message().contains(&version), "{refused}");
        let refused = calls.tell(message(VERSION, "No Name", 1)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        calls.tell(message(VERSION, "raw", 1)).await.unwrap();
        // The connection now belongs to `raw`.
        let refused = calls.tell(message(VERSION, "other", 1)).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        let question = Question { version: 0, ..Question::default() };
        let refused = calls.ask(question.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let question = Question { version: VERSION, from: "other".into(), ..question };
        assert_eq!(calls.ask(question).await.unwrap_err().code(), Code::PermissionDenied);
        let refused = remote_session(&mut calls, vec![Some(open(9, "raw"))]).await.unwrap();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let refused = remote_session(&mut calls, vec![Some(open(VERSION, "other"))]).await.unwrap();
        assert_eq!(refused.code(), Code::PermissionDenied);
    });
    assert_eq!(b.reported().0.as_str(), "raw");
    let mut honest = DrivenNode::new("a");
    honest.ask_through(&mut b, 1);
    assert!(b.waiting.is_empty(), "{:?}", b.waiting);
}

#[test]
fn what_is_too_long_or_out_of_order_ends_its_call_and_nothing_else() {
    let mut b = DrivenNode::new("b");
    runtime().block_on(async {
        let raw = RawPeer::new(b.peers.local_address());
        let mut calls = raw.calls().await.unwrap().max_encoding_message_size(64 << 20);
        let long = calls.tell(message(VERSION, "raw", MESSAGE_BYTES_MAX + 1)).await.unwrap_err();
        assert_eq!(long.code(), Code::InvalidArgument);
        let long = calls.tell(message(VERSION, "raw", 1 << 20)).await.unwrap_err();
        assert_eq!(long.code(), Code::OutOfRange, "refused by its length, before it is read");
        let body = vec![0; ASK_BYTES_MAX + 1].into();
        let question = Question { version: VERSION, from: "raw".into(), incarnation: 1, body };
        assert_eq!(calls.ask(question).await.unwrap_err().code(), Code::InvalidArgument);
        let mut request = Request::new(Question::default());
        request.metadata_mut().insert("grpc-timeout", "soon".parse().unwrap());
        assert_eq!(calls.ask(request).await.unwrap_err().code(), Code::InvalidArgument);
        let data = || Some(Kind::Data(Bytes::from_static(b"x")));
        for first in [None, data(), Some(Kind::End(End::default()))] {
            let refused = remote_session(&mut calls, vec![first]).await.unwrap();
            assert_eq!(refused.code(), Code::InvalidArgument);
        }
        assert!(remote_session(&mut calls, vec![]).await.is_some());
        let long = Some(Kind::Data(vec![0; REMOTE_SESSION_FRAME_BYTES_MAX + 1].into()));
        for second in [None, Some(open(VERSION, "raw")), long] {
            remote_session(&mut calls, vec![Some(open(VERSION, "raw")), second]).await;
        }
    });
    for _ in 0..3 {
        let (id, ..) = b.opened();
        assert_eq!(b.ended(id).0, None);
    }
    DrivenNode::new("a").ask_through(&mut b, 1);
}

#[test]
fn garbage_and_silence_on_the_port_hurt_no_client() {
    let mut b = DrivenNode::new("b");
    let connect = || TcpStream::connect(b.peers.local_address()).unwrap();
    let mut garbage = Vec::new();
    for seed in 0..10_u32 {
        let mut stream = connect();
        let bytes: Vec<u8> =
            (0..4096_u32).map(|at| ((at ^ seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let _ = stream.write_all(&bytes);
        garbage.push(stream);
    }
    // The preface of HTTP/2 and then garbage, a client of HTTP/1, and no data at all.
    for text in ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense", "GET / HTTP/1.1\r\n\r\n", ""] {
        let mut stream = connect();
        let _ = stream.write_all(text.as_bytes());
        garbage.push(stream);
    }
    DrivenNode::new("a").ask_through(&mut b, 1);
    for stream in garbage {
        assert!(is_closed(stream), "a stranger may stay");
    }
    DrivenNode::new("a").ask_through(&mut b, 2);
    assert!(b.waiting.is_empty(), "{:?}", b.waiting);
}

#[test]
fn a_body_that_is_no_message_gets_a_status() {
    let mut b = DrivenNode::new("b");
    runtime().block_on(async {
        let raw = RawPeer::new(b.peers.local_address());
        // A frame in place of a message: its tags have another meaning there.
        let mut live = raw.link.connection(&raw.client, Lane::Work).await.unwrap();
        for (path, body) in [
            ("/farrow.v1.Node/Tell", &b"\0\0\0\0\x03\xff\xff\xff"[..]),
            ("/farrow.v1.Node/Tell", b"\x01\0\0\0\x03abc"),
            ("/farrow.v1.Node/Ask", b"\0\xff\xff\xff\xff"),
            ("/farrow.v1.Node/Ask", b"\0"),
            ("/farrow.v1.Node/RemoteSession", b"\0\0\0\0\x02\x0a\x7f"),
            ("/farrow.v1.Node/Other", b""),
        ] {
            let body = tonic::body::Body::new(Once(Some(Bytes::from_static(body))));
            let uri = format!("http://node.farrow.internal{path}");
            let request = http::Request::post(uri)
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(body)
                .unwrap();
            let answer = tower_service::Service::call(&mut live, request).await.unwrap();
            let status = answer.headers().get("grpc-status").map(|code| code.to_str().unwrap());
            assert!(status.is_some_and(|code| code != "0"), "{path}: {answer:?}");
        }
    });
    DrivenNode::new("a").ask_through(&mut b, 1);
    assert!(b.waiting.is_empty(), "{:?}", b.waiting);
}

/// A body in one piece.
struct Once(Option<Bytes>);

impl hyper::body::Body for Once {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(hyper::body::Frame::data(bytes))))
    }
}

#[test]
fn a_flood_is_refused_and_others_are_served() {
    let mut limits = options("b");
    limits.limits.calls_per_second = 100;
    let mut b = DrivenNode::with(limits);
    let to = b.peers.local_address();
    let (stop, is_stopped) = std::sync::mpsc::channel::<()>();
    let flood = std::thread::spawn(move || {
        runtime().block_on(async {
            let raw = RawPeer::new(to);
            let calls = raw.calls().await.unwrap();
            let (mut taken, mut refused) = (0, 0_usize);
            while is_stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                let tells = (0..200).map(|_| {
                    let mut calls = calls.clone();
                    async move { calls.tell(message(VERSION, "raw", 10)).await }
                });
                for result in futures_util::future::join_all(tells).await {
                    match result {
                        Ok(_) => taken += 1,
                        Err(status) => {
                            assert_eq!(status.code(), Code::ResourceExhausted);
                            refused += usize::from(status.message().contains("calls a second"));
                        }
                    }
                }
            }
            (taken, refused)
        })
    });
    let mut a = DrivenNode::new("a");
    for token in 0..5 {
        a.ask_through(&mut b, token);
        a.peers.send_message(&b.address(), Bytes::from_static(b"alive"));
        b.next(|event| {
            matches!(event, PeerEvent::Message { from, .. } if from.as_str() == "a").then_some(())
        });
    }
    // Waits for at least one round of the flood.
    let until = Instant::now() + LIMIT;
    while Instant::now() < until && b.waiting.len() < 10 {
        b.wait(Instant::now() + Duration::from_millis(10));
    }
    drop(stop);
    let (taken, refused) = flood.join().unwrap();
    assert!(taken > 0 && refused > taken, "{taken} taken, {refused} refused");
}

#[test]
fn messages_that_no_client_takes_are_refused_beyond_their_limit() {
    let mut few = options("b");
    few.limits.messages_waiting_max = 3;
    let mut b = DrivenNode::with(few);
    runtime().block_on(async {
        let raw = RawPeer::new(b.peers.local_address());
        let mut calls = raw.calls().await.unwrap();
        for _ in 0..3 {
            calls.tell(message(VERSION, "raw", 1)).await.unwrap();
        }
        let refused = calls.tell(message(VERSION, "raw", 1)).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        b.reported();
        calls.tell(message(VERSION, "raw", 1)).await.unwrap();
    });
}

#[test]
fn connections_beyond_the_limits_are_closed_and_those_that_stand_go_on() {
    let mut few = options("b");
    few.limits.strangers_per_address_max = 3;
    let mut b = DrivenNode::with(few);
    let mut a = DrivenNode::new("a");
    a.ask_through(&mut b, 1);
    let mut strangers: Vec<_> =
        (0..8).map(|_| TcpStream::connect(b.peers.local_address()).unwrap()).collect();
    let last = strangers.pop().unwrap();
    assert!(is_closed(last));
    a.ask_through(&mut b, 2);
    for stranger in strangers {
        assert!(is_closed(stranger));
    }
    // The permits were released.
    DrivenNode::new("c").ask_through(&mut b, 3);
}

#[test]
fn a_server_that_talks_nonsense_is_an_error_here() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: PeerAddress = listener.local_addr().unwrap().to_string().parse().unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 100]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nnonsense");
        }
    });
    let mut a = DrivenNode::new("a");
    a.peers.ask(1, &address, Bytes::new(), LIMIT).unwrap();
    assert!(a.answered(1).is_err());
    a.peers.send_message(&address, Bytes::new());
    server.join().unwrap();
    let mut b = DrivenNode::new("b");
    a.ask_through(&mut b, 2);
}

/// Unread bodies have a total limit, of which one node has a quarter. Bodies beyond it are refused
/// with the numbers, and another node is served.
#[test]
fn bodies_of_one_node_take_its_part_of_the_memory_and_come_back() {
    let mut b = DrivenNode::new("b");
    let (_, all) = b.peers.buffered_bytes();
    let to = b.peers.local_address();
    let (sender, refused) = std::sync::mpsc::channel();
    let greedy = std::thread::spawn(move || {
        runtime().block_on(async {
            let raw = RawPeer::new(to);
            let calls = raw.calls().await.unwrap();
            let asks = (0..8).map(|_| {
                let (mut calls, sender) = (calls.clone(), sender.clone());
                async move {
                    let body = vec![7; ASK_BYTES_MAX].into();
                    let from = "raw".to_owned();
                    let question = Question { version: VERSION, from, incarnation: 7, body };
                    let mut request = Request::new(question);
                    request.set_timeout(Duration::from_secs(5));
                    if let Err(status) = calls.ask(request).await {
                        let _ = sender.send(status);
                    }
                }
            });
            futures_util::future::join_all(asks).await;
        });
    });
    let status = refused.recv_timeout(LIMIT).unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains(&format!("of {} B free for this node", all / 4)), "{status}");
    assert!(b.peers.buffered_bytes().0 <= all / 4);
    let mut a = DrivenNode::new("a");
    a.peers.ask(1, &b.address(), Bytes::from_static(b"?"), LIMIT).unwrap();
    let (_, (token, body)) = b.next(|event| match event {
        PeerEvent::Request { token, from, body, .. } if from.as_str() == "a" => {
            Some((*token, body.clone()))
        }
        _ => None,
    });
    b.peers.answer(token, body).unwrap();
    assert_eq!(a.answered(1).unwrap().body, &b"?"[..]);
    b.waiting.clear();
    greedy.join().unwrap();
    let until = Instant::now() + LIMIT;
    while b.peers.buffered_bytes().0 > 0 {
        assert!(Instant::now() < until, "{:?}", b.peers.buffered_bytes());
        b.wait(Instant::now() + Duration::from_millis(10));
        b.waiting.clear();
    }
}
