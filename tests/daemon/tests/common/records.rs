//! The reports of all workers of a run, and their invariants.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use farrow::{Client, Error};

use super::PATIENCE;
use super::worker::{fault_in, seed_of_race};

#[derive(Debug, Default)]
pub struct Records {
    pub sealed: BTreeSet<String>,
    /// Somebody began to delete it.
    pub deleting: BTreeSet<String>,
    pub deleted: BTreeSet<String>,
    /// The seeds that won each raced name.
    pub won: BTreeMap<String, Vec<u64>>,
    /// Reported faults.
    pub faults: Vec<String>,
    pub done: u64,
    /// Calls that were measured.
    pub calls: u64,
    /// The call that came nearest to its deadline, or was the latest, in words, and what it took
    /// beyond, in milliseconds.
    pub latest: Option<(i64, String)>,
    /// Lines of caches that were published and refreshed.
    pub lines: [u64; 2],
}

impl Records {
    pub fn learn(&mut self, lines: Vec<String>) {
        for line in lines {
            // Others are those of the test harness.
            let Some(line) = line.strip_suffix(" .") else { continue };
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["sealed", name] => drop(self.sealed.insert(name.to_owned())),
                ["deleting", name] => drop(self.deleting.insert(name.to_owned())),
                ["deleted", name] => drop(self.deleted.insert(name.to_owned())),
                ["won", name, seed] => {
                    self.won.entry(name.to_owned()).or_default().push(seed.parse().unwrap());
                }
                ["done", count] => self.done += count.parse::<u64>().unwrap(),
                ["calls", count] => self.calls += count.parse::<u64>().unwrap(),
                ["latest", beyond_ms, ..] => {
                    let beyond_ms = beyond_ms.parse().unwrap();
                    if self.latest.as_ref().is_none_or(|(latest, _)| beyond_ms > *latest) {
                        self.latest = Some((beyond_ms, words[2..].join(" ")));
                    }
                }
                ["lines", published, refreshed] => {
                    self.lines[0] += published.parse::<u64>().unwrap();
                    self.lines[1] += refreshed.parse::<u64>().unwrap();
                }
                ["wrong" | "late" | "odd", ..] => self.faults.push(line.to_owned()),
                _ => {}
            }
        }
    }

    pub fn assert_clean(&self, seed: u64) {
        assert!(self.faults.is_empty(), "seed {seed:#x}: {:#?}", self.faults);
        for (name, winners) in &self.won {
            assert_eq!(winners.len(), 1, "seed {seed:#x}: {name} was won by {winners:?}");
        }
    }

    /// Names that must be there.
    pub fn retained(&self) -> Vec<&String> {
        let sealed = self.sealed.difference(&self.deleting);
        sealed.chain(self.won.keys()).collect()
    }

    /// Looks at an object that must be there.
    pub fn assert_there(&self, client: &Client, name: &str, seed: u64) {
        let until = Instant::now() + PATIENCE;
        let view = loop {
            match client.get(&name.into(), Duration::ZERO).and_then(|object| object.view()) {
                Ok(view) => break view,
                Err(error @ Error::NotFound { .. }) => panic!("seed {seed:#x}: lost: {error}"),
                Err(error) => assert!(Instant::now() < until, "seed {seed:#x}: {name}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(fault_in(name, &view), None, "seed {seed:#x}");
        if let Some(winners) = self.won.get(name) {
            assert_eq!(seed_of_race(&view), winners.first().copied(), "seed {seed:#x}: {name}");
        }
    }
}
