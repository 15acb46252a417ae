//! Two nodes with nothing in common but a network that delays, drops and reorders packets.
//!
//! The commands of guest b are in `commands.rs`.

mod commands;
#[cfg(feature = "rdma")]
pub(crate) mod rdma;

use std::net::IpAddr;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use farrow::error::NodeUnreachable;
use farrow::{Client, Error, Object, Reach, Value};

use commands::Site;

use crate::node::{LEASE_MS, Machine, NODE_PORT};
use crate::report::{Anything, PATIENCE, same, step, until};
use crate::steer::{Steered, obey};
use crate::table::{ROWS, check_table};

const MEMORY: &str = "96MiB";
/// The only port of which the host may change bytes.
const DATA_PORT: u16 = 7422;
/// How many segments with data the host changes.
const SPOILED: u32 = 3;
/// The host has heard of a request after so long.
const WHILE: Duration = Duration::from_secs(2);
/// More than the longest pause between two attempts of a retried packet.
const CUT: Duration = Duration::from_millis(2 * LEASE_MS);

/// Plays a guest. The script and its answers use another cable than the nodes.
pub(crate) fn run(name: &str, hosts: (&str, &str), steer: (&str, &str)) -> Anything {
    let hosts: (IpAddr, IpAddr) = (hosts.0.parse()?, hosts.1.parse()?);
    let data = format!("{}:{DATA_PORT}", hosts.0);
    let mut options = vec!["--memory", MEMORY, "--data-listen", &data];
    if cfg!(feature = "rdma") {
        // Made later: until then every large object is fetched by TCP instead.
        options.extend(["--rdma", "rxe0"]);
    }
    let machine = Machine::start(name, hosts, &options)?;
    step(&format!("node {name} serves {MEMORY} at {}:{NODE_PORT}", hosts.0));
    let site = Site::new(machine);
    match name {
        "a" => play(&site, Steered::accept(steer.0.parse()?)?),
        _ => obey(site, steer.1.parse()?, commands::done),
    }
}

/// Guest a: the script.
fn play(site: &Site, mut b: Steered) -> Anything {
    let b = &mut b;
    step(&format!("the nodes reach each other by {}", site.settle()?));
    b.ask("settle")?;
    tables(site, b)?;
    parts(site, b)?;
    huge(site, b)?;
    deletes(site, b)?;
    spoiled_wire(site, b)?;
    spoiled_memory(site, b)?;
    #[cfg(feature = "rdma")]
    rdma::play(site, b)?;
    cut(site, b)?;
    let lossy = commands::network_counters()?;
    for (what, count) in &lossy {
        same(&format!("{what}: {count}, more than 0"), *count > 0, true)?;
    }
    let words: Vec<String> = lossy.iter().map(|(what, count)| format!("{count} {what}")).collect();
    step(&format!("the network was as bad as it should be: {}", words.join(", ")));
    Ok(())
}

/// Whole tables, by each guest from the other, and put in the memory of the other.
fn tables(site: &Site, b: &mut Steered) -> Anything {
    site.put("a in a", 1, "a")?;
    step(&format!("table of a in b: {}", b.ask("check 1 false a in a")?));
    b.ask("put 2 b b in b")?;
    step(&format!("table of b in a: {}", site.check("b in b", 2, false)?));
    let made = site.put("a in b", 3, "b")?;
    step(&format!("put by a in the memory of b: {made}; in b: {}", b.ask("place 3 a in b")?));
    let made = b.ask("put 4 a b in a")?;
    step(&format!("put by b in the memory of a: {made}; in a: {}", site.place("b in a", 4)?));
    match site.put("b in b", 5, "b") {
        Err(error) if is_taken(error.downcast_ref()) => {}
        other => return Err(format!("\"b in b\" exists, yet: {other:?}").into()),
    }
    step("a name that is taken is refused");
    Ok(())
}

fn is_taken(error: Option<&Error>) -> bool {
    matches!(error, Some(Error::AlreadyExists { .. }))
}

/// Columns and rows of objects that the reader does not have whole.
fn parts(site: &Site, b: &mut Steered) -> Anything {
    b.ask("put 6 b parts of b")?;
    for (columns, start, stop) in [("numbers", 0, ROWS), ("*", 1234, 1299), ("words", -70, -7)] {
        let taken = site.part("parts of b", 6, columns, (start, stop))?;
        step(&format!("columns {columns}, rows {start}..{stop} of a table of b: {taken}"));
    }
    site.put("parts of a", 7, "a")?;
    step(&format!("a part in b: {}", b.ask("part 7 words 500 600 parts of a")?));
    let whole = site.check("parts of b", 6, false)?;
    step(&format!("the same table, whole: {whole}"));
    Ok(())
}

/// A huge table, appended to in turns.
fn huge(site: &Site, b: &mut Steered) -> Anything {
    site.append(&[10])?;
    b.ask("append 10 11")?;
    site.append(&[10, 11, 12])?;
    b.ask("append 10 11 12 13")?;
    let seeds = [10, 11, 12, 13];
    let read = site.read_huge(&seeds)?;
    step(&format!("a huge table of 4 chunks, two by each: {read}"));
    step(&format!("the same in b: {}", b.ask("huge 10 11 12 13")?));
    Ok(())
}

/// What one guest deletes, neither finds.
fn deletes(site: &Site, b: &mut Steered) -> Anything {
    for (name, is_by_own) in [("b in b", true), ("a in a", false)] {
        site.client().get(&name.into(), PATIENCE)?;
        b.ask(&format!("check {} {} {name}", if is_by_own { 2 } else { 1 }, is_by_own))?;
        if is_by_own {
            site.delete(name)?;
        } else {
            b.ask(&format!("delete {name}"))?;
        }
        site.is_absent(name)?;
        b.ask(&format!("absent {name}"))?;
    }
    step("after a delete by either neither finds the object");
    Ok(())
}

/// The host changes bytes of segments on their way, and their checksums, so that TCP delivers them.
/// No reader may see one.
fn spoiled_wire(site: &Site, b: &mut Steered) -> Anything {
    let names: Vec<String> = (0..SPOILED).map(|number| format!("through {number}")).collect();
    for (seed, name) in (20..).zip(&names) {
        b.ask(&format!("put {seed} b {name}"))?;
    }
    println!("vm: cable: spoil {SPOILED}");
    sleep(WHILE);
    for (seed, name) in (20..).zip(&names) {
        site.check(name, seed, false)?;
    }
    step("no byte that was changed on the cable is in any of the tables");
    Ok(())
}

/// A sealed byte is changed in the memory of its home: what arrives is wrong, and the comparison
/// that all of this test relies on has to see it.
fn spoiled_memory(site: &Site, b: &mut Steered) -> Anything {
    b.ask("put 30 b wrong")?;
    b.ask("spoil wrong")?;
    match site.check("wrong", 30, false) {
        Err(error) if error.to_string().starts_with("the values are those of the maker") => {}
        other => return Err(format!("a sealed byte was changed, yet: {other:?}").into()),
    }
    site.delete("wrong")?;
    step("a sealed byte that is changed in the memory of b is noticed in a");
    Ok(())
}

/// The network is cut longer than two leases, and repaired.
fn cut(site: &Site, b: &mut Steered) -> Anything {
    b.ask("put 40 b held")?;
    b.ask("put 41 b unread")?;
    site.put("of a", 42, "a")?;
    site.put("unread of a", 43, "a")?;
    let held = site.client().get(&"held".into(), PATIENCE)?;
    let cut = Instant::now();
    b.ask("link eth0 down")?;
    let took = lost(site.client(), cut)?;
    check_table(&held, 40, |_, _| true)?;
    goes_on(site)?;
    step(&format!("link down: NodeLost with the name of b in a {took} ms after it; a goes on"));
    step(&format!("in b: {}", b.ask("refused unread of a")?));
    b.ask("check 40 true held")?;
    b.ask("link eth0 up")?;
    step(&format!("link up: the nodes reach each other by {}", site.settle()?));
    b.ask("settle")?;
    drop(held);
    whole_again(site, b)
}

/// A node alone reads and writes. It makes no names, unless it knows those of the lost node.
fn goes_on(site: &Site) -> Anything {
    site.check("of a", 42, true)?;
    let id = site.client().put(&Value::Bytes(b"alone"), None)?;
    let read = site.client().get(&id.into(), PATIENCE)?.view()?;
    same("what is put is read", &*read == b"alone", true)?;
    match site.put("named", 44, "a") {
        Ok(_) => site.delete("named").map(drop),
        Err(error) => match error.downcast_ref() {
            Some(Error::NodeLost { node, .. }) => same("lost", &**node, "b"),
            _ => Err(format!("a name made without b: {error}").into()),
        },
    }
}

/// Asks for what b has until the error names b as lost; the milliseconds since the cut.
fn lost(client: &Client, cut: Instant) -> Anything<u128> {
    loop {
        let begin = Instant::now();
        match client.get(&"unread".into(), Duration::ZERO) {
            Err(Error::NodeLost { node, .. }) => {
                same("lost", &*node, "b")?;
                let members = client.members()?;
                let is_lost = members.find("b").is_none_or(|node| node.reach == Reach::Lost);
                if is_lost {
                    return Ok(cut.elapsed().as_millis());
                }
            }
            Err(Error::NodeUnreachable(NodeUnreachable { node, .. })) => {
                same("unreachable", &*node, "b")?
            }
            // Of a network that is cut nothing arrives.
            other => return Err(format!("a get by a link that is down: {other:?}").into()),
        }
        same("a get ends within two leases", begin.elapsed() < CUT, true)?;
        until(cut, || "no error that names b as lost".to_owned())?;
    }
}

/// Everything is there and everything can be done that could be before the cut.
fn whole_again(site: &Site, b: &mut Steered) -> Anything {
    step(&format!("what nobody had read: {}", site.check("unread", 41, false)?));
    site.put("named", 44, "a")?;
    b.ask("check 44 false named")?;
    b.ask("check 43 false unread of a")?;
    site.put("again in b", 45, "b")?;
    b.ask("place 45 again in b")?;
    b.ask("put 46 a again in a")?;
    site.place("again in a", 46)?;
    site.append(&[10, 11, 12, 13, 14])?;
    b.ask("append 10 11 12 13 14 15")?;
    site.read_huge(&[10, 11, 12, 13, 14, 15])?;
    b.ask("huge 10 11 12 13 14 15")?;
    site.delete("unread")?;
    b.ask("absent unread")?;
    step("tables, puts, appends and deletes go on in both");
    Ok(())
}

/// Takes a network of this machine down, or up.
fn set_link(device: &str, state: &str) -> Anything<String> {
    let ended = Command::new("/bin/ip").args(["link", "set", "dev", device, state]).status()?;
    same("ip link set", ended.success(), true)?;
    Ok(String::new())
}

/// True of memory that this client's node lends.
fn is_own(client: &Client, object: &Object) -> bool {
    object.id().region().0 == client.region_uid()
}
