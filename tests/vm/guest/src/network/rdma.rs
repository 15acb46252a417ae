//! Large objects read by the network card, here one that the kernel emulates over Ethernet, on a
//! cable of its own. The nodes' own network stays as bad as it is.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::{FileMap, Length, Offset, Span};
use farrow_rdma::{Endpoint, RdmaError, RemoteRange};

use super::commands::Site;
use crate::report::{Anything, PATIENCE, same, step, until};
use crate::steer::Steered;
use crate::table::check_table;

const DEVICE: &str = "rxe0";
/// Longer than a device tries again.
const STALL: Duration = Duration::from_secs(20);
const SHORT_STALL: Duration = Duration::from_secs(2);
const MAP_BYTES: u64 = 1 << 20;

pub(super) fn play(site: &Site, b: &mut Steered) -> Anything {
    add_card()?;
    b.ask("card")?;
    rights_end()?;
    b.ask("put 50 b by card 0")?;
    let read = read_by(site, 50, "b")?;
    step(&format!("a table of b read by RDMA in a: {read}"));
    site.put("by card 0 of a", 51, "a")?;
    step(&format!("a table of a read by RDMA in b: {}", b.ask("reads 51 a")?));
    // Its cable is cut: TCP takes over, and no byte is wrong.
    b.ask("put 52 b by TCP again")?;
    b.ask("link eth2 down")?;
    let read = site.check("by TCP again", 52, false)?;
    let way = site.settle()?;
    same(&format!("{way} without the cable of the cards"), way.contains("rdma"), false)?;
    step(&format!("without the cable of the cards: {read}, {way}"));
    Ok(())
}

/// Makes the device, which the nodes were told of before.
pub(super) fn add_card() -> Anything<String> {
    let words = ["link", "add", DEVICE, "type", "rxe", "netdev", "eth2"];
    let ended = Command::new("/bin/rdma").args(words).status()?;
    same("rdma link", ended.success(), true)?;
    Ok(String::new())
}

/// Reads a table of the other node until one came by its card, which is tried again after a pause.
/// Every one is compared.
pub(super) fn read_by(site: &Site, seed: i64, home: &str) -> Anything<String> {
    let suffix = if home == "a" { " of a" } else { "" };
    let name = format!("by card 0{suffix}");
    let begin = Instant::now();
    loop {
        let started = Instant::now();
        let object = site.client().get(&name.as_str().into(), PATIENCE)?;
        let took = started.elapsed().as_millis();
        let bytes = check_table(&object, seed, |_, _| true)?;
        drop(object);
        let way = site.settle()?;
        if way.contains("rdma") {
            return Ok(format!("{bytes} B in {took} ms, {way}"));
        }
        // Make room for another try: without its replica the object is fetched again.
        site.client().evict(u64::MAX)?;
        until(begin, || format!("{home} is reached by {way}"))?;
    }
}

/// What a home has taken back, the card reads no more: not by a registration that ended, not by a
/// key of another connection, not after the home's end. Both ends are of this machine.
fn rights_end() -> Anything {
    let home = map(1)?;
    let whole = Span::new(Offset(0), Length(MAP_BYTES));
    let (mut there, mut here) = connected()?;
    let exposed = there.expose(&home, Span::new(Offset(100), Length(5000)))?;
    let read = |end: &mut Endpoint, (offset, length), key, stall| -> Anything {
        let to = map(0)?;
        let from = Span::new(Offset(offset), Length(length));
        let range = RemoteRange { from, key, to: Offset(offset) };
        end.read(&to, &[range], stall, &|| false)?;
        let is_right = to.sealed(from)? == home.sealed(from)?;
        let is_alone = to.sealed(Span::new(Offset(0), Length(offset)))?.iter().all(|it| *it == 0);
        same("exactly these bytes are read", is_right && is_alone, true)
    };
    read(&mut here, (100, 5000), exposed.key(), STALL)?;
    refused("a byte too many", read(&mut here, (100, 5001), exposed.key(), STALL))?;
    // An error ends a connection, so each case has a new one.
    let (other_home, mut other) = connected()?;
    let by_other = read(&mut other, (100, 5000), exposed.key(), STALL);
    refused("what is exposed on another connection", by_other)?;
    drop((exposed, there, other_home));
    (there, here) = connected()?;
    let exposed = there.expose(&home, whole)?;
    let key = exposed.key();
    drop(exposed);
    refused("what is exposed no more", read(&mut here, (100, 5000), key, STALL))?;
    (there, here) = connected()?;
    let exposed = there.expose(&home, whole)?;
    read(&mut here, (0, MAP_BYTES), exposed.key(), STALL)?;
    // As of a member that is cut off. Nobody answers, which a card notices late.
    drop(there);
    refused(
        "what an ended home exposed",
        read(&mut here, (100, 5000), exposed.key(), SHORT_STALL),
    )?;
    step("a card reads what is exposed on its connection, not a byte more, and nothing afterwards");
    Ok(())
}

/// The device, and not the comparison, has to fail.
fn refused(what: &str, outcome: Anything) -> Anything {
    match outcome {
        Err(error) if error.is::<RdmaError>() => Ok(()),
        other => Err(format!("{what} was read: {other:?}").into()),
    }
}

fn connected() -> Anything<(Endpoint, Endpoint)> {
    let (mut one, mut other) = (Endpoint::open(DEVICE)?, Endpoint::open(DEVICE)?);
    let (of_one, of_other) = (one.address(), other.address());
    one.connect(&of_other)?;
    other.connect(&of_one)?;
    Ok((one, other))
}

/// Zeros, or a pattern.
fn map(factor: u64) -> Anything<Arc<FileMap>> {
    let file = tempfile()?;
    file.set_len(MAP_BYTES)?;
    let map = FileMap::new(file.into(), 0, Length(MAP_BYTES), true)?;
    let bytes: Vec<u8> =
        (0..MAP_BYTES).map(|n| ((n * factor * 2_654_435_761) >> 13) as u8).collect();
    map.write(Offset(0), &bytes)?;
    Ok(Arc::new(map))
}

/// A file that has no name any more.
fn tempfile() -> Anything<std::fs::File> {
    let path = format!("/dev/shm/map-{:?}", Instant::now());
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
