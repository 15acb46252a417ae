//! The daemon of the tests: `farrowd` with places where `FARROW_FAILPOINT` ends or stops it.

use rustix::process::{Signal, getpid, kill_process};

fn stop() {
    assert!(kill_process(getpid(), Signal::STOP).is_ok(), "no signal to this process");
}

fn main() {
    assert!(farrow_store::failpoints::arm(stop), "no such failpoint");
    std::process::exit(farrow_cluster::farrowd::main(std::env::args_os().skip(1)));
}
