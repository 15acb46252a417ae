//! The environment of a chaos run's nodes: loopback, proxies, or namespaces; and the possible
//! faults of their links.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::SeededDice;
use super::netns::{PlacedNodes, required};
use super::nodes::DaemonNodes;
use super::proxy::{Linked, Weather};

pub enum Ground {
    /// Links never fail.
    Loopback(DaemonNodes),
    /// Memory that is coherent inside each node only, in files of a temporary folder.
    NodeLocal(DaemonNodes, tempfile::TempDir),
    /// Links go through proxies, which delay, lose and reset too.
    Proxied(Linked),
    /// Links are those of the kernel.
    Namespaces(PlacedNodes),
}

impl Ground {
    /// `None`: this machine has none, and they are not required.
    pub fn namespaces(count: usize, memory: &str, more: &[&str]) -> Option<Self> {
        required(PlacedNodes::start(count, memory, more)).map(Self::Namespaces)
    }

    pub fn nodes(&self) -> &DaemonNodes {
        match self {
            Self::Loopback(nodes) | Self::NodeLocal(nodes, _) => nodes,
            Self::Proxied(linked) => &linked.nodes,
            Self::Namespaces(placed) => &placed.nodes,
        }
    }

    fn nodes_mut(&mut self) -> &mut DaemonNodes {
        match self {
            Self::Loopback(nodes) | Self::NodeLocal(nodes, _) => nodes,
            Self::Proxied(linked) => &mut linked.nodes,
            Self::Namespaces(placed) => &mut placed.nodes,
        }
    }

    pub fn count(&self) -> usize {
        self.nodes().daemons.len()
    }

    pub fn kill9(&mut self, node: usize) {
        self.nodes_mut().daemons[node].kill9();
    }

    pub fn restart(&mut self, node: usize) {
        self.nodes_mut().daemons[node].restart();
        if let Self::Proxied(linked) = self {
            linked.links.know(node, &linked.nodes.daemons[node]);
        }
    }

    /// Another daemon takes over from that of a node.
    pub fn upgrade(&mut self, node: usize) {
        self.nodes_mut().daemons[node].upgrade();
        if let Self::Proxied(linked) = self {
            linked.links.know(node, &linked.nodes.daemons[node]);
        }
    }

    /// Ends all nodes as an operator does, by SIGTERM.
    pub fn terminate(&mut self) {
        for daemon in &mut self.nodes_mut().daemons {
            let pid = Pid::from_raw(daemon.pid() as i32).unwrap();
            kill_process(pid, Signal::TERM).unwrap();
            assert!(daemon.wait_end().success());
        }
    }

    pub fn has_links(&self) -> bool {
        matches!(self, Self::Proxied(_) | Self::Namespaces(_))
    }

    /// Both ways.
    pub fn set_link(&self, one: usize, other: usize, is_up: bool) {
        match self {
            Self::Proxied(linked) => {
                linked.links.set(one, other, |weather| weather.is_cut = !is_up);
                linked.links.set(other, one, |weather| weather.is_cut = !is_up);
            }
            Self::Namespaces(placed) => placed.places.set_link(one, other, is_up),
            Self::Loopback(_) | Self::NodeLocal(..) => panic!("the loopback has no links"),
        }
    }

    pub fn set_links_of(&self, node: usize, is_up: bool) {
        let others = (0..self.count()).filter(|other| *other != node);
        others.for_each(|other| self.set_link(node, other, is_up));
    }

    /// Sets random delays, losses and resets of links. `None` if links do not support them.
    pub fn roll_weather(&self, dice: &mut SeededDice) -> Option<String> {
        let Self::Proxied(linked) = self else { return None };
        let weather = Weather {
            delay: Duration::from_millis([0, 2, 10, 40][dice.roll(4) as usize]),
            lost_per_mille: dice.roll(20),
            reset_per_mille: dice.roll(4),
            is_cut: false,
        };
        linked.links.set_all(|link| *link = weather);
        Some(format!("{weather:?}"))
    }

    /// Restores all links.
    pub fn heal(&self) {
        if let Self::Proxied(linked) = self {
            linked.links.set_all(|link| *link = Weather::default());
        }
    }

    /// Cuts or restores one direction of a link. False if links have no separate directions.
    pub fn set_one_way(&self, from: usize, to: usize, is_cut: bool) -> bool {
        let Self::Proxied(linked) = self else { return false };
        linked.links.set(from, to, |weather| weather.is_cut = is_cut);
        true
    }
}
