//! What runs in the two virtual machines of `tests/vm`: each starts a real `farrowd` on its part of
//! the memory that both share. Guest `a` plays the script; guest `b` does what `a` tells it over a
//! connection of their own, so that nothing under test is used to steer the test.
//!
//! vm_guest certs DIR A_HOST B_HOST    makes the certificates, on the host
//! vm_guest a|b DEVICE LISTEN PEER     plays the guest
#![allow(clippy::print_stdout)] // the console is how the host hears of it

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use farrow::{
    BatchData, Client, ConnectOptions, Error, Length, Object, ObjectOptions, Reach, Rebuilt,
    SchemaNode, Span, Value, Writer,
};

type Anything<T = ()> = Result<T, Box<dyn StdError>>;

const SOCKET: &str = "/run/farrow.sock";
/// Emulated processors are slow, and the host may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long live nodes may fail to map each other's memory before that is a failure.
const UNMAPPED_PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// Long enough for a guest that gets no time for seconds on a busy host.
const LEASE_MS: &str = "10000";
const NODE_PORT: u16 = 7420;
const STEER_PORT: u16 = 7421;
/// Each node's part of the device: the heap, and room for the tables before it.
const REGION: &str = "64MiB";
const REGION_STEP_MIB: u32 = 128;
const ROWS: i64 = 20_000;
const RACES: u32 = 10;
/// More than the smallest range for which all caches are written back.
const LARGE_BYTES: u64 = 20 << 20;
/// What b is granted in the memory of a, writes and does not seal.
const UNSEALED_BYTES: u64 = 4 << 20;
const FILLER_BYTES: u64 = 8 << 20;
/// Nothing that is still held may come back in so long.
const WHILE: Duration = Duration::from_secs(2);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["certs", dir, a, b] => certs(Path::new(dir), a, b),
        ["a", device, own, peer] => Guest::start("a", device, own, peer).and_then(play),
        ["b", device, own, peer] => Guest::start("b", device, own, peer).and_then(obey),
        _ => Err("usage: vm_guest certs DIR A_HOST B_HOST | a|b DEVICE LISTEN PEER".into()),
    };
    match result {
        Ok(()) if words.first() == Some(&"certs") => {}
        Ok(()) => println!("vm: PASS"),
        Err(error) => {
            println!("vm: FAIL: {error}");
            std::process::exit(1);
        }
    }
}

fn certs(dir: &Path, a: &str, b: &str) -> Anything {
    let day = Duration::from_secs(86_400);
    farrow_cluster::certs::init(dir, day)?;
    for (name, host) in [("a", a), ("b", b)] {
        farrow_cluster::certs::issue(dir, name, &[host.to_owned()], day)?;
    }
    Ok(())
}

/// One machine: its daemon, and a client of it.
struct Guest {
    name: &'static str,
    own: IpAddr,
    peer: IpAddr,
    command: Command,
    daemon: Child,
    client: Client,
    held: HashMap<String, Object>,
    writing: Vec<Writer>,
}

impl Guest {
    fn start(name: &'static str, device: &str, own: &str, peer: &str) -> Anything<Self> {
        check_the_checks()?;
        let (own, peer): (IpAddr, IpAddr) = (own.parse()?, peer.parse()?);
        let offset = if name == "a" { 0 } else { REGION_STEP_MIB };
        let mut command = Command::new("/bin/farrowd");
        command.args([
            "--unsupervised",
            "--socket",
            SOCKET,
            "--node-local",
            "--certs",
            "/certs",
            "--name",
            name,
        ]);
        command.args(["--region", &format!("device:{device},{REGION},{offset}MiB")]);
        command.args(["--listen", &format!("{own}:{NODE_PORT}"), "--lease-ms", LEASE_MS]);
        if name == "b" {
            command.args(["--join", &format!("{peer}:{NODE_PORT}")]);
        }
        let (daemon, client) = (command.spawn()?, connect()?);
        let (held, writing) = (HashMap::new(), Vec::new());
        let guest = Self { name, own, peer, command, daemon, client, held, writing };
        step(&format!("node {name} serves {REGION} of {device} from {offset} MiB on"));
        Ok(guest)
    }

    /// How often all caches were written back for the memory of a node, and lines published there.
    fn maintained(&self, home: &str) -> Anything<(u64, u64)> {
        let stats = self.client.at(home)?.stats()?;
        let fabric = stats.fabrics.get("device").ok_or("no device")?;
        Ok((fabric.all_caches_calls, fabric.published_lines))
    }

    /// Waits until both nodes live and each maps the memory of the other.
    fn settle(&self) -> Anything<String> {
        let (begin, mut unmapped) = (Instant::now(), None);
        loop {
            let members = self.client.members()?;
            let live = members.nodes.iter().filter(|node| node.reach == Reach::Live).count();
            let bad = members.nodes.iter().find(|node| node.fabric.is_empty());
            match bad {
                None if live == 2 && members.has_lease => break,
                Some(node) if live == 2 => {
                    let since = *unmapped.get_or_insert_with(Instant::now);
                    if since.elapsed() > UNMAPPED_PATIENCE {
                        let (name, why) = (&node.name, &node.why_not);
                        return Err(format!("the memory of {name} is not mapped: {why}").into());
                    }
                }
                _ => unmapped = None,
            }
            until(begin, || format!("the nodes do not see each other: {members:?}"))?;
        }
        let members = self.client.members()?;
        for node in &members.nodes {
            same(&node.name, &*node.fabric, "device")?;
            same(&node.name, &*node.coherence, "node-local")?;
        }
        Ok(format!("epoch {}", members.epoch))
    }

    fn put(&self, name: &str, seed: i64, home: &str) -> Result<String, Error> {
        let batch = table(seed, ROWS);
        let schema = SchemaNode::try_from(&*batch.schema())
            .map_err(|error| Error::InvalidArgument(error.to_string()))?;
        let batches = [BatchData::from(&batch)];
        let value = Value::Table { schema: &schema, batches: &batches };
        let metadata = farrow::Metadata::new([("kernel", boot_id())])
            .map_err(|error| Error::InvalidArgument(error.to_string()))?;
        let options =
            ObjectOptions { name: Some(name), metadata: Some(&metadata), ..Default::default() };
        let far = self.client.at(home)?;
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
        let far = self.client.at(home)?;
        let before = far.stats()?.fabrics["device"].refreshed_lines;
        let begin = Instant::now();
        let object = self.client.get(&name.into(), PATIENCE)?;
        let took = begin.elapsed().as_micros();
        let maker = self.client.metadata(&name.into())?;
        same("made under this kernel", maker.get("kernel") == Some(&*boot_id()), is_own)?;
        let bytes =
            check_table(&object, seed, |pointer, bytes| far.locate(pointer, bytes).is_some())?;
        let refreshed = far.stats()?.fabrics["device"].refreshed_lines - before;
        Ok(format!("got in {took} us, {bytes} B in place, {refreshed} lines refreshed"))
    }

    /// Makes a name at the same moment as the other guest. True if it is ours.
    fn race(&self, round: u32) -> Anything<bool> {
        let at = |what: &str| {
            let what = format!("guest {} in round {round}, {what}", self.name);
            move |error: Error| format!("{what}: {error}")
        };
        self.client.barrier("race", 2, PATIENCE).map_err(at("at the barrier"))?;
        let name = format!("race {round}");
        let won = match self.client.put(&Value::Bytes(self.name.as_bytes()), Some(&name)) {
            Ok(_) => true,
            Err(Error::AlreadyExists { .. }) => false,
            Err(error) => return Err(at("making the name")(error).into()),
        };
        let winner = self.client.get(&name.as_str().into(), PATIENCE).map_err(at("waiting"))?;
        let winner = winner.view()?.to_vec();
        same(&name, winner == self.name.as_bytes(), won)?;
        Ok(won)
    }

    fn kill_daemon(&mut self) -> Anything<String> {
        self.daemon.kill()?;
        self.daemon.wait()?;
        Ok("killed by signal 9".to_owned())
    }

    fn restart_daemon(&mut self) -> Anything<String> {
        self.daemon = self.command.spawn()?;
        self.client = connect()?;
        self.settle()
    }
}

/// Guest a: the script.
fn play(mut guest: Guest) -> Anything {
    let mut b = Steered::accept(guest.own)?;
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
            Err(Error::AlreadyExists { name }) => same("name", &*name, taken)?,
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
    let writer = guest.client.create(LARGE_BYTES, Some("large"))?;
    let piece = large_piece();
    for number in 0..LARGE_BYTES / piece.len() as u64 {
        writer.memory().write_at(number * piece.len() as u64, &piece)?;
    }
    writer.seal()?;
    let view = guest.client.get(&"large".into(), PATIENCE)?.view()?;
    let offset = guest.client.locate(view.as_ptr(), view.len()).ok_or("not in the region")?;
    let span = Span::new(offset, Length(LARGE_BYTES));
    let before = guest.maintained("a")?;
    guest.client.region().publish(span)?;
    let after = guest.maintained("a")?;
    same("all caches were written back to publish", after.0 - before.0, 1)?;
    let lines = LARGE_BYTES / u64::from(farrow_memory::cache::line_bytes());
    same("lines published", after.1 - before.1, lines)?;
    let used = b.ask("large")?;
    drop(view);
    guest.client.delete(&["large".into()])?;
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
    guest.client.delete(&["held".into()])?;
    let retiring = guest.client.stats()?.node.retiring;
    same("it waits for its reader", retiring > ROWS.unsigned_abs() * 8, true)?;
    // Enough to reuse the memory several times over, if it were free.
    let filler = vec![0xEE; FILLER_BYTES as usize];
    for _ in 0..20 {
        let id = guest.client.put(&Value::Bytes(&filler), None)?;
        guest.client.delete(&[id.into()])?;
    }
    b.ask("look 6 held")?;
    b.ask("drop held")?;
    let begin = Instant::now();
    while guest.client.stats()?.node.retiring > 0 {
        until(begin, || "what b let go of does not become free".to_owned())?;
    }
    step(&format!("{retiring} B that b held stayed until b let go, and are free again"));
    Ok(())
}

/// The death of the other daemon, and then of the other kernel.
fn lose(guest: &mut Guest, b: &mut Steered) -> Anything {
    let held = guest.client.get(&"b in b".into(), PATIENCE)?;
    guest.put("b reads", 8, "a")?;
    b.ask("hold b reads")?;
    b.ask("kill")?;
    let took = lost(&guest.client, "b in b")?;
    check_table(&held, 3, |_, _| true)?;
    guest.put("alone", 7, "a")?;
    guest.check("b in a", 4, "a", false)?;
    step(&format!("kill -9 of the daemon of b: NodeLost with its name in a after {took} ms"));
    step("what a holds in the memory of b stays good; what lies in a is used and made");
    guest.client.delete(&["b reads".into()])?;
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
    while guest.client.stats()?.node.retiring > 0 {
        until(begin, || "what b let go of does not become free".to_owned())?;
    }
    step("what a client of b held stayed without its daemon, until it let go");
    drop(held);
    let held = guest.client.get(&"b in b".into(), PATIENCE)?;
    guest.put("b keeps", 9, "a")?;
    b.ask("hold b keeps")?;
    let before = guest.client.stats()?.node.granted;
    b.ask(&format!("write a {UNSEALED_BYTES}"))?;
    let granted = guest.client.stats()?.node.granted;
    same("b was granted more", granted >= before + UNSEALED_BYTES, true)?;
    b.tell("off")?;
    let took = lost(&guest.client, "b in b")?;
    check_table(&held, 3, |_, _| true)?;
    step(&format!("machine b switched off: NodeLost after {took} ms, what a holds stays good"));
    take_back(guest, granted)?;
    check_table(&held, 3, |_, _| true)?;
    guest.daemon.kill()?;
    Ok(())
}

/// What was deleted is not free while somebody may read it.
fn stays_retiring(guest: &Guest, why: &str) -> Anything<u64> {
    let begin = Instant::now();
    loop {
        let retiring = guest.client.stats()?.node.retiring;
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
    guest.client.delete(&["b keeps".into()])?;
    let retiring = stays_retiring(guest, "nobody said that its reader has ended")?;
    let before = guest.client.stats()?.node;
    same("granted, to b too", before.granted, granted)?;
    guest.client.forget_node("b")?;
    let after = guest.client.stats()?.node;
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
        made.push(guest.client.put(&Value::Bytes(&filler), None)?.into());
    }
    let full = guest.client.stats()?.node;
    same("nothing was evicted for it", full.evicted_total, before.evicted_total)?;
    same("it is used again", full.free + full.granted < 2 * FILLER_BYTES, true)?;
    guest.client.delete(&made)?;
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

/// Guest b: does what it is told.
fn obey(mut guest: Guest) -> Anything {
    let begin = Instant::now();
    let place = SocketAddr::new(guest.peer, STEER_PORT);
    let mut stream = loop {
        match TcpStream::connect_timeout(&place, PAUSE * 50) {
            Ok(stream) => break stream,
            Err(error) => until(begin, || format!("guest a at {place}: {error}"))?,
        }
    };
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(2 * PATIENCE))?;
    let lines = BufReader::new(stream.try_clone()?).lines();
    for line in lines {
        let line = line?;
        if line == "off" {
            stream.shutdown(Shutdown::Both)?;
            step("switched off");
            // At once, as a power cut: nothing is told to anybody.
            return Err(format!("{:?}", Command::new("/bin/poweroff").arg("-f").status()).into());
        }
        let answer = match done(&mut guest, &line) {
            Ok(said) => format!("ok {said}"),
            Err(error) => format!("error {error}"),
        };
        stream.write_all(format!("{}\n", answer.replace('\n', " ")).as_bytes())?;
    }
    Ok(())
}

fn done(guest: &mut Guest, line: &str) -> Anything<String> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["settle"] => guest.settle(),
        ["put", seed, home, ..] => Ok(guest.put(&words[3..].join(" "), seed.parse()?, home)?),
        ["check", seed, home, is_own, ..] => {
            guest.check(&words[4..].join(" "), seed.parse()?, home, is_own.parse()?)
        }
        ["hold", ..] => {
            let name = &words[1..].join(" ");
            let object = guest.client.get(&name.as_str().into(), PATIENCE)?;
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
            let writer = guest.client.at(home)?.create(bytes.parse()?, None)?;
            writer.memory().write_at(0, &[0xBB; 5000])?;
            guest.writing.push(writer);
            Ok(String::new())
        }
        ["large"] => {
            let before = guest.maintained("a")?;
            let view = guest.client.get(&"large".into(), PATIENCE)?.view()?;
            let is_right = view.chunks(1 << 20).all(|chunk| chunk == large_piece());
            same("the bytes are those of the maker", is_right, true)?;
            let after = guest.maintained("a")?;
            same("all caches were written back to refresh", after.0 - before.0, 1)?;
            Ok(format!("{} B", view.len()))
        }
        ["race", round] => guest.race(round.parse()?).map(|won| won.to_string()),
        ["kill"] => guest.kill_daemon(),
        ["restart"] => guest.restart_daemon(),
        _ => Err(format!("unknown: {line}").into()),
    }
}

/// The other guest, as the script sees it.
struct Steered {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Steered {
    fn accept(own: IpAddr) -> Anything<Self> {
        let listener = TcpListener::bind(SocketAddr::new(own, STEER_PORT))?;
        listener.set_nonblocking(true)?;
        let begin = Instant::now();
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) => until(begin, || format!("guest b does not come: {error}"))?,
            }
        };
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        // What the other one waits for ends before this.
        stream.set_read_timeout(Some(2 * PATIENCE))?;
        Ok(Self { answers: BufReader::new(stream.try_clone()?), stream })
    }

    fn tell(&mut self, command: &str) -> Anything {
        Ok(self.stream.write_all(format!("{command}\n").as_bytes())?)
    }

    fn answer(&mut self) -> Anything<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.trim_end_matches('\n').split_once(' ') {
            Some(("ok", said)) => Ok(said.to_owned()),
            _ => Err(format!("guest b: {}", line.trim_end()).into()),
        }
    }

    fn ask(&mut self, command: &str) -> Anything<String> {
        self.tell(command)?;
        self.answer().map_err(|error| format!("{command}: {error}").into())
    }
}

/// A table that follows from its seed alone, with nulls.
fn table(seed: i64, rows: i64) -> RecordBatch {
    let number = |n: i64| (n ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64.cast_signed());
    let numbers = Int64Array::from_iter((0..rows).map(|n| (n % 7 != seed % 7).then(|| number(n))));
    let words =
        StringArray::from_iter((0..rows).map(|n| (n % 5 != 0).then(|| format!("{seed}.{n}"))));
    let columns: [(&str, ArrayRef); 2] =
        [("numbers", Arc::new(numbers)), ("words", Arc::new(words))];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))
        .unwrap_or_else(|error| unreachable!("columns of one length: {error}"))
}

/// Compares all values, and sees that each buffer is where it should be; the bytes of the buffers.
fn check_table(
    object: &Object,
    seed: i64,
    is_in_place: impl Fn(*const u8, usize) -> bool,
) -> Anything<usize> {
    let Rebuilt::Arrow(found) = object.rebuild_checked()? else {
        return Err("not a table".into());
    };
    compare(&found.record_batches()?, seed)?;
    let mut bytes = 0;
    for column in found.batches.iter().flat_map(|batch| &batch.columns) {
        let nulls = column.nulls().map(|nulls| nulls.buffer());
        for buffer in column.buffers().iter().chain(nulls) {
            if !is_in_place(buffer.as_ptr(), buffer.len()) {
                return Err(format!("a buffer of {} B is a copy", buffer.len()).into());
            }
            bytes += buffer.len();
        }
    }
    Ok(bytes)
}

fn compare(found: &[RecordBatch], seed: i64) -> Anything {
    let rows = found.iter().map(RecordBatch::num_rows).sum::<usize>();
    let expected = table(seed, i64::try_from(rows)?);
    let is_right = found.first().is_some_and(|batch| batch.columns() == expected.columns());
    same("rows", rows, usize::try_from(ROWS)?)?;
    same("the values are those of the maker", is_right, true)
}

/// The comparison would see another table.
fn check_the_checks() -> Anything {
    compare(&[table(1, ROWS)], 1)?;
    same("another table is seen", compare(&[table(2, ROWS)], 1).is_err(), true)
}

fn connect() -> Anything<Client> {
    let begin = Instant::now();
    loop {
        match Client::connect(&ConnectOptions { timeout: PATIENCE, ..ConnectOptions::at(SOCKET) }) {
            Ok(client) => return Ok(client),
            Err(error) => until(begin, || format!("farrowd does not serve: {error}"))?,
        }
    }
}

fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

fn same<T: PartialEq + Display>(what: &str, found: T, expected: T) -> Anything {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found}, expected {expected}").into())
}

/// One more pause, unless patience is at its end.
fn until(begin: Instant, what: impl FnOnce() -> String) -> Anything {
    if begin.elapsed() > PATIENCE {
        return Err(format!("after {PATIENCE:?}: {}", what()).into());
    }
    sleep(PAUSE);
    Ok(())
}

fn step(what: &str) {
    println!("vm: ok: {what}");
}
