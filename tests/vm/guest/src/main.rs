//! What runs in the two virtual machines of `tests/vm`: each starts a real `farrowd`. Guest `a` plays
//! the script; guest `b` does what `a` tells it over a connection of their own, so that nothing under
//! test is used to steer the test.
//!
//! vm_guest certs DIR A_HOST B_HOST                      makes the certificates, on the host
//! vm_guest memory a|b OWN PEER DEVICE                   nodes that share the memory of a device
//! vm_guest network a|b OWN PEER STEER_OWN STEER_PEER    nodes that share a network alone
#![allow(clippy::print_stdout)] // the console is how the host hears of it

mod memory;
mod network;
mod node;
mod report;
mod steer;
mod table;

use std::path::Path;
use std::time::Duration;

use report::Anything;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["certs", dir, a, b] => certs(Path::new(dir), a, b),
        ["memory", name, own, peer, device] => memory::run(name, (own, peer), device),
        ["network", name, own, peer, steer, steer_peer] => {
            network::run(name, (own, peer), (steer, steer_peer))
        }
        _ => Err("usage: vm_guest certs|memory|network ...: see main.rs".into()),
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
