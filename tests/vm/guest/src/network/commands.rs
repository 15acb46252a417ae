//! What a guest does by itself: the script calls it in guest a, and asks for it in guest b.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use farrow::error::NodeUnreachable;
use farrow::{AppendOptions, Client, Error, ObjectOptions, PartSpec, Rebuilt, Value};

use super::{is_own, set_link};
use crate::node::{LEASE_MS, Machine, check_maker, made_here};
use crate::report::{Anything, PATIENCE, same, until};
use crate::table::{ROWS, check_rows, check_table, table, value_of};

const HUGE: &str = "huge";

/// A machine of the test by network.
pub(super) struct Site {
    machine: Machine,
}

impl Site {
    pub(super) fn new(machine: Machine) -> Self {
        Self { machine }
    }

    pub(super) fn client(&self) -> &Client {
        &self.machine.client
    }

    /// Waits until the nodes reach each other; how this one reaches the other.
    pub(super) fn settle(&self) -> Anything<String> {
        let members = self.machine.settle()?;
        let other = members.nodes.iter().find(|node| !node.is_own).ok_or("no other node")?;
        let is_by_net = ["net+TLS", "net+TLS+rdma"].contains(&&*other.fabric);
        same(&format!("{} is reached by {}", other.name, other.fabric), is_by_net, true)?;
        Ok(format!("{}, epoch {}", other.fabric, members.epoch))
    }

    /// Puts a table in the memory of a node.
    pub(super) fn put(&self, name: &str, seed: i64, home: &str) -> Anything<String> {
        let (schema, batch) = value_of(&table(seed, ROWS))?;
        let batches = [batch];
        let value = Value::Table { schema: &schema, batches: &batches };
        let metadata = made_here()?;
        let options = ObjectOptions {
            name: Some(name),
            metadata: Some(&metadata),
            wait: PATIENCE,
            ..Default::default()
        };
        let begin = Instant::now();
        self.client().put_on(home, &value, &options)?;
        Ok(format!("{} ms", begin.elapsed().as_millis()))
    }

    /// Gets a whole table, which lies in the memory of the node that made it.
    pub(super) fn check(&self, name: &str, seed: i64, is_own_table: bool) -> Anything<String> {
        let begin = Instant::now();
        let object = self.client().get(&name.into(), PATIENCE)?;
        let took = begin.elapsed().as_millis();
        let in_region = |start: *const u8, bytes| self.client().locate(start, bytes).is_some();
        let bytes = check_table(&object, seed, in_region)?;
        check_maker(self.client(), name, is_own_table)?;
        Ok(format!("{bytes} B in {took} ms"))
    }

    /// Gets a table that the other machine put in the memory of this one.
    pub(super) fn place(&self, name: &str, seed: i64) -> Anything<String> {
        let object = self.client().get(&name.into(), PATIENCE)?;
        same("its home is this node", is_own(self.client(), &object), true)?;
        self.check(name, seed, false)
    }

    /// Gets columns, `*` for all, and rows.
    pub(super) fn part(
        &self,
        name: &str,
        seed: i64,
        columns: &str,
        (start, stop): (i64, i64),
    ) -> Anything<String> {
        let columns = (columns != "*").then(|| vec![columns.to_owned()]);
        let part = PartSpec { columns, start: Some(start), stop: Some(stop) };
        let before = self.client().stats()?.node.used;
        let begin = Instant::now();
        let found = self.client().get_part(&name.into(), &part, PATIENCE)?;
        let took = begin.elapsed().as_millis();
        check_rows(&found, &[selected(&table(seed, ROWS), &part)?])?;
        let used = self.client().stats()?.node.used.saturating_sub(before);
        Ok(format!("{used} B in {took} ms"))
    }

    /// Appends the table of the last seed to the huge table, after those of the others.
    pub(super) fn append(&self, seeds: &[i64]) -> Anything<String> {
        let (schema, batch) = value_of(&table(*seeds.last().ok_or("no seed")?, ROWS))?;
        let huge = self.client().huge_table(HUGE, Some(&schema))?;
        let batches = [batch];
        let value = Value::Table { schema: &schema, batches: &batches };
        let options = AppendOptions { timeout: PATIENCE, ..Default::default() };
        let added = huge.append(&value, &options)?;
        same("its version", added.version, seeds.len() as u64)?;
        Ok(String::new())
    }

    /// Reads all of the huge table, and a part that begins in one chunk and ends in the next.
    pub(super) fn read_huge(&self, seeds: &[i64]) -> Anything<String> {
        let begin = Instant::now();
        let huge = self.client().huge_table(HUGE, None)?;
        let (start, stop) = (ROWS - 3, ROWS + 11);
        let columns = Some(vec!["words".to_owned()]);
        let part = PartSpec { columns, start: Some(start), stop: Some(stop) };
        let found = huge.table_part(None, &part)?;
        let last = PartSpec { start: Some(start), stop: None, ..part.clone() };
        let first = PartSpec { start: None, stop: Some(stop - ROWS), ..part };
        let expected = [(seeds[0], last), (seeds[1], first)];
        let expected: Anything<Vec<RecordBatch>> =
            expected.iter().map(|(seed, part)| selected(&table(*seed, ROWS), part)).collect();
        check_rows(&found, &expected?)?;
        let whole = huge.table(None)?;
        let expected: Vec<RecordBatch> = seeds.iter().map(|seed| table(*seed, ROWS)).collect();
        check_rows(&whole, &expected)?;
        Ok(format!("{} rows in {} ms", ROWS * seeds.len() as i64, begin.elapsed().as_millis()))
    }

    pub(super) fn delete(&self, name: &str) -> Anything<String> {
        self.client().delete(&[name.into()])?;
        Ok(String::new())
    }

    pub(super) fn is_absent(&self, name: &str) -> Anything<String> {
        match self.client().get(&name.into(), Duration::ZERO) {
            Err(Error::NotFound { .. }) => {}
            other => return Err(format!("{name:?} is deleted, yet: {other:?}").into()),
        }
        same("it is there", self.client().contains(&name.into())?, false)?;
        Ok(String::new())
    }

    /// Changes one byte in the middle of the first column of a sealed table, by the file behind the
    /// daemon's memory.
    fn spoil(&self, name: &str) -> Anything<String> {
        let object = self.client().get(&name.into(), PATIENCE)?;
        let Rebuilt::Arrow(found) = object.rebuild()? else { return Err("not a table".into()) };
        let column = found.batches.first().and_then(|batch| batch.columns.first());
        let values = column.and_then(|column| column.buffers().first()).ok_or("no values")?;
        let at = values.as_ptr() as u64 + values.len() as u64 / 2;
        let (file_id, offset) = mapped_file(at)?;
        for open in fs::read_dir(format!("/proc/{}/fd", self.machine.daemon.id()))? {
            let path = open?.path();
            if fs::metadata(&path).is_ok_and(|found| id_of(&found) == file_id) {
                let file = OpenOptions::new().read(true).write(true).open(&path)?;
                let mut byte = [0];
                file.read_exact_at(&mut byte, offset)?;
                file.write_all_at(&[byte[0] ^ 1], offset)?;
                return Ok(String::new());
            }
        }
        Err(format!("the daemon has no open file {file_id}").into())
    }

    /// Without a majority this node makes no names, and reaches nothing of the other.
    fn is_refused(&self, name: &str) -> Anything<String> {
        let hasty = self.machine.hasty_client(Duration::from_millis(LEASE_MS))?;
        let begin = Instant::now();
        loop {
            match hasty.get(&name.into(), Duration::ZERO) {
                Err(
                    Error::NodeUnreachable(NodeUnreachable { node, .. })
                    | Error::NodeLost { node, .. },
                ) => {
                    break same("not reached", &*node, "a")?;
                }
                other => until(begin, || format!("a get by a link that is down: {other:?}"))?,
            }
        }
        // A daemon says CutOff after several leases. A client that waits less has its deadline.
        let refused = match hasty.put(&Value::Bytes(b"b"), Some("minority")) {
            Err(error @ (Error::CutOff { .. } | Error::Timeout { .. })) => error,
            other => return Err(format!("a name made without a majority: {other:?}").into()),
        };
        let took = begin.elapsed().as_millis();
        Ok(format!("a get of what a has names a; a put with a name: {refused}; {took} ms for both"))
    }
}

/// The device and inode of a file, as the list of mappings has them.
fn id_of(file: &fs::Metadata) -> String {
    let dev = file.dev();
    let (major, minor) = ((dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xf_ff00));
    format!("{major:02x}:{minor:02x} {}", file.ino())
}

/// The file that is mapped at an address of this process, and the offset in it.
fn mapped_file(at: u64) -> Anything<(String, u64)> {
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, _, offset, device, inode, ..] = words[..] else { continue };
        let (start, end) = range.split_once('-').ok_or("no range of addresses")?;
        let start = u64::from_str_radix(start, 16)?;
        if (start..u64::from_str_radix(end, 16)?).contains(&at) {
            let offset = u64::from_str_radix(offset, 16)? + at - start;
            return Ok((format!("{device} {inode}"), offset));
        }
    }
    Err("no file is mapped there".into())
}

/// The part of a table that a reader should get.
fn selected(whole: &RecordBatch, part: &PartSpec) -> Anything<RecordBatch> {
    let rows = i64::try_from(whole.num_rows())?;
    let from_front = |row: i64| if row < 0 { rows + row } else { row };
    let start = part.start.map_or(0, from_front);
    let stop = part.stop.map_or(rows, from_front);
    let columns = match &part.columns {
        None => (0..whole.num_columns()).collect(),
        Some(names) => {
            let at = names.iter().map(|name| whole.schema().index_of(name));
            at.collect::<Result<Vec<usize>, _>>()?
        }
    };
    Ok(whole.slice(usize::try_from(start)?, usize::try_from(stop - start)?).project(&columns)?)
}

/// What shows that packets were dropped and reordered: counters of this kernel.
pub(super) fn network_counters() -> Anything<[(&'static str, u64); 2]> {
    let mut found = HashMap::new();
    for path in ["/proc/net/snmp", "/proc/net/netstat"] {
        let text = fs::read_to_string(path)?;
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.chunks_exact(2) {
            let (names, values) = (pair[0].split(' '), pair[1].split(' '));
            for (name, value) in names.zip(values).skip(1) {
                found.insert(name.to_owned(), value.parse::<u64>().unwrap_or_default());
            }
        }
    }
    let counter = |name: &str| found.get(name).copied().ok_or(format!("no counter {name}"));
    Ok([
        ("segments sent again", counter("RetransSegs")?),
        ("segments that came out of order", counter("TCPOFOQueue")?),
    ])
}

/// Guest b: one command.
pub(super) fn done(site: &mut Site, line: &str) -> Anything<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let name = |skip: usize| words[skip..].join(" ");
    let seeds = || words[1..].iter().map(|seed| seed.parse()).collect::<Result<Vec<i64>, _>>();
    match words[..] {
        ["settle"] => site.settle(),
        ["put", seed, home, _, ..] => site.put(&name(3), seed.parse()?, home),
        ["check", seed, is_own, _, ..] => site.check(&name(3), seed.parse()?, is_own.parse()?),
        ["place", seed, _, ..] => site.place(&name(2), seed.parse()?),
        ["part", seed, columns, start, stop, _, ..] => {
            site.part(&name(5), seed.parse()?, columns, (start.parse()?, stop.parse()?))
        }
        ["append", _, ..] => site.append(&seeds()?),
        ["huge", _, ..] => site.read_huge(&seeds()?),
        ["delete", _, ..] => site.delete(&name(1)),
        ["absent", _, ..] => site.is_absent(&name(1)),
        ["spoil", _, ..] => site.spoil(&name(1)),
        ["refused", _, ..] => site.is_refused(&name(1)),
        ["link", device, state] => set_link(device, state),
        #[cfg(feature = "rdma")]
        ["card"] => super::rdma::add_card(),
        #[cfg(feature = "rdma")]
        ["reads", seed, home] => super::rdma::read_by(site, seed.parse()?, home),
        _ => Err(format!("unknown: {line}").into()),
    }
}
