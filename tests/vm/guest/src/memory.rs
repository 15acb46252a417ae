//! Two nodes, each on its part of the memory of a device that both machines map.

use std::collections::HashMap;
use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use farrow::{Client, Error, Length, Object, ObjectOptions, Reach, Span, Value, Writer};

use crate::node::{Machine, check_maker, made_here};
use crate::report::{Anything, PATIENCE, PAUSE, same, step, until};
use crate::steer::{Steered, obey};
use crate::table::{ROWS, check_table, table, value_of};

/// Each node's part of the device: the heap, and room for the tables before it.
const REGION: &str = "64MiB";
const REGION_STEP_MIB: u32 = 128;
const RACES: u32 = 10;
/// More than the smallest range for which all caches are written back.
const LARGE_BYTES: u64 = 20 << 20;
/// What b is granted in the memory of a, writes and does not seal.
const UNSEALED_BYTES: u64 = 4 << 20;
const FILLER_BYTES: u64 = 8 << 20;
/// Nothing that is still held may come back in so long.
const WHILE: Duration = Duration::from_secs(2);

/// Plays a guest.
pub(crate) fn run(name: &str, (own, peer): (&str, &str), device: &str) -> Anything {
    let (own, peer): (IpAddr, IpAddr) = (own.parse()?, peer.parse()?);
    let offset = if name == "a" { 0 } else { REGION_STEP_MIB };
    let region = format!("device:{device},{REGION},{offset}MiB");
    let machine = Machine::start(name, (own, peer), &["--node-local", "--region", &region])?;
    step(&format!("node {name} serves {REGION} of {device} from {offset} MiB on"));
    let guest = Guest { machine, held: HashMap::new(), writing: Vec::new() };
    if name == "a" { play(guest, own) } else { obey(guest, peer, done) }
}

struct Guest {
    machine: Machine,
    held: HashMap<String, Object>,
    writing: Vec<Writer>,
}

impl Guest {
    fn client(&self) -> &Client {
        &self.machine.client
    }

    /// How often all caches were written back for the memory of a node, and lines published there.
    fn maintained(&self, home: &str) -> Anything<(u64, u64)> {
        let stats = self.client().at(home)?.stats()?;
        let fabric = stats.fabrics.get("device").ok_or("no device")?;
        Ok((fabric.all_caches_calls, fabric.published_lines))
    }

    /// Waits until both nodes live and each maps the memory of the other.
    fn settle(&self) -> Anything<String> {
        let members = self.machine.settle()?;
        for node in &members.nodes {
            if node.fabric != "device" {
                let (name, way, why) = (&node.name, &node.fabric, &node.why_not);
                return Err(format!("the memory of {name} is not mapped but {way}: {why}").into());
            }
            same(&node.name, &*node.coherence, "node-local")?;
        }
        Ok(format!("epoch {}", members.epoch))
    }

    fn put(&self, name: &str, seed: i64, home: &str) -> Anything<String> {
        let (schema, batch) = value_of(&table(seed, ROWS))?;
        let batches = [batch];
        let value = Value::Table { schema: &schema, batches: &batches };
        let metadata = made_here()?;
        let options =
            ObjectOptions { name: Some(name), metadata: Some(&metadata), ..Default::default() };
        let far = self.client().at(home)?;
        let before = far.stats()?.fabrics["device"].published_lines;
        let begin = Instant::now();
        far.put_with(&value, &options)?;
        let took = begin.elapsed().as_millis();
        let published = far.stats()?.fabrics["device"].published_lines - before;
        Ok(format!("put in {took} ms, {published} lines published"))
    }

    /// Gets a table, made under the other kernel unless `is_own`, and sees that all of it is right
    /// and lies in the mapped memory of `home`.
    fn check(&self, name: &str, seed: i64, home: &str, is_own: bool) -> Anything<String> {
        let far = self.client().at(home)?;
        let before = far.stats()?.fabrics["device"].refreshed_lines;
        let begin = Instant::now();
        let object = self.client().get(&name.into(), PATIENCE)?;
        let took = begin.elapsed().as_micros();
        check_maker(self.client(), name, is_own)?;
        let bytes =
            check_table(&object, seed, |pointer, bytes| far.locate(pointer, bytes).is_some())?;
        let refreshed = far.stats()?.fabrics["device"].refreshed_lines - before;
        Ok(format!("got in {took} us, {bytes} B in place, {refreshed} lines refreshed"))
    }

    /// Makes a name at the same moment as the other guest. True if it is ours.
    fn race(&self, round: u32) -> Anything<bool> {
        let at = |what: &str| {
            let what = format!("guest {} in round {round}, {what}", self.machine.name);
            move |error: Error| format!("{what}: {error}")
        };
        self.client().barrier("race", 2, PATIENCE).map_err(at("at the barrier"))?;
        let name = format!("race {round}");
        let won = match self.client().put(&Value::Bytes(self.machine.name.as_bytes()), Some(&name))
        {
            Ok(_) => true,
            Err(Error::AlreadyExists { .. }) => false,
            Err(error) => return Err(at("making the name")(error).into()),
        };
        let winner = self.client().get(&name.as_str().into(), PATIENCE).map_err(at("waiting"))?;
        let winner = winner.view()?.to_vec();
        same(&name, winner == self.machine.name.as_bytes(), won)?;
        Ok(won)
    }
}

/// Guest a: the script.
fn play(mut guest: Guest, own: IpAddr) -> Anything {
    let mut b = Steered::accept(own)?;
    step(&format!("both map each other's memory: {}", guest.settle()?));
    b.ask("settle")?;
    share(&guest, &mut b)?;
    large(&guest, &mut b)?;
    holds(&guest, &mut b)?;
    let mut wins = 0;
    for round in 0..RACES {
        b.tell(&format!("race {round}"))?;
        let won = guest.race(round)?;
        same(&format!("race {round}: winners"), (b.answer()? == "true") != won, true)?;
        wins += u32::from(won);
    }
    step(&format!("of {RACES} names made by both at once each has one owner; a won {wins}"));
    lose(&mut guest, &mut b)
}

/// Tables in either memory, made and used by either.
fn share(guest: &Guest, b: &mut Steered) -> Anything {
    for (name, seed, home) in [("a in a", 1, "a"), ("a in b", 2, "b")] {
        let made = guest.put(name, seed, home)?;
        let used = b.ask(&format!("check {seed} {home} false {name}"))?;
        step(&format!("table made in a in the memory of {home}: {made}; in b: {used}"));
        guest.check(name, seed, home, true)?;
    }
    for (name, seed, home) in [("b in b", 3, "b"), ("b in a", 4, "a")] {
        let made = b.ask(&format!("put {seed} {home} {name}"))?;
        let used = guest.check(name, seed, home, false)?;
        step(&format!("table made in b in the memory of {home}: {made}; in a: {used}"));
    }
    for (taken, home) in [("b in b", "a"), ("a in a", "b")] {
        match guest.put(taken, 5, home) {
            Err(error) => match error.downcast_ref() {
                Some(Error::AlreadyExists { name }) => same("name", &**name, taken)?,
                _ => return Err(format!("{taken:?} exists, yet: {error}").into()),
            },
            other => return Err(format!("{taken:?} exists, yet: {other:?}").into()),
        }
    }
    match b.ask("put 5 b a in a") {
        Err(error) if error.to_string().contains("is taken") => {}
        other => return Err(format!("\"a in a\" made again in b: {other:?}").into()),
    }
    step("a name that is taken is refused in both, wherever it lies");
    Ok(())
}

/// A range that is large enough is published, and refreshed, by writing back all caches, as the module
/// of the kernel allows it here.
fn large(guest: &Guest, b: &mut Steered) -> Anything {
    let writer = guest.client().create(LARGE_BYTES, Some("large"))?;
    let piece = large_piece();
    for number in 0..LARGE_BYTES / piece.len() as u64 {
        writer.memory().write_at(number * piece.len() as u64, &piece)?;
    }
    writer.seal()?;
    let view = guest.client().get(&"large".into(), PATIENCE)?.view()?;
    let offset = guest.client().locate(view.as_ptr(), view.len()).ok_or("not in the region")?;
    let span = Span::new(offset, Length(LARGE_BYTES));
    let before = guest.maintained("a")?;
    guest.client().region().publish(span)?;
    let after = guest.maintained("a")?;
    same("all caches were written back to publish", after.0 - before.0, 1)?;
    let lines = LARGE_BYTES / u64::from(farrow_memory::cache::line_bytes());
    same("lines published", after.1 - before.1, lines)?;
    let used = b.ask("large")?;
    drop(view);
    guest.client().delete(&["large".into()])?;
    step(&format!(
        "{lines} lines were published, and refreshed in b, by writing back all caches: {used}"
    ));
    Ok(())
}

fn large_piece() -> Vec<u8> {
    (0..1 << 20).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// What the other machine holds is not reused, and the home sees it without a message.
fn holds(guest: &Guest, b: &mut Steered) -> Anything {
    guest.put("held", 6, "a")?;
    b.ask("hold held")?;
    guest.client().delete(&["held".into()])?;
    let retiring = guest.client().stats()?.node.retiring;
    same("it waits for its reader", retiring > ROWS.unsigned_abs() * 8, true)?;
    // Enough to reuse the memory several times over, if it were free.
    let filler = vec![0xEE; FILLER_BYTES as usize];
    for _ in 0..20 {
        let id = guest.client().put(&Value::Bytes(&filler), None)?;
        guest.client().delete(&[id.into()])?;
    }
    b.ask("look 6 held")?;
    b.ask("drop held")?;
    let begin = Instant::now();
    while guest.client().stats()?.node.retiring > 0 {
        until(begin, || "what b let go of does not become free".to_owned())?;
    }
    step(&format!("{retiring} B that b held stayed until b let go, and are free again"));
    Ok(())
}

/// The death of the other daemon, and then of the other kernel.
fn lose(guest: &mut Guest, b: &mut Steered) -> Anything {
    let held = guest.client().get(&"b in b".into(), PATIENCE)?;
    guest.put("b reads", 8, "a")?;
    b.ask("hold b reads")?;
    b.ask("kill")?;
    let took = lost(guest.client(), "b in b")?;
    check_table(&held, 3, |_, _| true)?;
    guest.put("alone", 7, "a")?;
    guest.check("b in a", 4, "a", false)?;
    step(&format!("kill -9 of the daemon of b: NodeLost with its name in a after {took} ms"));
    step("what a holds in the memory of b stays good; what lies in a is used and made");
    guest.client().delete(&["b reads".into()])?;
    stays_retiring(guest, "its reader outlives its daemon")?;
    b.ask("restart")?;
    guest.settle()?;
    guest.check("b in b", 3, "b", false)?;
    b.ask("check 7 a false alone")?;
    step("the next daemon of b has the old tables, and both go on");
    stays_retiring(guest, "its reader is there")?;
    b.ask("look 8 b reads")?;
    b.ask("drop b reads")?;
    let begin = Instant::now();
    while guest.client().stats()?.node.retiring > 0 {
        until(begin, || "what b let go of does not become free".to_owned())?;
    }
    step("what a client of b held stayed without its daemon, until it let go");
    drop(held);
    let held = guest.client().get(&"b in b".into(), PATIENCE)?;
    guest.put("b keeps", 9, "a")?;
    b.ask("hold b keeps")?;
    let before = guest.client().stats()?.node.granted;
    b.ask(&format!("write a {UNSEALED_BYTES}"))?;
    let granted = guest.client().stats()?.node.granted;
    same("b was granted more", granted >= before + UNSEALED_BYTES, true)?;
    b.tell("off")?;
    let took = lost(guest.client(), "b in b")?;
    check_table(&held, 3, |_, _| true)?;
    step(&format!("machine b switched off: NodeLost after {took} ms, what a holds stays good"));
    take_back(guest, granted)?;
    check_table(&held, 3, |_, _| true)?;
    guest.machine.daemon.kill()?;
    Ok(())
}

/// What was deleted is not free while somebody may read it.
fn stays_retiring(guest: &Guest, why: &str) -> Anything<u64> {
    let begin = Instant::now();
    loop {
        let retiring = guest.client().stats()?.node.retiring;
        same(why, retiring > ROWS.unsigned_abs() * 8, true)?;
        if begin.elapsed() > WHILE {
            return Ok(retiring);
        }
        sleep(PAUSE);
    }
}

/// Machine b is gone, with a hold in the memory of a and space that it did not seal. That a node is
/// lost is not yet that its processes have ended, so nothing comes back before that is said; then
/// all of it does.
fn take_back(guest: &Guest, granted: u64) -> Anything {
    guest.client().delete(&["b keeps".into()])?;
    let retiring = stays_retiring(guest, "nobody said that its reader has ended")?;
    let before = guest.client().stats()?.node;
    same("granted, to b too", before.granted, granted)?;
    guest.client().forget_node("b")?;
    let after = guest.client().stats()?.node;
    same("clients", after.clients, 1)?;
    same("deleted and held", after.retiring, 0)?;
    same("in quarantine", after.quarantine, 0)?;
    same("b's space is back", after.granted + UNSEALED_BYTES <= before.granted, true)?;
    same("live objects", (after.objects, after.used) == (before.objects, before.used), true)?;
    let allocated = after.capacity - after.free;
    same("allocated", allocated, after.used + after.granted + after.quarantine)?;
    same("came back", after.free, before.free + before.granted - after.granted + retiring)?;
    // All of it can be used, by nobody's leave.
    let filler = vec![0xEE; FILLER_BYTES as usize];
    let mut made = Vec::new();
    for _ in 0..(after.free + after.granted) / FILLER_BYTES - 1 {
        made.push(guest.client().put(&Value::Bytes(&filler), None)?.into());
    }
    let full = guest.client().stats()?.node;
    same("nothing was evicted for it", full.evicted_total, before.evicted_total)?;
    same("it is used again", full.free + full.granted < 2 * FILLER_BYTES, true)?;
    guest.client().delete(&made)?;
    let came = after.free - before.free;
    step(&format!("{came} B that b held, was granted and left unsealed came back at nodes forget"));
    Ok(())
}

/// Waits until calls name the lost node; the milliseconds.
fn lost(client: &Client, name: &str) -> Anything<u128> {
    let begin = Instant::now();
    loop {
        match client.at("b").and_then(|far| far.create(1 << 20, None)) {
            Err(Error::NodeLost { node, .. }) => break same("lost", &*node, "b")?,
            Ok(writer) => drop(writer),
            // What was under way when it happened.
            Err(Error::Disconnected { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        until(begin, || "no error that names b".to_owned())?;
    }
    let took = begin.elapsed().as_millis();
    while client.members()?.find("b").is_none_or(|node| node.reach != Reach::Lost) {
        until(begin, || "the list of members does not show b as lost".to_owned())?;
    }
    match client.get(&name.into(), Duration::ZERO) {
        Err(Error::NodeLost { node, .. }) => same("lost", &*node, "b")?,
        other => return Err(format!("{name:?} in the memory of a lost node: {other:?}").into()),
    }
    Ok(took)
}

fn done(guest: &mut Guest, line: &str) -> Anything<String> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["settle"] => guest.settle(),
        ["put", seed, home, ..] => guest.put(&words[3..].join(" "), seed.parse()?, home),
        ["check", seed, home, is_own, ..] => {
            guest.check(&words[4..].join(" "), seed.parse()?, home, is_own.parse()?)
        }
        ["hold", ..] => {
            let name = &words[1..].join(" ");
            let object = guest.client().get(&name.as_str().into(), PATIENCE)?;
            guest.held.insert(name.clone(), object);
            Ok(String::new())
        }
        ["look", seed, ..] => {
            let object = guest.held.get(&words[2..].join(" ")).ok_or("not held")?;
            check_table(object, seed.parse()?, |_, _| true).map(|bytes| bytes.to_string())
        }
        ["drop", ..] => {
            let dropped = guest.held.remove(&words[1..].join(" "));
            dropped.map(|_| String::new()).ok_or("not held".into())
        }
        ["write", home, bytes] => {
            let writer = guest.client().at(home)?.create(bytes.parse()?, None)?;
            writer.memory().write_at(0, &[0xBB; 5000])?;
            guest.writing.push(writer);
            Ok(String::new())
        }
        ["large"] => {
            let before = guest.maintained("a")?;
            let view = guest.client().get(&"large".into(), PATIENCE)?.view()?;
            let is_right = view.chunks(1 << 20).all(|chunk| chunk == large_piece());
            same("the bytes are those of the maker", is_right, true)?;
            let after = guest.maintained("a")?;
            same("all caches were written back to refresh", after.0 - before.0, 1)?;
            Ok(format!("{} B", view.len()))
        }
        ["race", round] => guest.race(round.parse()?).map(|won| won.to_string()),
        ["kill"] => guest.machine.kill_daemon(),
        ["restart"] => {
            guest.machine.restart_daemon()?;
            guest.settle()
        }
        _ => Err(format!("unknown: {line}").into()),
    }
}
